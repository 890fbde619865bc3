"""The names of devices, for operators and for callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire import devices, kernels
from fusewire.devices import gpus_of, one_device
from fusewire.errors import ConfigurationError
from fusewire.serving.config import Deployment


@pytest.mark.parametrize(
    ("device", "meant"),
    [("cpu", ()), ("cuda", (0,)), ("cuda:3", (3,)), ("cuda:0,1", (0, 1)), ("auto", ())],
)
def test_an_operator_means_no_gpu_or_several(
    gpus: list[int], device: str, meant: tuple[int, ...]
) -> None:
    assert gpus_of(device) == meant
    assert Deployment(device=device).device == device


def test_auto_is_the_first_gpu_where_there_is_one(gpus: list[int]) -> None:
    assert one_device("auto") == "cpu"
    gpus += [0, 1]
    assert gpus_of("auto") == (0,)
    assert one_device("auto") == "cuda:0"


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda:1,1", "cuda:0,", "CPU"])
def test_other_words_are_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match=r"device: got .*wanted auto, cpu, cuda"):
        Deployment(device=device)


@pytest.mark.parametrize(
    ("device", "meant"),
    [
        ("cpu", "cpu"),
        ("cuda", "cuda:0"),
        ("cuda:3", "cuda:3"),
        (torch.device("cpu"), "cpu"),
        (torch.device("cpu", 0), "cpu"),
        (torch.device("cuda"), "cuda:0"),
        (torch.device("cuda", 3), "cuda:3"),
    ],
)
def test_a_caller_means_one_device(device: Any, meant: str) -> None:
    assert one_device(device) == meant


@pytest.mark.parametrize(
    ("device", "got"),
    [
        ("cuda:0,1", "'cuda:0,1'"),
        ("cuda:10", "'cuda:10'"),
        ("tpu", "'tpu'"),
        (0, "0"),
        (None, "None"),
        (b"cpu", "b'cpu'"),
        (torch.device("meta"), r"device\(type='meta'\)"),
        (torch.float16, r"torch\.float16"),
    ],
)
def test_a_caller_is_refused_anything_else(device: Any, got: str) -> None:
    message = f"device: got {got}, wanted one of auto, cpu, cuda, and cuda:0 to cuda:9; choose one"
    with pytest.raises(ConfigurationError, match=message):
        one_device(device)


def test_what_this_build_has_is_found() -> None:
    names = [name for name, _ in kernels.devices()]
    assert [f"cuda:{gpu}" for gpu in devices.found()] == names[1:]
    assert devices.described()
    assert kernels.cuda_built() or devices.found() == []


def test_gpus_that_the_build_cannot_use_are_pointed_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "cuda_built", lambda: False)
    monkeypatch.setattr(devices, "_DRIVER", tmp_path / "version")
    assert devices.described() == "none, and this build has no CUDA kernels"
    (tmp_path / "version").touch()
    assert devices.described().startswith("not used: there is an NVIDIA driver")
