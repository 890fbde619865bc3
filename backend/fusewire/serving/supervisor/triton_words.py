"""Parses messages of tritonserver that exist only as text. The only module that depends on their
wording."""

from __future__ import annotations

import re


def process_died(message: str) -> bool:
    """Whether a request failed because a process of its model had died. The status is 500, as for
    other errors."""
    return "is not healthy" in message


def no_room(message: str) -> bool:
    """Whether a generative model refused for lack of space or time: `generate` answers every error
    of a model with 400."""
    return message.startswith(("queue: ", "timeout: "))


def reason_in_words(reason: str) -> str:
    """Returns the reason for which a model does not load, without the text that Triton adds to the
    backend's message."""
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
    words = words.split("\n\nAt:")[0].strip().removesuffix(";")  # the ; after each version
    return words or "the server gives no reason; see --log-level info"
