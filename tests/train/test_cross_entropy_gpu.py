"""The criterion on a GPU, in fp32 and under autocast, against torch's in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
from fusewire.errors import InvalidInput
from fusewire.train import Adam, CrossEntropy, cross_entropy
from torch.nn import functional

from tests.tolerance import OP_VERSUS_TORCH, TRAINED_GRADIENT
from tests.train.test_cross_entropy import assert_zeros_without_labels

pytestmark = pytest.mark.gpu

HALVES = [torch.bfloat16, torch.float16]
FEATURES = 64


def operands(*shape: int, classes: int = 301, seed: int = 0, bias: bool = True):
    """Logits of the order of 1, as a model's are."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).cuda()

    hidden = normal(*shape, FEATURES).requires_grad_()
    weight = (normal(classes, FEATURES) * FEATURES**-0.5).requires_grad_()
    labels = torch.randint(0, classes, shape, generator=generator).cuda()
    return hidden, weight, labels, normal(classes).requires_grad_() if bias else None


def torchs(hidden, weight, labels, bias, items=None, **settings):
    """Its loss, and the gradients of twice the loss, of operands as they are."""
    leaves = [t for t in (hidden, weight, bias) if t is not None]
    logits = functional.linear(*leaves).flatten(0, -2)
    reduction = "mean" if items is None else "sum"
    loss = functional.cross_entropy(logits, labels.flatten(), reduction=reduction, **settings)
    loss = loss if items is None else loss / float(items)
    return loss.detach(), torch.autograd.grad(2 * loss, leaves)


def in_fp64(hidden, weight, labels, bias, items=None, **settings):
    wide = [t if t is None else t.detach().double().requires_grad_() for t in (hidden, weight)]
    b = None if bias is None else bias.detach().double().requires_grad_()
    return torchs(*wide, labels.cuda(), b, items, **settings)


def ours(criterion, hidden, weight, labels, bias, items=None):
    loss = criterion(hidden, weight, labels, bias, num_items_in_batch=items)
    leaves = [t for t in (hidden, weight, bias) if t is not None]
    return loss.detach(), torch.autograd.grad(2 * loss, leaves)


def assert_close(got, wanted) -> None:
    for ours_, right in zip((got[0], *got[1]), (wanted[0], *wanted[1]), strict=True):
        assert (ours_ - right).norm() <= TRAINED_GRADIENT * right.norm()


def check(criterion, *arguments, **settings) -> None:
    assert_close(ours(criterion, *arguments), in_fp64(*arguments, **settings))


@contextmanager
def without_waiting() -> Iterator[None]:
    """Torch raises where the host waits for the GPU."""
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("classes", [37, 301, 2048])
@pytest.mark.parametrize("rows_a_chunk", [3, 200, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_in_fp32_loss_and_gradients_are_torchs(
    classes: int, rows_a_chunk: int, smoothing: float, bias: bool
) -> None:
    logit_bytes = rows_a_chunk * 4 * classes
    criterion = CrossEntropy(label_smoothing=smoothing, logit_bytes=logit_bytes)
    hidden, weight, labels, b = operands(2, 140, classes=classes, bias=bias)
    check(criterion, hidden, weight, labels, b, label_smoothing=smoothing)
    labels[0, 2:50] = -100
    labels[1] = -100
    check(criterion, hidden, weight, labels, b, label_smoothing=smoothing)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("hidden_in_dtype", [True, False])
@pytest.mark.parametrize("classes", [301, 2048])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_under_autocast_errors_are_at_most_twice_torchs(
    dtype: torch.dtype, hidden_in_dtype: bool, classes: int, smoothing: float
) -> None:
    """Torch's are those of logits and operands in the dtype, scaled as a GradScaler does."""
    hidden, weight, labels, bias = operands(300, classes=classes)
    if hidden_in_dtype:
        hidden = hidden.detach().to(dtype).requires_grad_()
    labels[::7] = -100
    scale = 1024.0
    right = in_fp64(hidden, weight, labels, bias, label_smoothing=smoothing)
    criterion = CrossEntropy(label_smoothing=smoothing, logit_bytes=128 * 2 * classes)
    leaves = [hidden, weight, bias]
    with torch.autocast("cuda", dtype):
        loss = criterion(hidden, weight, labels, bias)
        logits = functional.linear(hidden, weight, bias)
        theirs = functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    assert loss.dtype == torch.float32
    found = torch.autograd.grad(2 * scale * loss, leaves)
    plain = torch.autograd.grad(2 * scale * theirs, leaves)
    assert [g.dtype for g in found] == [hidden.dtype, torch.float32, torch.float32]
    assert abs(loss - right[0]) <= OP_VERSUS_TORCH * torch.finfo(dtype).eps * right[0]
    for got, rival, wanted in zip(found, plain, right[1], strict=True):
        error = (got / scale - wanted).norm()
        assert error <= OP_VERSUS_TORCH * (rival / scale - wanted).norm()


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=str)
def test_small_gradients_do_not_underflow(dtype: torch.dtype | None) -> None:
    """Of a mean over so many items that those of the logits are below fp16's smallest number."""
    hidden, weight, labels, bias = operands(64)
    items = 1e9
    with nullcontext() if dtype is None else torch.autocast("cuda", dtype):
        loss = cross_entropy(hidden, weight, labels, bias, num_items_in_batch=items)
    (found,) = torch.autograd.grad(2 * loss, weight)
    wanted = in_fp64(hidden, weight, labels, bias, items)[1][1]
    assert (found - wanted).norm() <= 0.01 * wanted.norm()


@pytest.mark.parametrize("place", ["", "cpu", "cuda"])
def test_the_sum_is_divided_by_the_number_of_items(place: str) -> None:
    items = torch.tensor(11, device=place) if place else 11
    hidden, weight, labels, bias = operands(9)
    labels[3] = -1
    check(CrossEntropy(ignore_index=-1), hidden, weight, labels, bias, items, ignore_index=-1)


def test_labels_may_be_on_the_cpu() -> None:
    hidden, weight, labels, bias = operands(4, 50)
    labels[0, :20] = -100
    check(CrossEntropy(), hidden, weight, labels.cpu(), bias)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("dtype", [None, *HALVES], ids=str)
def test_nobody_waits_where_labels_are_on_the_cpu(dtype: torch.dtype | None) -> None:
    hidden, weight, labels, bias = operands(4, 50)
    items = torch.tensor(190).cuda()
    criterion, labels = CrossEntropy(logit_bytes=1 << 16), labels.cpu()
    for ignored in (0, 10):
        labels[0, :ignored] = -100
        for run in ("once", "again"):
            with (
                without_waiting() if run == "again" else nullcontext(),
                nullcontext() if dtype is None else torch.autocast("cuda", dtype),
            ):
                loss = criterion(hidden, weight, labels, bias, num_items_in_batch=items)
                loss.backward()


@pytest.mark.parametrize("value", [301, -1, 2**40])
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_label_that_is_no_class_is_refused_with_its_place(value: int, place: str) -> None:
    hidden, weight, labels, bias = operands(3, 5)
    labels[1, 2] = value
    with pytest.raises(InvalidInput, match=rf"labels: got {value} in row \[1, 2\], wanted \[0, 30"):
        cross_entropy(hidden, weight, labels.to(place), bias)


def test_no_items_at_all_are_a_step_that_adam_skips() -> None:
    hidden, weight, labels, _ = operands(6)
    optimizer = Adam([weight], lr=0.1)
    before = weight.detach().clone()
    nothing = torch.tensor(0).cuda()
    cross_entropy(hidden, weight, labels, num_items_in_batch=nothing).backward()
    optimizer.step()
    assert torch.equal(weight, before)
    assert optimizer.skipped_steps == 1
    labels[:] = -100  # without a row there is nothing to divide
    assert cross_entropy(hidden, weight, labels, num_items_in_batch=nothing).item() == 0.0


def test_a_batch_without_labels_gives_zeros() -> None:
    assert_zeros_without_labels(*operands(3, 2))


def test_strided_operands_are_taken() -> None:
    hidden, weight, labels, bias = operands(4, 6)
    strided = torch.cat([hidden.detach()] * 2, -1)[..., :FEATURES].requires_grad_()
    columns = weight.detach().T.contiguous().T.requires_grad_()
    criterion = CrossEntropy()
    for _ in range(2):
        check(criterion, strided, columns, labels.T.contiguous().T, bias)
        with torch.no_grad():
            columns.mul_(0.5)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_what_is_written_to_the_weight_is_read(dtype: torch.dtype | None) -> None:
    criterion = CrossEntropy()
    hidden, weight, labels, bias = operands(20)

    def autocast() -> AbstractContextManager[None]:
        return nullcontext() if dtype is None else torch.autocast("cuda", dtype)

    def is_followed() -> bool:
        with autocast():
            found = ours(criterion, hidden, weight, labels, bias)
            wanted = ours(CrossEntropy(), hidden, weight, labels, bias)
        return all(map(torch.equal, (found[0], *found[1]), (wanted[0], *wanted[1])))

    with torch.inference_mode(), autocast():  # as where a host validates before it trains
        criterion(hidden, weight, labels, bias)
    assert is_followed()
    for written in (weight, bias):
        with torch.no_grad():
            written.mul_(-0.5)
        assert is_followed()
    weight.data = torch.randn_like(weight)
    assert is_followed()
    weight.grad = torch.randn_like(weight)
    torch.optim.SGD([weight], lr=0.1).step()
    assert is_followed()


def test_logits_are_never_in_memory_as_a_whole() -> None:
    rows, classes = 4096, 16384  # 128 MiB in bf16
    hidden, weight, labels, _ = operands(rows, classes=classes)
    hidden = hidden.detach().bfloat16().requires_grad_()
    criterion = CrossEntropy(logit_bytes=8 << 20)
    for _ in range(2):  # what is kept between calls is there in the second
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            criterion(hidden, weight, labels).backward()
        peak = torch.cuda.max_memory_allocated() - before
        hidden.grad = weight.grad = None
    gradients = 2 * hidden.numel() + 4 * weight.numel()
    assert peak <= gradients + (9 << 20)


def test_the_same_bits_in_every_run() -> None:
    arguments = operands(500, classes=2048)
    criterion = CrossEntropy(logit_bytes=128 * 2 * 2048)
    with torch.autocast("cuda", torch.bfloat16):
        first = ours(criterion, *arguments)
        for _ in range(20):
            again = ours(criterion, *arguments)
            assert all(map(torch.equal, (again[0], *again[1]), (first[0], *first[1])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, w, y, b: (h.cpu(), w, y, b), "weight: got float32 on cuda:0, wanted .* on cpu"),
        (lambda h, w, y, b: (h.half(), w, y, b), "hidden: got float16 on cuda:0, wanted float32"),
        (lambda h, w, y, b: (h, w.half(), y, b), "weight: got float16 on cuda:0"),
        (lambda h, w, y, b: (h, w, y.int(), b), "labels: got torch.int32 .*, wanted int64 on cuda"),
    ],
)
def test_operands_that_do_not_fit_are_refused(change, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cross_entropy(*change(*operands(6)))
