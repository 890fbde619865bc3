"""The layers of a blueprint as stacks for training, whose weights are in the flat buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fusewire.errors import ConfigurationError, Unsupported
from fusewire.kernels import Tensor, training, upload
from fusewire.models.blueprint import (
    Attention,
    Block,
    CrossAttention,
    FeedForward,
    Layer,
    PositionBias,
)
from fusewire.models.rope import Rope
from fusewire.models.stored_weights import Dense, Norm, tensors_of
from fusewire.train.flat import FlatParameters
from fusewire.train.position_bias import TrainedBias
from fusewire.train.torch_tensors import stream_of

_THERE = "train it with transformers itself"


@dataclass(frozen=True)
class Dropouts:
    """Dropout probabilities: of attention weights, of the output of attention, of the output of the
    feed-forward's activation and of the output of the feed-forward."""

    attention: float = 0.0
    attention_output: float = 0.0
    activation: float = 0.0
    feed_forward_output: float = 0.0


def stacked_names(layers: Sequence[Layer], prefix: str) -> Iterator[list[str]]:
    """Parameters that have to be adjacent in the flat buffer: weights that one product reads, and
    their biases."""
    for layer in layers:
        for block in layer.blocks:
            part = block.sublayer
            if isinstance(part, FeedForward):
                dense = part.intermediate
            else:
                dense = part.kv if isinstance(part, CrossAttention) else part.qkv
            if len(dense.names) > 1:
                for kind in ("weight", "bias") if dense.bias else ("weight",):
                    yield [f"{prefix}{name}.{kind}" for name in dense.names]


class Parts:
    """Builds the classes of `training` for the parts of a blueprint, whose names follow `prefix` in
    the module of `flat`.

    `max_length`: positions that RoPE tables are made for. Raises Unsupported for what cannot be
    trained, ConfigurationError where a parameter has another shape than in the blueprint.
    """

    def __init__(
        self, flat: FlatParameters, prefix: str, dropouts: Dropouts, max_length: int
    ) -> None:
        self._flat = flat
        self._prefix = prefix
        self._dropouts = dropouts
        self._max_length = max_length
        self._angles: dict[Rope, tuple[Tensor, Tensor, Tensor]] = {}
        # Offset of each weight -> the names of the parameters that it consists of.
        self.weights: dict[int, list[str]] = {}
        # In the order of the numbers by which attentions refer to them.
        self.biases: list[TrainedBias] = []
        self._bias_numbers: dict[PositionBias, int] = {}

    def stack(self, layers: Sequence[Layer], final_norm: Norm | None) -> training.Stack:
        parallel = {layer.parallel for layer in layers}
        if len(parallel) > 1:
            raise Unsupported("layers", "some with parallel blocks", "all or none", _THERE)
        return training.Stack(
            [[self._block(block) for block in layer.blocks] for layer in layers],
            self._norm(final_norm),
            parallel.pop(),
        )

    def names(self, *parts: Layer | Norm) -> list[str]:
        """The names of all parameters of the parts, including tables of position biases."""
        return [f"{self._prefix}{name}" for name in tensors_of(*parts)]

    def _block(self, block: Block) -> training.Block:
        dropouts = self._dropouts
        part = block.sublayer
        is_attention = not isinstance(part, FeedForward)
        return training.Block(
            self._sublayer(part),
            input_norm=self._norm(block.input_norm),
            output_norm=self._norm(block.output_norm),
            residual_norm=self._norm(block.residual_norm),
            dropout=dropouts.attention_output if is_attention else dropouts.feed_forward_output,
        )

    def _sublayer(self, part: Attention | CrossAttention | FeedForward) -> training.Sublayer:
        if isinstance(part, Attention):
            return self._attention(part)
        if isinstance(part, CrossAttention):
            return self._cross_attention(part)
        return self._feed_forward(part)

    def _cross_attention(self, part: CrossAttention) -> training.CrossAttention:
        return training.CrossAttention(
            q=self._linear(part.q),
            kv=self._linear(part.kv),
            output=self._linear(part.output),
            heads=part.heads,
            scale=part.scale,
            dropout=self._dropouts.attention,
        )

    def _attention(self, part: Attention) -> training.Attention:
        return training.Attention(
            qkv=self._linear(part.qkv),
            output=self._linear(part.output),
            heads=part.heads,
            kv_heads=part.kv_heads,
            left=part.left,
            right=part.right,
            scale=part.scale,
            soft_cap=part.soft_cap,
            dropout=self._dropouts.attention,
            q_norm=self._norm(part.q_norm),
            k_norm=self._norm(part.k_norm),
            rope=None if part.rope is None else self._rope(part.rope),
            position_bias=None if part.position_bias is None else self._bias(part.position_bias),
        )

    def _feed_forward(self, part: FeedForward) -> training.FeedForward:
        return training.FeedForward(
            intermediate=self._linear(part.intermediate),
            output=self._linear(part.output),
            activation=part.activation,
            gated=part.gated,
            dropout=self._dropouts.activation,
        )

    def _norm(self, norm: Norm | None) -> training.Norm | None:
        if norm is None:
            return None
        if norm.scale != 1:
            raise Unsupported(norm.name, "a weight that is stored otherwise", "itself", _THERE)
        shape = (norm.size,)
        return training.Norm(
            self._place([f"{norm.name}.weight"], shape),
            self._place([f"{norm.name}.bias"], shape) if norm.bias else None,
            norm.eps,
            norm.kind,
            norm.one_plus,
        )

    def _linear(self, dense: Dense) -> training.Linear:
        plain = not dense.row_scale and not dense.averaged
        if not plain or dense.weight_scale != 1 or dense.bias_scale != 1 or dense.bias_row:
            raise Unsupported(dense.names[0], "a weight that is stored otherwise", "itself", _THERE)
        if dense.activation != "none" or dense.norm is not None:
            raise Unsupported(dense.names[0], "an activation or a norm of it", "none", _THERE)
        if dense.transposed and len(dense.names) > 1:
            raise Unsupported(dense.names[0], "transposed weights side by side", "one", _THERE)
        shape = (dense.outputs, dense.inputs)
        weights = [f"{name}.weight" for name in dense.names]
        biases = [f"{name}.bias" for name in dense.names]
        place = self._place(weights, shape[::-1] if dense.transposed else shape)
        self.weights[self._offset(weights[0])] = [f"{self._prefix}{name}" for name in weights]
        return training.Linear(
            place,
            self._place(biases, (dense.outputs,)) if dense.bias else None,
            transposed=dense.transposed,
            rows=self._rows(dense) if dense.by_head else None,
        )

    def _rows(self, dense: Dense) -> Tensor:
        """The row of each output in the stored weight, in which q, k and v of one head are
        adjacent."""
        stored = np.arange(dense.outputs, dtype=np.int64).reshape(dense.by_head, 3, -1)
        rows = np.ascontiguousarray(stored.swapaxes(0, 1).reshape(-1))
        return upload(Tensor.from_numpy(rows), "weights", stream_of(self._flat.values.device))

    def _rope(self, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """cos, sin and -sin, shared by all layers."""
        if rope not in self._angles:
            cos, sin = rope.table(self._max_length)
            stream = stream_of(self._flat.values.device)
            cos, sin, negative_sin = (
                upload(Tensor.from_numpy(table), "weights", stream) for table in (cos, sin, -sin)
            )
            self._angles[rope] = cos, sin, negative_sin
        return self._angles[rope]

    def _bias(self, bias: PositionBias) -> int:
        if bias not in self._bias_numbers:
            self._bias_numbers[bias] = len(self.biases)
            self.biases.append(TrainedBias(self._flat, self._prefix, bias))
        return self._bias_numbers[bias]

    def _offset(self, name: str) -> int:
        return self._flat.offset(f"{self._prefix}{name}")

    def _place(self, names: Sequence[str], shape: tuple[int, ...]) -> training.Parameter:
        """Parameters that are adjacent in the buffer as one: a matrix, concatenated by rows, or a
        vector."""
        start = end = self._offset(names[0])
        for name in names:
            parameter = self._flat.parameter(f"{self._prefix}{name}")
            if self._offset(name) != end or parameter.shape[1:] != shape[1:]:
                raise ConfigurationError(
                    f"{self._prefix}{name}: got {list(parameter.shape)} at {self._offset(name)}, "
                    f"wanted rows of {list(shape)} at {end}; leave the model as config.json has it"
                )
            end += parameter.numel()
        numbers = 1
        for size in shape:
            numbers *= size
        if end - start != numbers:
            raise ConfigurationError(
                f"{self._prefix}{names[0]}: got {end - start} numbers, wanted {list(shape)}; leave "
                "the model as config.json has it"
            )
        return training.Parameter(start, shape)
