"""Whisper (Radford et al., 2022) and Distil-Whisper (Gandhi et al., 2023): convolutions over
log-mel frames of audio before the encoder, pre-norm with a final norm, keys without a bias."""

from __future__ import annotations

from fusewire.models.bart_family import layer_of, norm_of
from fusewire.models.blueprint import Blueprint, Convolution, Embeddings, Frames, Head, Stack
from fusewire.models.config import Config
from fusewire.models.stored_weights import Dense, Table, Values
from fusewire.models.target_tokens import TargetTokens

_STRIDES = (1, 2)
_TOKENS = "decoder.embed_tokens.weight"


def blueprint(config: Config) -> Blueprint:
    hidden, vocab_size = config.size("d_model"), config.size("vocab_size")
    sources, targets = config.size("max_source_positions"), config.size("max_target_positions")
    target = TargetTokens(decoder_start=50257, bos=50256)
    return Blueprint(
        prefix="model",
        stack=_stack(
            config,
            "decoder",
            targets,
            Embeddings(Table(_TOKENS, vocab_size, hidden), _positions("decoder", targets, hidden)),
        ),
        encoder=_stack(config, "encoder", sources, _frames(config, sources, hidden)),
        task_heads={
            "generate": Head(None, (Dense(("proj_out",), hidden, vocab_size, bias=False),))
        },
        unread=(),
        aliases={"proj_out.weight": _TOKENS} if config.flag("tie_word_embeddings", True) else {},
        eos_token_ids=config.token_ids("eos_token_id", 50256),
        target=target.where_given(config),
    )


def _stack(config: Config, side: str, positions: int, embeddings: Embeddings | Frames) -> Stack:
    layers = config.size(f"{side}_layers", most=4096)
    return Stack(
        hidden_size=config.size("d_model"),
        max_length=positions,
        embeddings=embeddings,
        layers=tuple(
            layer_of(config, side, index, pre_norm=True, unbiased=("k_proj",))
            for index in range(layers)
        ),
        final_norm=norm_of(config, f"{side}.layer_norm"),
    )


def _frames(config: Config, positions: int, hidden: int) -> Frames:
    bins = config.size("num_mel_bins")
    convolutions = [
        Convolution(
            Values(f"encoder.conv{place}.weight", (hidden, inputs, 3)),
            Values(f"encoder.conv{place}.bias", (hidden,)),
            stride,
        )
        for place, inputs, stride in zip((1, 2), (bins, hidden), _STRIDES, strict=True)
    ]
    table = _positions("encoder", positions, hidden)
    return Frames(_STRIDES[1] * positions, bins, tuple(convolutions), table)


def _positions(side: str, rows: int, hidden: int) -> Table:
    return Table(f"{side}.embed_positions.weight", rows, hidden)
