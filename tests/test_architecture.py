"""Imports go in one direction (CONTRIBUTING, "Levels")."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# C++: the folders that a folder may include, besides the standard library.
MAY_INCLUDE = {
    "core": {"core"},
    "cpu": {"core", "cpu"},
    "ops": {"core", "ops"},
    "layers": {"core", "ops", "layers"},
    "cuda": {"core", "cuda"},
    "generation": {"core", "generation"},
    "train": {"core", "ops", "layers", "train"},
    "python": {"core", "generation", "ops", "layers", "train", "python"},
    "tritonserver": {"tritonserver"},
}

# Python: what a package of fusewire may import from fusewire, and from outside where that is
# restricted. Every package may import `errors` and `kernels`; scheduler and batch do not import
# kernels.
MAY_IMPORT = {
    "errors": set(),
    "kernels": {"_C"},
    "devices": {"errors", "kernels"},
    "precision": {"errors"},
    "float_types": {"errors"},
    "matrix_formats": {"kernels", "precision"},
    "placement": {
        "devices",
        "errors",
        "float_types",
        "kernels",
        "matrix_formats",
        "precision",
    },
    "torch_memory": {"errors", "kernels"},
    "padded": {"errors"},
    "parent_death": set(),
    "import_path": set(),
    "passed_errors": {"errors"},
    "weights": {"errors"},
    "images": {"errors", "weights", "worker_processes"},
    "audio": {"errors", "weights", "worker_processes"},
    "worker_processes": {"errors", "import_path", "parent_death", "passed_errors"},
    "weights.tensorflow": {"errors", "import_path", "parent_death", "weights"},
    "hub": {"errors", "hub_errors", "models", "weights"},
    "hub_errors": {"errors"},
    "batch": set(),
    "settings": {"errors"},
    "models": {"batch", "errors", "float_types", "kernels", "placement", "weights"},
    "text": {"errors", "weights"},
    "generation": {"audio", "errors", "text", "weights"},
    "engine": set(),
    "engine.scheduler": {"errors"},
    "engine.costs": set(),
    "engine.due_slots": set(),
    "engine.due_levels": {"engine.due_slots"},
    "engine.active_tenants": set(),
    "engine.admission_block": {"engine.due_slots", "engine.forecast"},
    "engine.backlog": {
        "errors",
        "engine.active_tenants",
        "engine.due_levels",
        "engine.due_slots",
    },
    "engine.expectation": {"errors", "tasks", "engine.request"},
    "engine.tenant_queues": set(),
    "engine.tenant_shares": {"errors", "engine.active_tenants", "engine.backlog"},
    "engine.ready_queue": {
        "engine.costs",
        "engine.next_batch",
        "engine.request",
        "engine.tenant_queues",
    },
    "engine.next_batch": {"engine.costs", "engine.request", "engine.scheduler"},
    "engine.encoder_admission": {
        "engine.admission_block",
        "engine.backlog",
        "engine.costs",
        "engine.due_times",
        "engine.expectation",
        "engine.next_batch",
        "engine.request",
    },
    "engine.due_times": set(),
    "engine.page_pool": {"errors"},
    "engine.source_pages": {"engine.page_pool"},
    "engine.beam_pasts": {"engine.page_pool"},
    "engine.kv_cache": {
        "errors",
        "engine.page_pool",
        "engine.search_pages",
        "engine.sequence_pages",
        "engine.source_pages",
    },
    "engine.search_pages": {"engine.beam_pasts", "engine.page_pool", "engine.sequence_pages"},
    "engine.sequence_pages": {"engine.source_pages"},
    "engine.generation_sequence": {
        "engine.beam_rows",
        "engine.sequence_pages",
        "engine.source_pages",
    },
    "engine.capacity": {"errors", "engine.generation_sequence", "engine.kv_cache"},
    "engine.generation_step": {
        "engine.decode_rows",
        "engine.generation_sequence",
        "engine.source_pages",
    },
    "engine.generation_queue": {"engine.generation_sequence", "engine.tenant_queues"},
    "engine.forecast": set(),
    "engine.place": {"engine.generation_sequence"},
    "engine.sequence_times": {"engine.costs", "engine.forecast", "engine.place"},
    "engine.queue_forecast": {
        "engine.forecast",
        "engine.place",
        "engine.sequence_times",
        "engine.tenant_shares",
    },
    "engine.admission": {
        "errors",
        "engine.admission_block",
        "engine.backlog",
        "engine.costs",
        "engine.due_times",
        "engine.forecast",
        "engine.place",
        "engine.queue_forecast",
        "engine.sequence_times",
        "engine.tenant_shares",
    },
    "engine.step_costs": {
        "models",
        "engine.costs",
        "engine.generation_scheduler",
        "engine.generation_sequence",
        "engine.kv_cache",
        "engine.packing",
    },
    "engine.generation_scheduler": {
        "errors",
        "engine.ahead_planner",
        "engine.beam_pasts",
        "engine.capacity",
        "engine.generation_queue",
        "engine.generation_sequence",
        "engine.generation_step",
        "engine.groups_of_step",
        "engine.kv_cache",
        "engine.running_sequences",
        "engine.sequence_admission",
    },
    "engine.ahead_planner": {
        "engine.beam_rows",
        "engine.generation_queue",
        "engine.generation_step",
        "engine.kv_cache",
        "engine.running_sequences",
        "engine.sequence_admission",
    },
    "engine.running_sequences": {
        "engine.decode_rows",
        "engine.generation_sequence",
        "engine.kv_cache",
    },
    "engine.sequence_admission": {
        "engine.generation_queue",
        "engine.generation_sequence",
        "engine.generation_step",
        "engine.groups_of_step",
        "engine.kv_cache",
        "engine.running_sequences",
        "engine.sequence_pages",
    },
    "engine.groups_of_step": {
        "engine.beam_rows",
        "engine.generation_sequence",
        "engine.generation_step",
        "engine.kv_cache",
    },
    "tasks": {
        "audio",
        "batch",
        "errors",
        "generation",
        "images",
        "models",
        "settings",
        "text",
        "weights",
    },
    "engine.draw_memory": {
        "kernels",
        "placement",
        "engine.sampling_rules",
        "engine.sampling_state",
    },
    "engine.logits_processor": {"kernels", "placement", "engine.sampling_state"},
    "engine.sampling": {
        "float_types",
        "kernels",
        "placement",
        "engine.logits_processor",
        "engine.sampling_rows",
    },
    "engine.sampling_rows": {
        "kernels",
        "placement",
        "engine.draw_memory",
        "engine.logits_processor",
        "engine.sampling_state",
    },
    "engine.sampling_rules": {"kernels"},
    "engine.sampling_state": {"kernels", "engine.sampling_rules", "engine.token_masks"},
    "engine.token_masks": set(),
    "engine.spoken": {
        "generation",
        "engine.branches",
        "engine.continuation",
        "engine.token_masks",
    },
    "engine.request_chain": set(),
    "engine.language_detection": {
        "errors",
        "engine.branches",
        "engine.continuation",
        "engine.request",
        "engine.request_chain",
    },
    "engine.held_audio": {"errors", "engine.branches"},
    "engine.long_transcription": {
        "errors",
        "generation",
        "text",
        "engine.branches",
        "engine.continuation",
        "engine.request",
        "engine.request_chain",
    },
    "engine.window_attempts": {
        "errors",
        "generation",
        "engine.branches",
        "engine.continuation",
        "engine.request",
        "engine.request_chain",
    },
    "engine.ticket": set(),
    "engine.speech_requests": {
        "errors",
        "generation",
        "models",
        "text",
        "engine.branches",
        "engine.held_audio",
        "engine.language_detection",
        "engine.long_transcription",
        "engine.request_chain",
        "engine.spoken",
        "engine.ticket",
        "engine.token_masks",
        "engine.window_attempts",
        "engine.window_prompts",
    },
    "engine.window_prompts": {"generation", "models", "engine.spoken"},
    "engine.seeds": set(),
    "engine.progress": set(),
    "engine.generation_settings": {"settings"},
    "engine.prompt_logprobs": {"errors", "kernels", "placement"},
    "engine.continuation": {"generation", "text", "engine.prompt_logprobs"},
    "engine.best_of": {"errors", "engine.continuation"},
    "engine.deltas": {"errors", "engine.best_of", "engine.continuation"},
    "engine.beam_rows": set(),
    "engine.decode_rows": {"engine.generation_sequence", "engine.kv_cache"},
    "engine.beam_candidates": {"kernels", "placement"},
    "engine.beam_cohort": {
        "kernels",
        "placement",
        "engine.beam_candidates",
        "engine.beam_group",
        "engine.beam_rows",
        "engine.fork_memory",
        "engine.generation_sequence",
        "engine.kv_cache",
        "engine.logits_processor",
        "engine.sequence_pages",
    },
    "engine.fork_memory": {"kernels", "models", "placement"},
    "engine.beam_group": {"kernels", "engine.beam_cohort", "engine.sampling_state"},
    "engine.beam_forks": {
        "kernels",
        "models",
        "engine.beam_group",
        "engine.beam_pasts",
        "engine.generation_sequence",
        "engine.kv_cache",
        "engine.sequence_pages",
    },
    "engine.beam_choice": {
        "kernels",
        "placement",
        "engine.beam_candidates",
        "engine.beam_group",
        "engine.logits_processor",
    },
    "engine.beam_groups": {
        "kernels",
        "models",
        "placement",
        "engine.beam_choice",
        "engine.beam_cohort",
        "engine.beam_forks",
        "engine.beam_group",
        "engine.beams_ahead",
        "engine.generation_sequence",
        "engine.kv_cache",
        "engine.logits_processor",
    },
    "engine.beams_ahead": {
        "kernels",
        "models",
        "engine.beam_candidates",
        "engine.beam_cohort",
        "engine.beam_group",
        "engine.generation_sequence",
        "engine.packing",
    },
    "engine.packing": {
        "kernels",
        "models",
        "engine.beam_rows",
        "engine.decode_rows",
        "engine.generation_sequence",
        "engine.generation_step",
    },
    "engine.look_ahead": {
        "kernels",
        "models",
        "engine.beam_groups",
        "engine.beams_ahead",
        "engine.branches",
        "engine.generation_scheduler",
        "engine.generation_sequence",
        "engine.generation_step",
        "engine.packing",
        "engine.row_owners",
        "engine.sampling",
        "engine.sampling_rows",
    },
    "engine.branches": {
        "errors",
        "engine.beam_group",
        "engine.continuation",
        "engine.generation_sequence",
        "engine.place",
        "engine.prompt_logprobs",
        "engine.sampling_state",
    },
    "engine.row_owners": {"engine.branches", "engine.sampling_rows"},
    "engine.engine_counts": set(),
    "engine.generation_errors": set(),
    "engine.open_requests": {
        "errors",
        "engine.admission",
        "engine.beam_groups",
        "engine.branches",
        "engine.generation_errors",
        "engine.generation_scheduler",
        "engine.generation_sequence",
    },
    "engine.token_answers": {
        "errors",
        "engine.aligner",
        "engine.branches",
        "engine.generation_errors",
        "engine.generation_sequence",
        "engine.open_requests",
        "engine.request",
        "engine.row_owners",
        "engine.sampling",
    },
    "engine.search_answers": {
        "errors",
        "engine.aligner",
        "engine.beam_group",
        "engine.branches",
        "engine.continuation",
        "engine.generation_errors",
        "engine.generation_sequence",
        "engine.open_requests",
        "engine.request",
    },
    "engine.token_times": {"generation", "models", "engine.source_pages"},
    "engine.aligner": {
        "models",
        "engine.branches",
        "engine.continuation",
        "engine.generation_sequence",
        "engine.token_times",
    },
    "engine.generation_loop": {"errors", "kernels", "models", "engine"},
    "engine.generation_memory": {
        "errors",
        "generation",
        "kernels",
        "models",
        "settings",
        "engine.generation_settings",
    },
    "engine.generation_folder": {
        "audio",
        "errors",
        "generation",
        "kernels",
        "models",
        "placement",
        "engine.generation_sequence",
        "engine.generation_settings",
        "engine.source_pages",
    },
    "engine.generation_thread": {
        "errors",
        "engine.branches",
        "engine.generation_loop",
        "engine.generation_sequence",
        "engine.request",
    },
    "engine.finished": {"errors", "engine.best_of", "engine.continuation"},
    "engine.generation": {
        "audio",
        "errors",
        "generation",
        "kernels",
        "models",
        "placement",
        "text",
        "engine",
    },
    "engine.request_rules": {
        "errors",
        "generation",
        "kernels",
        "models",
        "text",
        "engine.beam_candidates",
        "engine.sampling_rules",
        "engine.sampling_state",
    },
    "engine.request_preparation": {
        "errors",
        "generation",
        "kernels",
        "models",
        "text",
        "engine",
    },
    "engine.protocol": {"engine.progress"},
    "engine.request": {"errors", "tasks", "engine.backlog", "engine.expectation"},
    "engine.micro_batches": {"batch", "errors", "kernels", "models", "tasks", "engine"},
    "engine.encoder": {
        "batch",
        "errors",
        "kernels",
        "models",
        "placement",
        "settings",
        "tasks",
        "text",
        "engine",
    },
    "engine.encoder_loop": {"errors", "tasks", "engine"},
    "engine.reading_lanes": {"tasks", "text", "engine"},
    "opening": {"errors", "hub", "models"},
    "interop": {
        "errors",
        "hub",
        "kernels",
        "opening",
        "padded",
        "placement",
        "models",
        "weights",
        "batch",
    },
    "api": {
        "audio",
        "engine",
        "errors",
        "generation",
        "images",
        "models",
        "opening",
        "placement",
        "settings",
        "tasks",
        "text",
    },
    "text_workers": {"errors", "text", "worker_processes"},
    "train": {"errors", "kernels", "models"},
    "calibration_texts": {"errors", "text"},
    "calibration": {
        "batch",
        "calibration_texts",
        "errors",
        "kernels",
        "matrix_formats",
        "models",
        "placement",
        "precision",
    },
    "smoothing": {
        "calibration_texts",
        "errors",
        "float_types",
        "kernels",
        "models",
        "placement",
        "weights",
    },
    "parity": {
        "batch",
        "errors",
        "hub",
        "interop",
        "models",
        "placement",
        "settings",
        "tasks",
        "text",
    },
    "serving": {
        "devices",
        "engine.generation_settings",
        "errors",
        "import_path",
        "models",
        "precision",
        "settings",
        "tasks",
        "text",
        "weights",
    },
    "serving.instance": {
        "audio",
        "engine",
        "errors",
        "generation",
        "kernels",
        "serving",
        "settings",
        "tasks",
        "text",
        "text_workers",
    },
    "serving.supervisor": {
        "devices",
        "errors",
        "hub",
        "import_path",
        "kernels",  # `doctor` names what they run on
        "parent_death",
        "passed_errors",
        "precision",
        "serving",
        "settings",
        "tasks.contract",
        "tasks.inputs",
        "text.tokenizer_files",
        "weights",
    },
    "serving.openai": {
        "errors",
        "generation",
        "models",
        "parent_death",
        "passed_errors",
        "serving",
        "settings",
        "tasks",
        "text",
        "text_workers",
        "weights",
    },
    "cli": {
        "calibration",
        "devices",
        "errors",
        "hub",
        "kernels",
        "engine",
        "models",
        "tasks",
        "weights",
        "serving",
        "parity",
        "precision",
        "settings",
        "smoothing",
    },
    "__main__": {"cli"},
}
# Processes that share the rest of `serving`, but do not import each other.
APART = {
    "serving": {"serving.instance", "serving.openai", "serving.supervisor"},
    "serving.instance": {"serving.openai", "serving.supervisor"},
    "serving.openai": {"serving.supervisor"},
    "serving.supervisor": {"serving.instance", "serving.openai"},
}
ONLY_IN = {
    "_C": {"kernels"},
    "google_crc32c": {"weights.tensorflow"},
    "h5py": {"weights.tensorflow"},
    "torch": {"interop", "parity", "torch_memory", "train"},
    "transformers": {"parity", "train"},
    "huggingface_hub": {"hub", "hub_errors"},
    "PIL": {"images"},
    "soundfile": {"audio"},
    "soxr": {"audio"},
    "fastapi": {"serving.openai"},
    "starlette": {"serving.openai"},
    "uvicorn": {"serving.openai"},
    "triton_python_backend_utils": set(),  # backend/model.py only
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
    """Returns the longest level that is the module or one of its parents."""
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
            assert level_of(target, MAY_IMPORT) not in APART.get(own, set()), f"{module}: {name}"
        bound = ONLY_IN.get(name.split(".")[0])
        assert bound is None or own in bound, f"{module} imports {name}"


def test_the_table_of_levels_names_what_exists() -> None:
    levels = set(MAY_IMPORT)
    assert {p.name for p in (ROOT / "csrc").iterdir() if p.is_dir()} == set(MAY_INCLUDE)
    for level in levels:
        base = ROOT / "backend" / "fusewire" / level.replace(".", "/")
        assert base.is_dir() or base.with_suffix(".py").is_file(), level
