"""A decoder layer with cross attention equals its fp64 reference: causal attention over its own
tokens, then attention to the whole of each sequence's source, which is in the same planes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.places import CPU_TARGETS, GPU, TORCH_DTYPES, rounded
from tests.tolerance import allowed_error

HIDDEN, HEADS, PAGE_SIZE = 48, 3, 4
TARGETS, SOURCES = (5, 1, 9), (2, 17, 30)  # includes a source shorter than its target

pytestmark = pytest.mark.parametrize("place", [*CPU_TARGETS, *GPU], indirect=True)


class CrossLayer:
    """Random weights of self attention and cross attention, pre-norm or post-norm."""

    def __init__(self, place: Placement, dim: int, scale: float, pre_norm: bool) -> None:
        self.place, self.dim, self.scale, self.pre_norm = place, dim, scale, pre_norm
        self.width = HEADS * dim
        rng = np.random.default_rng(1)

        def matrix(rows: int, columns: int) -> np.ndarray:
            array = rng.standard_normal((rows, columns), dtype=np.float32) / columns**0.5
            return rounded(array.astype(np.float32), place.dtype)

        self.weights = {
            "qkv": matrix(3 * self.width, HIDDEN),
            "output": matrix(HIDDEN, self.width),
            "q": matrix(self.width, HIDDEN),
            "cross_output": matrix(HIDDEN, self.width),
        }
        self.x = matrix(sum(TARGETS), HIDDEN) * 7
        self.kv = matrix(sum(SOURCES), 2 * self.width) * 7
        norms = 1 + matrix(2, HIDDEN)
        self.norms = [rounded(norm, place.dtype) for norm in norms]

    def built(self) -> k.Stack:
        def linear(name: str) -> k.Linear:
            return self.place.linear(self.weights[name], None)

        where = "input_norm" if self.pre_norm else "residual_norm"
        norms = [
            {where: k.Norm(self.place.floats(norm), None, 1e-6, "layer_norm")}
            for norm in self.norms
        ]
        attention = k.Attention(qkv=linear("qkv"), output=linear("output"), heads=HEADS, right=0)
        cross = k.CrossAttention(
            q=linear("q"), output=linear("cross_output"), heads=HEADS, scale=self.scale
        )
        return k.Stack([k.Layer([k.Block(attention, **norms[0]), k.Block(cross, **norms[1])])])

    def reference(self, dtype: torch.dtype) -> np.ndarray:
        there = {
            name: torch.from_numpy(array).to(self.place.device, dtype)
            for name, array in {**self.weights, "x": self.x, "kv": self.kv}.items()
        }
        norms = [torch.from_numpy(norm).to(self.place.device, dtype) for norm in self.norms]

        def attend(q, key, value, scale: float, causal: bool) -> torch.Tensor:
            q, key, value = (
                h.unflatten(-1, (HEADS, self.dim)).transpose(0, 1) for h in (q, key, value)
            )
            scores = q @ key.transpose(1, 2) * scale
            if causal:
                scores += torch.full_like(scores, -torch.inf).triu(1)
            return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)

        def block(h, norm, part) -> torch.Tensor:
            normed = torch.nn.functional.layer_norm
            if self.pre_norm:
                return h + part(normed(h, [HIDDEN], norm, None, 1e-6))
            return normed(h + part(h), [HIDDEN], norm, None, 1e-6)

        def itself(h: torch.Tensor) -> torch.Tensor:
            q, key, value = (h @ there["qkv"].T).chunk(3, -1)
            return attend(q, key, value, self.dim**-0.5, True) @ there["output"].T

        answers = []
        kvs = there["kv"].split(SOURCES)
        for h, kv in zip(there["x"].split(TARGETS), kvs, strict=True):

            def source(h: torch.Tensor, kv: torch.Tensor = kv) -> torch.Tensor:
                scale = self.scale or self.dim**-0.5
                found = attend(h @ there["q"].T, *kv.chunk(2, -1), scale, False)
                return found @ there["cross_output"].T

            answers.append(block(block(h, norms[0], itself), norms[1], source))
        return torch.cat(answers).double().cpu().numpy()

    def forward(self, steps: list[tuple[int, ...]]) -> np.ndarray:
        """Returns the output for every row; `steps` has the new tokens of each sequence in each
        step."""
        place, out = self.place, np.full_like(self.x, np.nan)
        counts = [-(-n // PAGE_SIZE) for n in (*TARGETS, *SOURCES)]
        order = np.random.default_rng(2).permutation(sum(counts)).astype(np.int32)
        pages = np.split(order, np.cumsum(counts)[:-1])
        shape = (2, order.size, HEADS * PAGE_SIZE * self.dim)
        planes = place.floats(np.full(shape, np.nan, np.float32))
        keys, values = self.halves(planes, order.size)
        rows = place.floats(self.kv)
        source_offsets = np.cumsum([0, *SOURCES])
        stored = self.batch(source_offsets, SOURCES, pages[len(TARGETS) :])
        k_rows, v_rows = (rows.columns(i * self.width, self.width) for i in (0, 1))
        k.store_kv(keys, values, k_rows, v_rows, stored, 1.0, 1.0, place.stream)
        stack, workspace = self.built(), k.Workspace(k.default_allocator(place.device))
        begins, done = np.cumsum([0, *TARGETS]), np.zeros(len(TARGETS), np.int32)
        for step in steps:
            at = np.concatenate([begins[i] + done[i] + np.arange(n) for i, n in enumerate(step)])
            live = [i for i, n in enumerate(step) if n]
            done += np.array(step, np.int32)
            offsets = np.cumsum([0, *(step[i] for i in live)])
            new = place.floats(self.x[at])
            own = self.batch(offsets, done[live], [pages[i] for i in live])
            lengths = [SOURCES[i] for i in live]
            sources = self.batch(offsets, lengths, [pages[len(TARGETS) + i] for i in live])
            stack.forward_cached(new, own, planes, workspace, None, place.stream, sources=sources)
            out[at] = place.numpy(new)
        return out

    def halves(self, planes: k.Tensor, pages: int) -> list[k.Tensor]:
        shape = [pages, HEADS, PAGE_SIZE, self.dim]
        return [planes.section(i * planes.nbytes // 2, shape, self.place.dtype) for i in (0, 1)]

    def batch(self, offsets, contexts, pages) -> k.PagedBatch:
        table = np.full((len(pages), max(map(len, pages))), -1, np.int32)
        for row, each in zip(table, pages, strict=True):
            row[: len(each)] = each
        return k.PagedBatch(
            self.place.sequences(np.asarray(offsets)),
            k.Tensor.from_numpy(np.array(contexts, np.int32)),
            k.Tensor.from_numpy(table),
            PAGE_SIZE,
            self.place.stream,
        )


@pytest.mark.parametrize(
    "steps", [[TARGETS], [(1, 0, 3), (4, 1, 5), (0, 0, 1)]], ids=["whole", "pieces"]
)
@pytest.mark.parametrize(
    ("dim", "scale", "pre_norm"), [(16, 0.0, True), (20, 1.0, False), (64, 0.0, False)]
)
def test_a_layer_with_cross_attention_equals_its_reference(
    dim: int, scale: float, pre_norm: bool, steps, place: Placement
) -> None:
    layer = CrossLayer(place, dim, scale, pre_norm)
    truth = layer.reference(torch.float64)
    same = layer.reference(TORCH_DTYPES[place.dtype])
    allowed = allowed_error(truth, same, place.dtype, max(HIDDEN, layer.width))
    assert not allowed.excess(layer.forward(steps))


def test_a_stack_without_sources_is_refused(place: Placement) -> None:
    layer = CrossLayer(place, 16, 0.0, True)
    planes = place.floats(np.zeros((2, 3, HEADS * PAGE_SIZE * 16), np.float32))
    batch = layer.batch([0, 2], [2], [[0]])
    workspace = k.Workspace(k.default_allocator(place.device))
    x = place.floats(layer.x[:2])
    with pytest.raises(k.Error, match="CrossAttention: sources: got none, wanted the pages"):
        layer.built().forward_cached(x, batch, planes, workspace, None, place.stream)
    whole = place.sequences(np.array([0, 2], np.int32))
    with pytest.raises(k.Error, match="CrossAttention: sources: got none, wanted the pages"):
        layer.built().forward(x, whole, workspace, None, place.stream)


def test_cross_attention_that_comes_first_is_refused(place: Placement) -> None:
    layer = CrossLayer(place, 16, 0.0, True)
    cross = k.CrossAttention(
        q=place.linear(layer.weights["q"], None),
        output=place.linear(layer.weights["cross_output"], None),
        heads=HEADS,
    )
    stack = k.Stack([k.Layer([k.Block(cross)])])
    planes = place.floats(np.zeros((2, 3, HEADS * PAGE_SIZE * 16), np.float32))
    batch = layer.batch([0, 2], [2], [[0]])
    workspace = k.Workspace(k.default_allocator(place.device))
    x = place.floats(layer.x[:2])
    with pytest.raises(k.Error, match="got no self-attention in front of it, wanted one"):
        stack.forward_cached(x, batch, planes, workspace, None, place.stream, sources=batch)


@pytest.mark.parametrize(
    ("heads", "output", "message"),
    [
        (5, "cross_output", "heads: got 5, wanted a divisor of the 48 rows of q"),
        (0, "cross_output", "heads: got 0, wanted a divisor"),
        (3, "qkv", r"output: got Linear\[144, 48\], wanted \[48, 48\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(heads, output, message, place: Placement) -> None:
    layer = CrossLayer(place, 16, 0.0, True)
    q, output = (place.linear(layer.weights[name], None) for name in ("q", output))
    with pytest.raises(k.Error, match=f"CrossAttention: {message}"):
        k.CrossAttention(q=q, output=output, heads=heads)
