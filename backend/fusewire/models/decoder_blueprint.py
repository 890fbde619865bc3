"""What an architecture file states of a decoder: data, as `blueprint.py` has it for encoders.

`decoder.py` reads it to check a checkpoint, build the layers and run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusewire.models.blueprint import Dense, Norm, Table, tensors_of
from fusewire.models.rope import Rope


@dataclass(frozen=True)
class TokenEmbeddings:
    """word * scale + position; the words go through a projection first where they are narrower."""

    word: Table
    position: Table | None = None
    projection: Dense | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class DecoderLayer:
    """One layer. qkv rows are q | k | v; intermediate rows are gate | up where it is gated.

    `q_norm`, `k_norm`: of each head, before the angles. `…_post_norm`: of a part's output, before
    it is added. `window`: a token sees itself and the window - 1 before it, 0 for all before it.
    `scale` of the attention scores, 0 for 1 / sqrt(head_dim).
    """

    qkv: Dense
    attention_output: Dense
    attention_norm: Norm
    intermediate: Dense
    output: Dense
    output_norm: Norm
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    attention_post_norm: Norm | None = None
    output_post_norm: Norm | None = None
    window: int = 0
    scale: float = 0.0
    rope: Rope | None = None


@dataclass(frozen=True)
class DecoderBlueprint:
    """A decoder with its language-modelling head."""

    prefix: str
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    activation: str
    norm: str  # layer_norm or rms_norm
    norm_eps: float
    embeddings: TokenEmbeddings
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm | None
    head: tuple[Dense, ...]  # the last one's outputs are the vocabulary
    max_length: int
    eos_token_ids: tuple[int, ...]
    gated: bool = False
    pre_norm: bool = True
    parallel: bool = False  # attention and feed-forward both read the layer's input
    soft_cap: float = 0.0  # of attention scores, 0 for none
    final_soft_cap: float = 0.0  # of logits, 0 for none
    aliases: Mapping[str, str] = field(default_factory=dict)  # name -> the name that is stored
    unread: tuple[str, ...] = ()  # name prefixes of tensors that are known and not needed

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that is read, with its shape."""
        return tensors_of(self.embeddings, self.layers, self.final_norm, self.head)


def language_head(
    word: str, width: int, vocabulary: int, tied: bool, stored: str = "lm_head"
) -> tuple[tuple[Dense, ...], dict[str, str]]:
    """The head without a bias, and its aliases. `word` is the name of the word embeddings, whose
    weight it is where the two are tied, under whichever of the names; `stored` what older files
    call the head."""
    name = word if tied else "lm_head"
    other = "lm_head" if tied else stored
    aliases = {} if name == other else {f"{name}.weight": f"{other}.weight"}
    return (Dense((name,), width, vocabulary, bias=False),), aliases
