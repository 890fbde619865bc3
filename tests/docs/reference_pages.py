"""The tables of request parameters in docs/generation.md and docs/protocol.md, generated from the
code that validates them.

`python -m tests.docs.reference_pages` writes them into the pages, between their markers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusewire.generation.no_effect import IGNORED, REQUEST, spelled
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.spelling import ALIASES
from fusewire.settings import EngineSettings
from fusewire.tasks.parameters import IMAGE_PARAMETERS, REQUEST_PARAMETERS

DOCS = Path(__file__).parents[2] / "docs"

# The two names of a bound in pydantic's schemas; optional fields use the second.
_BOUNDS = {
    "≥": ("minimum", "ge"),
    ">": ("exclusiveMinimum", "gt"),
    "≤": ("maximum", "le"),
    "<": ("exclusiveMaximum", "lt"),
}


def parameters() -> str:
    rows = ["| Parameter | Type and range | Default | Description |", "|---|---|---|---|"]
    schemas = GenerationParameters.model_json_schema()["properties"]
    for name, field in GenerationParameters.model_fields.items():
        names = [name, *(alias for alias in ALIASES if ALIASES[alias] == name)]
        shown = ", ".join(f"`{each}`" for each in names)
        default = "none" if field.default is None else f"`{json.dumps(field.default)}`"
        rows.append(f"| {shown} | {_type(schemas[name])} | {default} | {field.description} |")
    return "\n".join(rows)


def no_effect() -> str:
    rows = ["| Parameter | Accepted values |", "|---|---|"]
    rows += [f"| `{name}` | `{spelled(REQUEST[name])}` |" for name in sorted(REQUEST)]
    rows += [f"| `{name}` | any |" for name in sorted(IGNORED)]
    return "\n".join(rows)


def encoder_parameters() -> str:
    return _parameters(REQUEST_PARAMETERS)


def image_parameters() -> str:
    return _parameters(IMAGE_PARAMETERS)


def _parameters(of_tasks: Mapping[str, Sequence[str]]) -> str:
    rows = ["| Parameter | Tasks | Type and range | Description |", "|---|---|---|---|"]
    schemas = EngineSettings.model_json_schema()["properties"]
    for name, field in EngineSettings.model_fields.items():
        tasks = [f"`{task}`" for task, names in of_tasks.items() if name in names]
        if tasks:
            kind, description = _type(schemas[name]), field.description
            rows.append(f"| `{name}` | {', '.join(tasks)} | {kind} | {description} |")
    return "\n".join(rows)


TABLES = {
    DOCS / "generation.md": {"parameters": parameters, "no-effect": no_effect},
    DOCS / "protocol.md": {
        "encoder-parameters": encoder_parameters,
        "image-parameters": image_parameters,
    },
}


def written(path: Path) -> str:
    """Returns the page with the tables generated from the code."""
    page = path.read_text()
    for name, table in TABLES[path].items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{path}: got no markers of {name}, wanted {begin.strip()} and {end}")
        page = f"{before}{begin}{table()}\n{end}{after}"
    return page


def _type(schema: dict[str, Any], plural: str = "") -> str:
    """Describes the type of a JSON schema; `plural` s: of several values."""
    if "anyOf" in schema:
        given = [each for each in schema["anyOf"] if each["type"] != "null"]
        return " or ".join(_type(each, plural) for each in given)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema["type"]
    if kind == "array":
        return f"list of{_most(schema, 'maxItems')} {_type(schema['items'], 's')}"
    if kind == "object":
        values = _type(schema["additionalProperties"], "s")
        return f"object of{_most(schema, 'maxProperties')} {values}"
    if kind == "string":
        return f"string{plural} of{_most(schema, 'maxLength')} characters"
    limits = [
        f"{sign} {schema[name]:g}"
        for sign, names in _BOUNDS.items()
        for name in names
        if abs(schema.get(name, 2**63)) < 2**63 - 1
    ]
    return f"{kind}{plural} {', '.join(limits)}".rstrip()


def _most(schema: dict[str, Any], key: str) -> str:
    return f" at most {schema[key]}" if key in schema else ""


if __name__ == "__main__":
    for path in TABLES:
        path.write_text(written(path))
