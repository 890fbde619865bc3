"""README and the pages only name files, flags and Python names that exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import textwrap
from itertools import chain, takewhile
from pathlib import Path

import pytest
import typer
from fusewire.cli import app

ROOT = Path(__file__).parents[2]
READ_ON_GITHUB = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "client/README.md")]
PAGES = [*READ_ON_GITHUB, *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
PACKAGES = ("fusewire", "fusewire_client")


def test_readme_is_read_in_one_sitting():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("page", READ_ON_GITHUB, ids=lambda page: page.name)
def test_links_outside_the_site_lead_to_files(page):
    missing = [to for to in LINK.findall(page.read_text()) if not (page.parent / to).exists()]
    assert not missing


def code_of(page: Path) -> list[ast.Module]:
    return [ast.parse(textwrap.dedent(code)) for code in PYTHON.findall(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_a_page_uses_names_that_exist(page):
    for node in chain.from_iterable(map(ast.walk, code_of(page))):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                used = [alias.name for alias in names]
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                used = [name]
            case _:
                continue
        if module.split(".")[0] in PACKAGES:
            missing = [name for name in used if not hasattr(importlib.import_module(module), name)]
            assert not missing, f"{module}: {missing}"


def commands_of(page: Path) -> list[list[str]]:
    """Returns the `fusewire` commands in the page's shell blocks, split into words."""
    blocks = SHELL.findall(page.read_text())
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.sub(r"^\s*(\w+=\S+ )*", "", line) for line in lines]
    split = [shlex.split(line, comments=True) for line in found if line.startswith("fusewire ")]
    return [list(takewhile(lambda word: word != "--", words)) for words in split]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_a_page_have_flags_that_exist(page):
    commands = typer.main.get_command(app).commands
    for _, *words in commands_of(page):
        name = next((word for word in words if not word.startswith("-")), None)
        if name is None:
            continue
        known = {flag for each in commands[name].params for flag in each.opts + each.secondary_opts}
        flags = {word.split("=")[0] for word in words if word.startswith("-")}
        assert flags <= known, f"fusewire {name}: {flags - known}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_in_a_page_exist(page):
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named <= set(known)
