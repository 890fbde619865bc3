"""The criterion is torch's cross entropy of the projection, whose logits it never has whole."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from fusewire import kernels
from fusewire.errors import ConfigurationError, FusewireError, InvalidInput, Unsupported
from fusewire.train.cross_entropy import CrossEntropy, cross_entropy
from torch.nn import functional

from tests.tolerance import TRAINED_GRADIENT

CLASSES, FEATURES = 37, 24
ROW = 4 * CLASSES  # bytes of a row of logits


def operands(*shape: int, seed: int = 0, bias: bool = True):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*shape, FEATURES, generator=generator).requires_grad_()
    weight = torch.randn(CLASSES, FEATURES, generator=generator).requires_grad_()
    labels = torch.randint(0, CLASSES, shape, generator=generator)
    b = torch.randn(CLASSES, generator=generator).requires_grad_() if bias else None
    return hidden, weight, labels, b


def reference(hidden, weight, labels, bias, items=None, **settings):
    """In fp64: the loss, and the gradients of twice the loss."""
    leaves = [t.detach().double().requires_grad_() for t in (hidden, weight, bias) if t is not None]
    logits = functional.linear(*leaves).reshape(-1, CLASSES)
    reduction = "mean" if items is None else "sum"
    loss = functional.cross_entropy(logits, labels.reshape(-1), reduction=reduction, **settings)
    loss = loss if items is None else loss / items
    return loss, torch.autograd.grad(2 * loss, leaves)


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert (got - wanted).norm() <= TRAINED_GRADIENT * wanted.norm()


def check(criterion, hidden, weight, labels, bias, items=None, **settings) -> None:
    loss = criterion(hidden, weight, labels, bias, num_items_in_batch=items)
    wanted, gradients = reference(hidden, weight, labels, bias, items, **settings)
    leaves = [t for t in (hidden, weight, bias) if t is not None]
    assert_close(loss, wanted)
    for got, gradient in zip(torch.autograd.grad(2 * loss, leaves), gradients, strict=True):
        assert_close(got, gradient)


@pytest.mark.parametrize("rows_a_chunk", [1, 3, 7, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_are_torchs(rows_a_chunk: int, smoothing: float, bias: bool) -> None:
    criterion = CrossEntropy(label_smoothing=smoothing, logit_bytes=rows_a_chunk * ROW)
    hidden, weight, labels, b = operands(2, 7, bias=bias)
    check(criterion, hidden, weight, labels, b, label_smoothing=smoothing)
    labels[0, 2:5] = -100
    labels[1] = -100
    check(criterion, hidden, weight, labels, b, label_smoothing=smoothing)


@pytest.mark.parametrize("items", [5, torch.tensor(11)])
def test_the_sum_is_divided_by_the_number_of_items(items) -> None:
    hidden, weight, labels, bias = operands(9)
    labels[3] = -1
    check(CrossEntropy(ignore_index=-1), hidden, weight, labels, bias, items, ignore_index=-1)


def test_a_class_may_be_the_one_to_ignore() -> None:
    hidden, weight, labels, bias = operands(9)
    labels[:3] = 0
    check(CrossEntropy(ignore_index=0), hidden, weight, labels, bias, ignore_index=0)


def test_strided_operands_are_taken() -> None:
    hidden, weight, labels, bias = operands(4, 6)
    strided = torch.cat([hidden.detach()] * 2, -1)[..., :FEATURES].requires_grad_()
    columns = weight.detach().T.contiguous().T.requires_grad_()
    assert not strided.is_contiguous()
    check(CrossEntropy(), strided, columns, labels.T.contiguous().T, bias)


def test_only_rows_with_a_label_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others hold is not read: NaN there reaches neither loss nor gradients."""
    rows, linear = [], kernels.linear
    monkeypatch.setattr(
        kernels, "linear", lambda out, *a: (rows.append(out.shape[0]), linear(out, *a))
    )
    hidden, weight, labels, bias = operands(40)
    labels[4:] = -100
    with torch.no_grad():
        hidden[4:] = torch.nan
    loss = cross_entropy(hidden, weight, labels, bias)
    loss.backward()
    assert rows == [4, 4]  # logits, and gradients of their rows
    assert loss.isfinite()
    assert weight.grad.isfinite().all()
    assert torch.equal(hidden.grad[4:], torch.zeros(36, FEATURES))


def assert_zeros_without_labels(hidden, weight, labels, bias) -> None:
    labels[:] = -100
    loss = cross_entropy(hidden, weight, labels, bias)
    loss.backward()
    assert loss.item() == 0.0
    for leaf in (hidden, weight, bias):
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_a_batch_without_labels_gives_zeros() -> None:
    assert_zeros_without_labels(*operands(3, 2))


@pytest.mark.parametrize("value", [CLASSES, -1, 2**40])
def test_a_label_that_is_no_class_is_refused_with_its_place(value: int) -> None:
    hidden, weight, labels, bias = operands(3, 5)
    labels[1, 2] = value
    with pytest.raises(
        InvalidInput, match=rf"labels: got {value} in row \[1, 2\], wanted \[0, 37\)"
    ):
        cross_entropy(hidden, weight, labels, bias)


def test_nothing_is_computed_for_what_needs_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels, bias = operands(6)
    called = []
    for name in ("linear_backward_weight", "column_sums"):
        monkeypatch.setattr(kernels, name, lambda *_, name=name: called.append(name))
    with torch.no_grad():
        loss = cross_entropy(hidden, weight, labels, bias)
    assert not loss.requires_grad
    cross_entropy(hidden, weight.detach(), labels, bias.detach()).backward()
    assert called == []
    assert_close(loss.detach(), reference(hidden, weight, labels, bias)[0].detach())


def test_the_weight_is_packed_anew_when_written_and_only_then(monkeypatch) -> None:
    packed = []
    real = kernels.Linear

    def linear(*arguments, **settings):
        packed.append("made")
        return real(*arguments, **settings)

    monkeypatch.setattr(kernels, "Linear", linear)
    criterion = CrossEntropy()
    hidden, weight, labels, bias = operands(6)
    for _ in range(3):
        check(criterion, hidden, weight, labels, bias)
    assert len(packed) == 2
    for written in (weight, bias):
        with torch.no_grad():
            written.mul_(-0.5)
        check(criterion, hidden, weight, labels, bias)
    weight.data = operands(6, seed=2)[1].data
    check(criterion, hidden, weight, labels, bias)
    assert len(packed) == 2
    hidden, weight, labels, bias = operands(6, seed=1)
    check(criterion, hidden, weight, labels, bias)
    check(criterion, hidden, weight, labels, None)


def test_it_is_a_module() -> None:
    criterion = CrossEntropy(label_smoothing=0.2)
    arguments = operands(6)
    wanted = criterion(*arguments)
    for twin in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert torch.equal(twin(*arguments), wanted)
    assert list(criterion.parameters()) == []


def test_a_second_backward_is_refused() -> None:
    loss = cross_entropy(*operands(6))
    loss.backward(retain_graph=True)
    with pytest.raises(FusewireError, match="second backward"):
        loss.backward()
    with pytest.raises(Unsupported, match="create_graph: got True"):
        cross_entropy(*operands(6)).backward(create_graph=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, w, y, b: (h.double(), w, y, b), "hidden: got float64"),
        (lambda h, w, y, b: (h, w.half(), y, b), "weight: got float16"),
        (lambda h, w, y, b: (h, w, y.int(), b), r"labels: got torch.int32"),
        (lambda h, w, y, b: (h, w, y[:3], b), r"hidden: got shape \[6, 24\] with weight"),
        (lambda h, w, y, b: (h, w[:, :3], y, b), r"hidden: got shape"),
        (lambda h, w, y, b: (h, w, y, b[:3]), r"bias: got shape \[3\], wanted \[37\]"),
    ],
)
def test_operands_that_do_not_fit_are_refused(change, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cross_entropy(*change(*operands(6)))


def test_settings_and_counts_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"label_smoothing: got 1.5"):
        CrossEntropy(label_smoothing=1.5)
    with pytest.raises(ConfigurationError, match=r"logit_bytes: got 0"):
        CrossEntropy(logit_bytes=0)
    hidden, weight, labels, bias = operands(6)
    with pytest.raises(InvalidInput, match=r"num_items_in_batch: got 0"):
        cross_entropy(hidden, weight, labels, bias, num_items_in_batch=0)
