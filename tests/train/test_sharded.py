"""Processes that share the moments of Adam train as one process does, and keep their part alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch
from fusewire.train import replace
from torch import nn

from tests.places import why_no_gpu
from tests.tolerance import TRAINED_WEIGHT
from tests.train.processes import EACH_DEVICE, run
from tests.train.sharded_process import (
    BEGUN,
    CLIP,
    STEPS,
    adam,
    bytes_of_moments,
    loose,
    train,
    train_loose,
)
from tests.train.tiny_hosted import classifier

Seen = list[dict[str, Any]]


@pytest.fixture(scope="module", params=EACH_DEVICE)
def device(request: pytest.FixtureRequest) -> str:
    """Of two processes and, where there are three GPUs, of three."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, device: str) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def alone(folder: Path, device: str) -> tuple[nn.Module, Any, list[float]]:
    """The model, its optimizer and its norms, trained by one process; a checkpoint is left."""
    model = replace(classifier().to(device))
    optimizer = adam(model)
    norms = train(model, optimizer, range(BEGUN))
    (folder / "2").mkdir()
    torch.save((model.state_dict(), optimizer.state_dict()), folder / "2" / "begun.pt")
    return model, optimizer, norms + train(model, optimizer, range(BEGUN, STEPS))


@pytest.fixture(scope="module")
def two(folder: Path, device: str, alone: Any) -> Seen:
    """They go on from a checkpoint of one process, and leave one."""
    return run("tests.train.sharded_process", 2, folder / "2", device)


@pytest.fixture(scope="module")
def three(folder: Path, device: str, two: Seen) -> Seen:
    """They go on from the checkpoint of two."""
    if device == "cuda" and (reason := why_no_gpu(3)):
        pytest.skip(f"needs 3 GPUs: {reason}")
    (folder / "3").mkdir()
    copyfile(folder / "2" / "left.pt", folder / "3" / "begun.pt")
    return run("tests.train.sharded_process", 3, folder / "3", device)


@pytest.fixture(params=["two", "three"])
def seen(request: pytest.FixtureRequest, device: str) -> Seen:
    found: Seen = request.getfixturevalue(request.param)
    return found


def assert_close(got: list[torch.Tensor], wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0, atol=TRAINED_WEIGHT)


@pytest.mark.parametrize("run", ["whole", "sharded", "resumed", "went on"])
def test_weights_are_those_of_one_process(run: str, seen: Seen, alone: Any) -> None:
    """`whole`: each process has all moments; `resumed`: from a checkpoint of another number of
    processes; `went on`: behind a step that one process had NaN gradients in."""
    assert_close(seen[0][run], alone[0].parameters())


@pytest.mark.parametrize("run", ["sharded", "resumed", "went on", "loose"])
def test_weights_are_bit_equal_in_all_processes(run: str, seen: Seen) -> None:
    for one, other in pairwise(seen):
        assert all(map(torch.equal, one[run], other[run]))


def test_the_norm_is_that_of_all_gradients(seen: Seen, alone: Any) -> None:
    assert min(alone[2]) > CLIP
    for one in seen:
        assert one["norms"] == pytest.approx(alone[2], rel=1e-4)
        assert one["norms"] == seen[0]["norms"]


def test_each_process_has_its_part_of_the_moments(seen: Seen, alone: Any) -> None:
    whole = bytes_of_moments(alone[1])
    each = [one["bytes"] for one in seen]
    assert sum(each) == whole
    assert max(each) == pytest.approx(whole / len(seen), rel=1e-3)


def test_a_section_of_the_buffer_is_gathered_by_one_call(seen: Seen) -> None:
    """Embeddings, two segments of layers, the head."""
    assert seen[0]["gathers"] == 4 * BEGUN


def test_all_skip_a_step_that_one_has_nan_gradients_in(seen: Seen) -> None:
    assert [one["skipped"] for one in seen] == [1] * len(seen)


def test_parameters_of_their_own_memory_are_shared_too(seen: Seen, device: str) -> None:
    model = loose(device)
    train_loose(model, adam(model))
    assert_close(seen[0]["loose"], model.parameters())


def test_a_checkpoint_of_several_processes_is_that_of_one(
    seen: Seen, folder: Path, device: str, alone: Any
) -> None:
    weights, state = torch.load(folder / str(len(seen)) / "left.pt")
    _, of_one = torch.load(folder / "2" / "begun.pt")
    assert state["param_groups"] == of_one["param_groups"]
    assert state["state"].keys() == of_one["state"].keys()
    for key, moments in of_one["state"].items():
        assert state["state"][key].keys() == moments.keys()
        assert all(state["state"][key][name].shape == moments[name].shape for name in moments)
    model = replace(classifier().to(device))
    model.load_state_dict(weights)
    optimizer = adam(model)
    optimizer.load_state_dict(state)
    train(model, optimizer, range(BEGUN, STEPS))
    assert_close(list(model.parameters()), alone[0].parameters())


def test_what_one_process_cannot_do_alone_is_refused(seen: Seen) -> None:
    assert "call consolidate_state_dict() in every process" in seen[1]["elsewhere"]
    for one in seen:
        assert "call consolidate_state_dict() in every process" in one["stale"]
        assert "copy its state_dict" in one["copied"]
        assert "wanted all before the first step" in one["grown"]
        assert "make models and optimizers alike" in one["unlike"]
