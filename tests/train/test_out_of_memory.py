"""Training that has too little memory: its hosts know the error, and go on with less."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate.utils.memory import should_reduce_batch_size
from fusewire import kernels
from fusewire.train import Adam, replace

from tests.train.test_hosts import STEPS, arguments, losses
from tests.train.tiny_hosted import batch, classifier, examples

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@contextmanager
def memory_for_a_batch_of(size: int) -> Iterator[None]:
    """Memory for a training step of `size` sequences, and for none that takes some MiB more."""
    allocator = kernels.default_allocator()
    replace(classifier()).train()(**batch(examples(size))).loss.backward()
    gc.collect()
    allocator.trim()
    taken = reserved_and_free(allocator)
    model = replace(classifier()).train()
    loss = model(**batch(examples(size))).loss
    allocator.set_cap(allocator.stats()["reserved_bytes"] + MIB)
    del loss
    try:
        yield
    finally:
        allocator.set_cap(0)
        del taken


def reserved_and_free(allocator: kernels.CachingAllocator) -> list[Any]:
    """Buffers over all free memory of segments in which earlier tests still hold a block."""
    buffers: list[Any] = []
    size = GIB
    allocator.set_cap(allocator.stats()["reserved_bytes"])
    while size >= KIB:
        try:
            buffers.append(allocator.allocate(size, "tests"))
        except kernels.OutOfMemory:
            size //= 2
    allocator.set_cap(0)
    return buffers


def test_accelerate_knows_the_error() -> None:
    allocator = kernels.CachingAllocator("cpu", cap_bytes=MIB)
    with pytest.raises(kernels.OutOfMemory) as caught:
        allocator.allocate(2 * MIB, "training")
    assert should_reduce_batch_size(caught.value)
    with pytest.raises(kernels.Error) as other:
        kernels.Tensor.from_numpy(torch.zeros(2, 2)[:, :1].numpy())
    assert not should_reduce_batch_size(other.value)


def test_a_step_that_had_too_little_memory_leaves_the_next_as_it_was() -> None:
    model, twin = replace(classifier()).train(), replace(classifier()).train()
    with memory_for_a_batch_of(100), pytest.raises(kernels.OutOfMemory, match="for 'training'"):
        model(**batch(examples(1000)))
    for each in (model, twin):
        each(**batch(examples(64))).loss.backward()
    assert all(
        torch.equal(p.grad, q.grad)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_the_trainer_finds_a_batch_size_that_fits(tmp_path: Path) -> None:
    tried: list[int] = []

    class Noting(transformers.Trainer):
        def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
            tried.append(self._train_batch_size)
            return super().training_step(*given, **named)

    settings = arguments(tmp_path, auto_find_batch_size=True)
    settings.per_device_train_batch_size = 1000
    model = replace(classifier())
    made = Noting(
        model=model,
        args=settings,
        train_dataset=examples(1000),
        optimizers=(Adam(model.parameters(), lr=1e-3), None),
    )
    with memory_for_a_batch_of(800):
        made.train()
    failed = tried[:-STEPS]
    assert failed[0] == 1000
    assert sorted({*failed}, reverse=True) == failed
    assert {*tried[-STEPS:]} == {int(failed[-1] * 0.9)}
    assert len(losses(made)) == STEPS
    assert losses(made)[-1] < losses(made)[0]
