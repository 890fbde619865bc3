"""The words for devices, and what is refused where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusewire import kernels
from fusewire.errors import ConfigurationError
from fusewire.serving import devices
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.embedded import EmbeddedServer
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.installation import find


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs of this machine, for a test to set."""
    here: list[int] = []
    monkeypatch.setattr(devices, "_built", lambda: True)
    monkeypatch.setattr(devices, "found", lambda: here)
    return here


@pytest.mark.parametrize(
    ("device", "meant"),
    [("cpu", ()), ("cuda", (0,)), ("cuda:3", (3,)), ("cuda:0,1", (0, 1)), ("auto", ())],
)
def test_the_words_for_devices(gpus: list[int], device: str, meant: tuple[int, ...]) -> None:
    assert devices.gpus_of(device) == meant
    assert Deployment(device=device).device == device


def test_auto_is_the_first_gpu_where_there_is_one(gpus: list[int]) -> None:
    gpus += [0, 1]
    assert devices.gpus_of("auto") == (0,)


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda:1,1", "cuda:0,", "CPU"])
def test_other_words_are_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match=r"device: got .*wanted auto, cpu, cuda"):
        Deployment(device=device)


def test_what_this_build_has_is_found() -> None:
    names = [name for name, _ in kernels.devices()]
    assert [f"cuda:{gpu}" for gpu in devices.found()] == names[1:]
    assert devices.described()
    if not kernels.cuda_built():
        assert devices.found() == []
        with pytest.raises(ConfigurationError, match="no CUDA kernels; build it with"):
            devices.of_instance("m", "GPU", "0")


def test_gpus_that_the_build_cannot_use_are_pointed_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "_built", lambda: False)
    monkeypatch.setattr(devices, "_DRIVER", tmp_path / "version")
    assert devices.described() == "none, and this build has no CUDA kernels"
    (tmp_path / "version").touch()
    assert devices.described().startswith("not used: there is an NVIDIA driver")


def test_an_instance_without_its_gpu_is_refused(gpus: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="this machine shows no GPU; see nvidia-smi"):
        devices.check("m", "KIND_GPU", [])
    gpus += [0, 1]
    devices.check("m", "KIND_GPU", [])
    devices.check("m", "KIND_CPU", [7])
    assert devices.of_instance("m", "GPU", "1") == "cuda:1"
    with pytest.raises(ConfigurationError, match=r"m: instance_group: got GPU 2, wanted one of"):
        devices.of_instance("m", "GPU", "2")


@pytest.mark.parametrize("on_gpus", [False, True])
def test_the_server_takes_no_memory_of_the_gpus_for_itself(
    gpus: list[int], tmp_path, on_gpus: bool
) -> None:
    gpus += [0, 1]
    at = Endpoint("127.0.0.1", 1, 2, 3)
    server = EmbeddedServer(find(), ServerSettings(), at, tmp_path, "key", on_gpus=on_gpus)
    command = server._command([], [])
    assert f"--allow-gpu-metrics={'true' if on_gpus else 'false'}" in command
    for gpu in gpus:
        assert (f"--cuda-memory-pool-byte-size={gpu}:0" in command) == on_gpus
