"""Imports run one way (CONTRIBUTING, "Levels"), and files stay the size of one idea."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# C++: what a folder may include, besides the standard library.
MAY_INCLUDE = {
    "core": {"core"},
    "cpu": {"core", "cpu"},
    "ops": {"core", "ops"},
    "layers": {"core", "ops", "layers"},
    "cuda": {"core", "cuda"},
    "python": {"core", "ops", "layers", "python"},
}

# Python: what a package of fusewire may import from fusewire, and from outside where it is bound.
# `errors` and `kernels` are below everyone; scheduler and batch stand without kernels.
MAY_IMPORT = {
    "errors": set(),
    "kernels": {"_C"},
    "devices": {"errors", "kernels"},
    "placement": {"devices", "errors", "kernels"},
    "torch_memory": {"errors", "kernels"},
    "padded": {"errors"},
    "weights": {"errors"},
    "hub": {"errors", "hub_errors", "models", "weights"},
    "hub_errors": {"errors"},
    "models": {"errors", "kernels", "placement", "weights", "engine.batch"},
    "engine": set(),
    "engine.batch": {"errors"},
    "engine.scheduler": {"errors", "engine.batch"},
    "engine.settings": {"errors"},
    "engine.page_pool": {"errors"},
    "engine.kv_cache": {"errors", "engine.page_pool"},
    "engine.generation_sequence": {"engine.kv_cache"},
    "engine.generation_queue": {"engine.generation_sequence"},
    "engine.admission": {"errors"},
    "engine.generation_scheduler": {
        "errors",
        "engine.generation_queue",
        "engine.generation_sequence",
        "engine.kv_cache",
    },
    "tasks": {
        "errors",
        "kernels",
        "padded",
        "weights",
        "models",
        "engine.batch",
        "engine.settings",
    },
    "engine.sampling": {"kernels", "placement", "engine.sampling_state"},
    "engine.token_history": set(),
    "engine.sampling_state": {"engine.token_history"},
    "engine.seeds": set(),
    "engine.generation_settings": {"engine.settings"},
    "engine.prompt_logprobs": {"errors", "kernels", "placement"},
    "engine.continuation": {"tasks", "engine.prompt_logprobs"},
    "engine.best_of": {"errors", "engine.continuation"},
    "engine.deltas": {"errors", "engine.best_of", "engine.continuation"},
    "engine.packing": {"models", "engine.generation_scheduler"},
    "engine.generation_loop": {"errors", "kernels", "models", "engine"},
    "engine.generation_memory": {
        "errors",
        "kernels",
        "models",
        "tasks",
        "engine.generation_settings",
    },
    "engine.finished": {"errors", "engine.best_of", "engine.continuation"},
    "engine.generation": {"errors", "kernels", "models", "placement", "tasks", "engine"},
    "engine.request": {"errors", "tasks"},
    "engine.micro_batches": {"errors", "kernels", "models", "tasks", "engine"},
    "engine.encoder": {"errors", "kernels", "models", "placement", "tasks", "engine"},
    "interop": {
        "errors",
        "hub",
        "kernels",
        "padded",
        "placement",
        "models",
        "weights",
        "engine.batch",
    },
    "api": {"errors", "hub", "engine", "tasks"},
    "agreement": set(),
    "parity": {"agreement", "errors", "hub", "models", "placement", "interop"},
    "serving": {"devices", "errors", "hub", "kernels", "engine", "models", "tasks", "weights"},
    "serving.openai": {"errors", "engine.settings", "models", "serving", "tasks", "weights"},
    "cli": {
        "errors",
        "hub",
        "kernels",
        "engine",
        "models",
        "tasks",
        "weights",
        "serving",
        "parity",
    },
    "__main__": {"cli"},
}
ONLY_IN = {
    "_C": {"kernels"},
    "torch": {"interop", "parity", "torch_memory"},
    "transformers": {"parity"},
    "huggingface_hub": {"hub", "hub_errors"},
    "fastapi": {"serving.openai"},
    "uvicorn": {"serving.openai"},
    "triton_python_backend_utils": set(),  # backend/model.py alone
}


def cpp_files() -> list[Path]:
    return sorted(
        p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cc", ".cu", ".inc", ".def"}
    )


@pytest.mark.parametrize("path", cpp_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_cpp_file_includes_only_levels_below(path: Path) -> None:
    level = path.relative_to(ROOT / "csrc").parts[0]
    text = path.read_text()
    included = {m.split("/")[0] for m in re.findall(r'#include "([^"]+)"', text)}
    assert included <= MAY_INCLUDE[level]
    assert ("pybind11" in text) <= (level == "python")
    assert "torch/" not in text


def python_modules() -> dict[str, Path]:
    package = ROOT / "backend" / "fusewire"
    return {
        ".".join(p.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): p
        for p in sorted(package.rglob("*.py"))
        if p != package / "__init__.py"
    }


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def level_of(module: str, levels: dict[str, set[str]]) -> str:
    """The longest level that is the module or one of its parents."""
    fits = [name for name in levels if module == name or module.startswith(name + ".")]
    return max(fits, key=len) if fits else module.split(".")[0]


@pytest.mark.parametrize("module", python_modules())
def test_a_python_module_imports_only_levels_below(module: str) -> None:
    own = level_of(module, MAY_IMPORT)
    allowed = MAY_IMPORT[own] | {own, own.split(".")[0] if own.count(".") == 0 else own}
    for name in imports_of(python_modules()[module]):
        if name.startswith("fusewire."):
            target = name.removeprefix("fusewire.")
            if target in ("__version__",):
                continue
            fits = any(
                target == a or target.startswith(a + ".") or a.startswith(target + ".")
                for a in allowed
            )
            assert fits, f"{module} imports {name}"
        bound = ONLY_IN.get(name.split(".")[0])
        assert bound is None or own in bound, f"{module} imports {name}"


@pytest.mark.parametrize(
    "path",
    [p for p in [*cpp_files(), *python_modules().values(), ROOT / "backend" / "model.py"]],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_a_file_is_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


def test_the_table_of_levels_names_what_exists() -> None:
    levels = set(MAY_IMPORT)
    assert {p.name for p in (ROOT / "csrc").iterdir() if p.is_dir()} == set(MAY_INCLUDE)
    for level in levels:
        base = ROOT / "backend" / "fusewire" / level.replace(".", "/")
        assert base.is_dir() or base.with_suffix(".py").is_file(), level
