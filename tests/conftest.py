from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from fusewire import devices
from fusewire.placement import Placement
from hypothesis import HealthCheck

from tests import each_value, places


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--each-value",
        action="store_true",
        help="run each value of a test's parameters once on each target, not all combinations",
    )


@pytest.hookimpl(trylast=True)  # of what other options leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--each-value"):
        kept = dict.fromkeys(each_value.chosen(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_collection_finish() -> None:
    """Collections of garbage, of which every trainer asks for several, pass over what stays to the
    end: a million objects of the tests and of torch, half a second each time."""
    gc.collect()
    gc.freeze()


# The time of an example only shows how busy the machine is, and no example changes its fixtures.
hypothesis.settings.register_profile(
    "fusewire",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("fusewire")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("gpu"):
        count = marker.kwargs.get("count", 1)
        if reason := places.why_no_gpu(count):
            pytest.skip(f"needs {'a GPU' if count == 1 else f'{count} GPUs'}: {reason}")


@pytest.fixture(params=places.EVERYWHERE)
def place(request: pytest.FixtureRequest) -> Iterator[Placement]:
    with places.at(request.param) as place:
        yield place


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs of this machine, for a test to set: none at first."""
    here: list[int] = []
    monkeypatch.setattr(devices, "cuda_built", lambda: True)
    monkeypatch.setattr(devices, "found", lambda: here)
    return here


@pytest.fixture(scope="session", autouse=True)
def _torch_computes_in_the_precision_it_is_asked_for() -> None:
    torch.set_float32_matmul_precision("highest")  # no TF32, nor in convolutions
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@pytest.fixture(scope="session", autouse=True)
def _workers_share_the_cores() -> None:
    """torch's threads spin while they wait for each other: with more of them than cores, on a busy
    machine, ten times as long."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@pytest.fixture(scope="session", autouse=True)
def _choices_of_kernels_are_this_runs_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What other runs timed does not decide what is tested; child processes share the folder."""
    os.environ.setdefault("FUSEWIRE_CACHE", str(tmp_path_factory.mktemp("cache")))
