"""Rotary angles of every scaling are those of transformers; what a cache cannot hold is
rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fusewire.errors import CheckpointError
from fusewire.models.config import Config
from fusewire.models.rope import Rope, unscaled
from fusewire.models.rope_config import TYPES, read_rope, rope_of_layer_type
from transformers import GPTNeoXConfig, LlamaConfig, ModernBertConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from tests.tolerance import COSINE

LONGEST = 4096


def long_and_short(pairs: int) -> dict[str, list[float]]:
    return {
        "short_factor": [1 + 0.05 * pair for pair in range(pairs)],
        "long_factor": [1 + 1.7 * pair for pair in range(pairs)],
    }


SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.7},
    {"rope_type": "dynamic", "factor": 2.3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 512, "truncate": False},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 1.3,
        "mscale_all_dim": 0.7,
    },
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 2048,
        "attention_factor": 1.21,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
]


def table_of(values: dict[str, Any], head_dim: int, **how: Any) -> tuple[Rope, Any]:
    rope = read_rope(Config(values), head_dim, **how)
    return rope, rope.table(values["max_position_embeddings"])


def assert_same(ours: Any, rotary: torch.nn.Module, positions: int, *more: str) -> None:
    theirs = rotary(torch.zeros(1), torch.arange(positions)[None], *more)
    for got, wanted in zip(ours, theirs, strict=True):
        assert got.dtype == np.float32
        half = wanted[0, :, : wanted.shape[2] // 2]
        np.testing.assert_allclose(got[:positions], half, atol=COSINE, rtol=COSINE)


def llama(head_dim: int, scaling: dict[str, Any], theta: float = 10_000.0) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        max_position_embeddings=LONGEST,
        rope_parameters={"rope_theta": theta, **scaling},
    )


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 1_000_000])
@pytest.mark.parametrize("head_dim", [6, 64, 80, 128])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: "-".join(map(str, scaling)))
def test_angles_of_every_scaling(scaling, head_dim, theta):
    config = llama(head_dim, scaling, theta)
    _, ours = table_of(config.to_dict(), head_dim)
    assert_same(ours, LlamaRotaryEmbedding(config), LONGEST)


@pytest.mark.parametrize("scaling", SCALINGS[1:], ids=lambda scaling: "-".join(map(str, scaling)))
def test_frequencies_are_equal_to_the_bit(scaling):
    config = llama(128, scaling, 500_000.0)
    rope, _ = table_of(config.to_dict(), 128)
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
    np.testing.assert_array_equal(np.float32(rope.frequencies), frequencies.numpy())
    assert rope.magnitude == pytest.approx(magnitude, rel=1e-15)


def test_angles_hold_to_position_131071():
    config = llama(128, SCALINGS[-1], 500_000.0)
    rope, _ = table_of(config.to_dict(), 128)
    assert_same(rope.table(131_072), LlamaRotaryEmbedding(config), 131_072)


@pytest.mark.parametrize("head_dim", [6, 32, 64, 80])
def test_angles_of_encoders(head_dim):
    config = ModernBertConfig(hidden_size=head_dim, num_attention_heads=1)
    for kind, parameters in config.rope_parameters.items():
        rope = Rope.of(unscaled(parameters["rope_theta"], head_dim))
        assert_same(rope.table(8192), ModernBertRotaryEmbedding(config), 8192, kind)


@pytest.mark.parametrize(("head_dim", "share"), [(64, 0.25), (20, 0.25), (64, 1.0), (48, 0.4)])
def test_a_part_of_a_head_turns(head_dim, share):
    config = GPTNeoXConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        max_position_embeddings=LONGEST,
        rotary_pct=share,
    )
    rope, ours = table_of(config.to_dict(), head_dim, partial=True)
    assert 2 * len(rope.frequencies) <= head_dim
    assert_same(ours, GPTNeoXRotaryEmbedding(config), LONGEST)


def phi3(**scaling: Any) -> Phi3Config:
    return Phi3Config(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=LONGEST,
        original_max_position_embeddings=256,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10_000.0, **scaling},
    )


@pytest.mark.parametrize("more", [{}, {"attention_factor": 1.19}, {"factor": 32.0}])
def test_longrope_is_exact_up_to_the_original_length_and_ends_there(more):
    config = phi3(**long_and_short(16), **more)
    rope, ours = table_of(config.to_dict(), 32)
    assert rope.max_length == 256
    assert_same(ours, Phi3RotaryEmbedding(config), 256)
    # With one token more, transformers rotates all of them by other angles, which invalidates
    # cached keys.
    cos, _ = Phi3RotaryEmbedding(config)(torch.zeros(1), torch.arange(257)[None])
    assert np.abs(ours[0][:256] - cos[0, :256, :16].numpy()).max() > 0.1


def test_dynamic_angles_are_the_unscaled_ones_up_to_the_longest_sequence():
    scaling = {"rope_type": "dynamic", "factor": 2.3}
    config = llama(64, scaling)
    rope, ours = table_of(config.to_dict(), 64)
    assert rope == Rope.of(unscaled(10_000.0, 64))
    # With one token more, transformers rotates all of them by other angles, which invalidates
    # cached keys.
    longer = torch.arange(LONGEST + 64)[None]
    cos, _ = LlamaRotaryEmbedding(config)(torch.zeros(1), longer)
    assert np.abs(ours[0] - cos[0, :LONGEST, :32].numpy()).max() > 0.1


def test_older_names_mean_the_same():
    newer = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    older = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5}
    assert read_rope(Config(newer), 64) == read_rope(Config(older), 64)


LLAMA3 = SCALINGS[-1]
REFUSED = [
    ({"rope_type": "ntk", "factor": 2.0}, "rope_type: got 'ntk', wanted one of default"),
    ({"type": 3}, "type: got 3, wanted one of default"),
    ({"rope_type": "linear"}, "factor: got nothing"),
    ({"rope_type": "linear", "factor": -1}, "factor: got -1, wanted a positive number"),
    ({"rope_type": "linear", "factor": "2"}, "factor: got '2', wanted a positive number"),
    ({"rope_type": "default", "mrope_section": [1]}, r"mrope_section: got \[1\], wanted only"),
    ({"rope_type": "default", "rope_theta": 0}, "rope_theta: got 0, wanted a positive number"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5, wanted 1 in this"),
    ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor: got 1.0, wanted more than 1.0"),
    ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor: got nothing"),
    ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "truncate: got 1, wanted true or false"),
    (
        {"rope_type": "longrope", **long_and_short(16), "short_factor": [1.0]},
        r"short_factor: got \[1.0\], wanted 16 positive numbers",
    ),
    (
        {"rope_type": "longrope", **long_and_short(16), "long_factor": [0.0] * 16},
        r"long_factor: got \[0.0, .*, wanted 16 positive numbers",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_parameters_that_are_not_understood_are_refused(key, given, message):
    config = Config({"max_position_embeddings": 512, key: given})
    with pytest.raises(CheckpointError, match=rf"^config.json: {key}.{message}"):
        read_rope(config, 32)


def test_parameters_are_an_object():
    with pytest.raises(CheckpointError, match="rope_scaling: got 'linear', wanted an object"):
        read_rope(Config({"rope_scaling": "linear"}), 32)
    with pytest.raises(CheckpointError, match=r"rope_parameters: got .*, wanted an object by"):
        rope_of_layer_type(Config({"rope_parameters": {"rope_type": "x"}}), 32, TYPES[0], 1e4)


def test_a_head_of_an_odd_size_does_not_turn():
    with pytest.raises(CheckpointError, match="head_dim: got 7, wanted an even size"):
        read_rope(Config({}), 7)
