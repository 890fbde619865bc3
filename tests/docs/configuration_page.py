"""The tables of docs/configuration.md, from the settings classes.

PYTHONPATH=backend:client python -m tests.docs.configuration_page     # renews the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fusewire.serving.config import (
    SERVE,
    SERVE_WITHOUT,
    Deployment,
    GeneratorSettings,
    ModelSettings,
    ServerSettings,
)
from fusewire.serving.environment import OTHERS, variable
from fusewire.serving.flags import GROUPS, default, spelt, values
from fusewire.serving.setting import group
from pydantic import BaseModel
from pydantic.fields import FieldInfo

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
MARKED = re.compile(r"(<!-- (\w+):begin -->\n).*?(<!-- \2:end -->)", re.DOTALL)

# Settings that are not `parameters` keys in config.pbtxt, and where they are instead.
TRITON_KEYS = {
    "instances": "instance_group.count",
    "device": "instance_group.kind, .gpus",
    "max_batch_size": "max_batch_size",
    "queue_delay_us": "dynamic_batching.max_queue_delay_microseconds",
    "versions_served": "version_policy.latest.num_versions",
    "version": "",  # the folder's name
}


def page(text: str) -> str:
    """Returns the page with its current tables."""
    tables = {"settings": "\n".join(settings()), "variables": "\n".join(variables())}
    return MARKED.sub(lambda marked: f"{marked[1]}\n{tables[marked[2]]}\n\n{marked[3]}", text)


def settings() -> Iterator[str]:
    """Yields the lines of a table for each group."""
    for title in GROUPS:
        yield f"### {title.capitalize()}\n"
        yield "| Flag, variable, YAML key | `config.pbtxt` | Default | Values | Meaning |"
        yield "|---|---|---|---|---|"
        for kind in SERVE:
            for name, field in kind.model_fields.items():
                if group(field) == title and name != "reloads" and _first(kind, name, field):
                    yield row(kind, name, field)
        yield ""


def row(kind: type[BaseModel], name: str, field: FieldInfo) -> str:
    """Returns the row of one setting; a model's setting has a key in config.pbtxt too."""
    if name == "tritonserver_args":
        spellings = ["`-- FLAG…`"]
    elif name in SERVE_WITHOUT:
        spellings = [f"`{spelt(name, field)}` of `import`"]
    else:
        spellings = [f"`{spelt(name, field)}`", f"`{variable(name)}`"]
    if name not in ("version", "versions_served"):
        spellings.append(f"`{name}`")
    key = "" if kind is ServerSettings else TRITON_KEYS.get(name, f'parameters["{name}"]')
    text = field.description or ""
    if kind is GeneratorSettings and not text.startswith("generate: ") and _shared(name):
        text = f"generate: {text}"
    cells = [
        "<br>".join(spellings),
        f"`{key}`" if key else "",
        default(field) and f"`{default(field)}`",
        values(field).replace("|", ", "),
        text.replace("|", r"\|"),
    ]
    return f"| {' | '.join(cells)} |"


def variables() -> Iterator[str]:
    """Yields the table of environment variables that do not belong to a setting."""
    yield "| Variable | Meaning |"
    yield "|---|---|"
    for name, text in OTHERS.items():
        yield f"| `{name}` | {text} |"


def _shared(name: str) -> bool:
    return name in ModelSettings.model_fields


def _first(kind: type[BaseModel], name: str, field: FieldInfo) -> bool:
    """Returns whether no earlier class has the same field."""
    before = SERVE[: SERVE.index(kind)]
    same = [each.model_fields[name] for each in before if name in each.model_fields]
    return all(each.description != field.description for each in same)


if __name__ == "__main__":
    assert Deployment.model_fields.keys() == TRITON_KEYS.keys()
    PAGE.write_text(page(PAGE.read_text()))
