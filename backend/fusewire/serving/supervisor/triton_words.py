"""What tritonserver tells its supervisor in words alone: the one module that knows them."""

from __future__ import annotations

import re


def process_died(message: str) -> bool:
    """Whether a request failed as a process of its model had died: status 500, as other errors."""
    return "is not healthy" in message


def no_room(message: str) -> bool:
    """Whether a model that generates had no room or no time: `generate` answers 400 to every error
    of one."""
    return message.startswith(("queue: ", "timeout: "))


def reason_in_words(reason: str) -> str:
    """The reason for a model that does not load, without what Triton wraps a backend's own in."""
    words = re.sub(
        r"^(load failed for model '[^']*': )?(version \d+ is at UNAVAILABLE state: )?"
        r"((Internal|Invalid argument|Unavailable): )?(TritonModelException: )?",
        "",
        reason.strip(),
    )
    if "has kind KIND_GPU but" in words or "compute compatibility" in words:
        return (
            "instance_group: got a GPU that the server does not have, wanted KIND_CPU or a GPU "
            "that nvidia-smi shows; import the model with --device cpu, or another"
        )
    if process_died(words):
        return (
            "the model's process died while it loaded, wanted one that lives: the system kills one "
            "for which there is no memory (dmesg tells); give it more, or import the model with "
            "--quantize or a smaller --dtype"
        )
    words = words.split("\n\nAt:")[0].strip().removesuffix(";")  # which ends each version's words
    return words or "the server gives no reason; see --log-level info"
