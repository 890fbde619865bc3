"""How many times as fast as the fastest alternative fusewire is, by case, from the committed
rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.records import Row, Rows

ENCODER_CASES = {
    ("BERT-base", "1x32"),
    ("BERT-base", "1x128"),
    ("BERT-base", "16x128"),
    ("BERT-base", "16x512"),
    ("BERT-base", "64x512"),
    ("BERT-large", "1x128"),
    ("BERT-large", "16x128"),
    ("BERT-large", "16x512"),
}
NAMES = {
    "packed, graph": "unpadded torch, CUDA graph",
    "packed, compiled, graph": "unpadded torch.compile, CUDA graph",
    "torch-packed": "unpadded torch",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "ctranslate2": "CTranslate2",
    "vllm": "vLLM",
}
STATED = ("times_strongest_rival", "times_best_rival")

Time = Callable[[Row], float]  # the time of a case, in any unit


@dataclass(frozen=True)
class Speedup:
    """`times` is above 1 where fusewire is faster than `rival`, the fastest of the others."""

    case: str
    rival: str
    times: float


@dataclass(frozen=True)
class Group:
    title: str
    hardware: str
    speedups: list[Speedup]


def groups(found: dict[str, dict[str, Rows]]) -> list[Group]:
    """Returns the groups whose benchmarks have rows."""
    cpu, gpu = found["cpu"], found["gpu"]
    encoders = [
        row
        for row in gpu.get("encoder", [])
        if (row["model"], row["case"]) in ENCODER_CASES and "device_ms" in row
    ]
    made = [
        _group("Encoders, GPU, fp16", encoders, lambda row: row["device_ms"]),
        _group("Encoders, CPU, fp32", cpu.get("encoder", []), lambda row: row["median_ms"]),
        _group(
            "Generation, GPU, fp16",
            gpu.get("generation_vllm", []),
            lambda row: 1 / row["tokens_per_s"],
        ),
        _group(
            "Generation, CPU, fp32",
            cpu.get("generation", []),
            lambda row: row["whole_ms"],
        ),
    ]
    return [group for group in made if group.speedups]


def _group(title: str, rows: Rows, time: Time) -> Group:
    hardware = _hardware(rows[-1]) if rows else ""
    return Group(title, hardware, list(_speedups(rows, time)))


def _speedups(rows: Rows, time: Time) -> Iterator[Speedup]:
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(f"{row['model']} {row['case']}", {})[row["system"]] = row
    for case, of_case in cases.items():
        own = of_case.pop("fusewire", None)
        if own is not None and of_case:
            rival = min(of_case, key=lambda system: time(of_case[system]))
            times = time(of_case[rival]) / time(own)
            # The benchmark's own ratio, of unrounded times, where it has one.
            stated = [own[key] for key in STATED if key in own]
            yield Speedup(case, NAMES.get(rival, rival), *stated or [times])


def _hardware(row: Row) -> str:
    name = row["gpu"] if "gpu" in row else row["cpu"].replace("(R)", "").partition(" (")[0]
    threads = "" if "gpu" in row else f", {row['threads']} threads"
    return f"{name}{threads}, {row['time'][:10]}"
