"""Parameters of other servers and libraries that are not supported, and the values with which they
change no answer: these values are accepted, from requests and from folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fusewire.errors import InvalidInput, sent
from fusewire.text.written import written_flag, written_real

# Hugging Face's, of a folder or a request.
HUGGING_FACE: Mapping[str, tuple[Any, ...]] = {
    "constraints": ([],),
    "dola_layers": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ([], {}),
    "token_healing": (False,),
    "top_h": (1,),
    "watermarking_config": (),
}

# A request's, beside those: vLLM's, and what chat templates take where there are no messages.
REQUEST: Mapping[str, tuple[Any, ...]] = {
    **{key: values for key, values in HUGGING_FACE.items() if key != "num_return_sequences"},
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "continuous_usage_stats": (False,),
    "detokenize": (True,),
    "echo": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_reading_prefix_cache": (False,),
    "spaces_between_special_tokens": (True,),
}
# With any value: they concern the client alone.
IGNORED = frozenset(("id", "request_id"))


def has_no_effect(value: object, harmless: tuple[Any, ...]) -> bool:
    """Whether `value` is one of the harmless ones, itself or written as a string. 1 is not true."""
    spelled = written_real(written_flag(value))
    return any(
        spelled == each and isinstance(spelled, bool) == isinstance(each, bool) for each in harmless
    )


def without_no_effect(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a request asks for, less what changes no answer; InvalidInput for another value of a
    parameter that is not supported."""
    left = {name: value for name, value in values.items() if name not in IGNORED}
    for name in left.keys() & REQUEST.keys():
        value, harmless = left.pop(name), REQUEST[name]
        if value is not None and not has_no_effect(value, harmless):
            raise InvalidInput(
                name, sent(value), f"{spelled(harmless)}, as it is not supported", "remove it"
            )
    return left


def spelled(harmless: tuple[Any, ...]) -> str:
    """The harmless values as JSON spells them."""
    return " or ".join([*(json.dumps(value) for value in harmless), "null"])
