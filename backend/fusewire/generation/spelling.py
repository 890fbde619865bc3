"""Parameters as a request spells them: aliases, nulls, and what is wrong with a value's type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fusewire.errors import InvalidInput, sent
from fusewire.text.written import written_flag

# A parameter's other name.
ALIASES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "num_return_sequences": "n",
}

# max_new_tokens of a request where neither it nor the folder names any: a default of whoever sends
# it, as the OpenAI endpoint has for completions. It gives way to what the prompt leaves.
DEFAULT_LENGTH = "default_max_new_tokens"

# vLLM's flag: best_of or n are the beams.
BEAM_SEARCH = "use_beam_search"

# Transformers' list of temperatures: those behind the first.
FALLBACK = "fallback_temperatures"

# A request that sets one of these, and does not say `do_sample`, asks for sampling.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")

# pydantic's kind of error -> what is wanted, where its own words are Python's.
_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "strings",
    "string_too_short": "strings that are not empty",
    "string_too_long": "strings of at most {max_length} characters",
    "tuple_type": "a list",
    "too_long": "at most {max_length} entries",
    "too_short": "lists of at least {min_length}",
    "dict_type": 'an object like {{"50256": -100}}',
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
# For a parameter that is one string; the words above are for strings in a list.
_WANTED_OF_ONE = {
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "string_too_long": "a string of at most {max_length} characters",
}


def canonical(name: str) -> str:
    """The field's own name."""
    return ALIASES.get(name, name)


def layer(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a request says, by the fields' names: nulls left out, aliases resolved,
    and `do_sample` where it follows from the rest. InvalidInput: a field under both its names."""
    given = {name: value for name, value in values.items() if value is not None}
    for alias, name in ALIASES.items():
        if alias in given:
            if name in given:
                raise InvalidInput(alias, f"{alias} and {name} together", "one of them", "drop one")
            given[name] = given.pop(alias)
    _take_beam_search(given)
    _take_temperatures(given)
    if any(name in given for name in SAMPLING):
        given.setdefault("do_sample", True)
    return given


def _take_beam_search(given: dict[str, Any]) -> None:
    """The flag becomes num_beams."""
    if BEAM_SEARCH not in given:
        return
    flag = written_flag(given.pop(BEAM_SEARCH))
    if not isinstance(flag, bool):
        raise InvalidInput(BEAM_SEARCH, sent(flag), "true or false", "correct it")
    if "num_beams" in given:
        got, wanted = "it and num_beams together", "one of them"
        raise InvalidInput(BEAM_SEARCH, got, wanted, "drop one")
    given["num_beams"] = given.pop("best_of", given.get("n", 1)) if flag else 1


def _take_temperatures(given: dict[str, Any]) -> None:
    """Takes the first of several temperatures, as transformers has them; the others are those to
    fall back to."""
    temperatures = given.get("temperature")
    if isinstance(temperatures, (list, tuple)) and len(temperatures) > 1 and FALLBACK not in given:
        given["temperature"], *given[FALLBACK] = temperatures


def names_given(values: Mapping[str, Any]) -> dict[str, str]:
    """Field -> the name under which a request gives it."""
    names = {canonical(name): name for name, value in values.items() if value is not None}
    if written_flag(values.get(BEAM_SEARCH, False)) is True and "num_beams" not in names:
        names["num_beams"] = names.pop("best_of", names.get("n", BEAM_SEARCH))
    if isinstance(values.get("temperature"), (list, tuple)):
        names[FALLBACK] = "temperature"
    return names


def refusal(
    error: ValidationError, values: Mapping[str, Any], known: Sequence[str]
) -> InvalidInput:
    """The first of the types' complaints about `values`, under the name that was sent. `known`: the
    parameters that there are."""
    first = error.errors()[0]
    name = names_given(values).get(name := str(first["loc"][0]), name)
    if first["type"] == "extra_forbidden":
        wanted = f"one of the parameters of generation ({', '.join(known)})"
        return InvalidInput(name, sent(first["input"]), wanted, "remove it")
    words = _WANTED | _WANTED_OF_ONE if len(first["loc"]) == 1 else _WANTED
    if first["type"] == "tuple_type" and canonical(name) == "stop":
        wanted = "a string or a list of strings"
    elif first["type"] in words:
        wanted = words[first["type"]].format(**first.get("ctx", {}))
    else:
        wanted = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    # The length of a list that is too long says more than its beginning.
    got = sent(first["input"])
    if first["type"] == "too_long":
        got = f"{len(first['input'])} entries"
    elif first["type"] == "string_too_long":
        got = f"{len(first['input'])} characters"
    return InvalidInput(name, got, wanted, "correct or remove it")
