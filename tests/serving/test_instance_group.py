"""Instance groups: what is refused where their devices are not."""

from __future__ import annotations

import pytest
from fusewire import devices
from fusewire.errors import ConfigurationError
from fusewire.serving import instance_group
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.installation import find
from fusewire.serving.supervisor.embedded import EmbeddedServer


def test_a_build_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_built", lambda: False)
    with pytest.raises(ConfigurationError, match="no CUDA kernels; build it with"):
        instance_group.of_instance("m", "GPU", "0")


def test_an_instance_without_its_gpu_is_refused(gpus: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="this machine shows no GPU; see nvidia-smi"):
        instance_group.check("m", "KIND_GPU", [])
    gpus += [0, 1]
    instance_group.check("m", "KIND_GPU", [])
    instance_group.check("m", "KIND_CPU", [7])
    assert instance_group.of_instance("m", "GPU", "1") == "cuda:1"
    with pytest.raises(ConfigurationError, match=r"m: instance_group: got GPU 2, wanted one of"):
        instance_group.of_instance("m", "GPU", "2")


@pytest.mark.parametrize(
    ("kind", "named", "here", "place"),
    [
        ("KIND_CPU", [], [0, 1], "cpu"),
        ("KIND_GPU", [], [0, 1], "every GPU"),
        ("KIND_GPU", [1], [0, 1], "cuda:1"),
        ("KIND_AUTO", [], [], "cpu"),
        ("KIND_AUTO", [], [0, 1], "every GPU"),
        ("KIND_AUTO", [0, 1], [0, 1], "cuda:0,1"),
    ],
)
def test_a_group_is_said_where_triton_puts_it(
    gpus: list[int], kind: str, named: list[int], here: list[int], place: str
) -> None:
    gpus += here
    instance_group.check("m", kind, named)
    assert instance_group.described(kind, named) == place


@pytest.mark.parametrize("here", [[], [0]])
def test_triton_may_not_take_the_cpu_for_a_gpu_that_is_named(
    gpus: list[int], here: list[int]
) -> None:
    gpus += here
    with pytest.raises(ConfigurationError, match=r"m: instance_group: got (KIND_AUTO|GPU 1)"):
        instance_group.check("m", "KIND_AUTO", [1])


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
