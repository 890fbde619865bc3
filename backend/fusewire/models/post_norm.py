"""The parts that BERT and its relatives have in common; their files differ only in names and
order."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.models.blueprint import (
    Attention,
    Block,
    Embeddings,
    FeedForward,
    Head,
    Layer,
    PositionBias,
)
from fusewire.models.config import Config
from fusewire.models.stored_weights import Dense, Norm, Table

WORD = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class LayerNames:
    """The names of a post-norm layer's weights, relative to the layer's prefix."""

    qkv: tuple[str, str, str]
    attention_output: str
    attention_norm: str
    intermediate: str
    output: str
    output_norm: str


# hidden size, heads, intermediate size, activation, eps of norms
Sizes = tuple[int, int, int, str, float]


def post_norm_layer(
    root: str, names: LayerNames, sizes: Sizes, position_bias: PositionBias | None = None
) -> Layer:
    """Builds the layer x = norm(x + attention(x)); x = norm(x + feed_forward(x)), with biases
    everywhere."""
    hidden, heads, intermediate, activation, eps = sizes
    attention = Attention(
        qkv=Dense(tuple(f"{root}.{name}" for name in names.qkv), hidden, 3 * hidden),
        output=Dense((f"{root}.{names.attention_output}",), hidden, hidden),
        heads=heads,
        position_bias=position_bias,
    )
    feed_forward = FeedForward(
        intermediate=Dense((f"{root}.{names.intermediate}",), hidden, intermediate),
        output=Dense((f"{root}.{names.output}",), intermediate, hidden),
        activation=activation,
    )
    return Layer(
        (
            Block(attention, residual_norm=Norm(f"{root}.{names.attention_norm}", hidden, eps)),
            Block(feed_forward, residual_norm=Norm(f"{root}.{names.output_norm}", hidden, eps)),
        )
    )


def post_norm_layers(
    config: Config, names: LayerNames, position_bias: PositionBias | None = None
) -> tuple[Layer, ...]:
    """Builds all layers of an architecture whose config.json has BERT's keys."""
    hidden, heads = config.width()
    intermediate = config.size("intermediate_size")
    activation = config.activation("hidden_act", "gelu")
    sizes = hidden, heads, intermediate, activation, config.number("layer_norm_eps", 1e-12)
    return tuple(
        post_norm_layer(f"encoder.layer.{index}", names, sizes, position_bias)
        for index in range(config.size("num_hidden_layers", most=4096))
    )


def summed_embeddings(
    config: Config,
    columns: int,
    eps: float,
    *,
    typed: bool,
    projection: Dense | None = None,
    padding_index: int | None = None,
) -> Embeddings:
    """Builds normalised token embedding + learned position (+ token type)."""
    types = config.size("type_vocab_size", 2, most=1 << 16) if typed else 0
    return Embeddings(
        word=Table(WORD, config.size("vocab_size"), columns),
        position=Table(
            "embeddings.position_embeddings.weight", config.size("max_position_embeddings"), columns
        ),
        token_type=Table("embeddings.token_type_embeddings.weight", types, columns)
        if typed
        else None,
        norm=Norm("embeddings.LayerNorm", columns, eps),
        projection=projection,
        padding_index=padding_index,
    )


def label_count(config: Config) -> int:
    return len(config.labels())


def first_token_head(first: str, activation: str, last: str, hidden: int, labels: int) -> Head:
    """Builds the head last(activation(first(x of the first token)))."""
    return Head(
        "cls", (Dense((first,), hidden, hidden, activation=activation), _out(last, hidden, labels))
    )


def token_heads(hidden: int, labels: int) -> dict[str, Head]:
    """Builds heads of one linear layer over every token: tagging and extractive question
    answering."""
    return {
        "tag": Head(None, (_out("classifier", hidden, labels),)),
        "answer": Head(None, (_out("qa_outputs", hidden, 2),)),
    }


def pooler(name: str, hidden: int) -> Head:
    """Builds tanh(dense(x of the first token)): the `pooler_output` of base models."""
    return Head("cls", (Dense((name,), hidden, hidden, activation="tanh"),))


def vocabulary_head(
    transform: str, activation: str, norm: Norm, decoder: str, hidden: int, vocabulary: int
) -> Head:
    """Builds decoder(norm(activation(transform(x)))): masked language modelling."""
    first = Dense((transform,), hidden, norm.size, activation=activation, norm=norm)
    return Head(None, (first, _out(decoder, norm.size, vocabulary)))


def tied(config: Config, decoder: str, bias: str | None = None) -> dict[str, str]:
    """Returns the aliases of a masked-language decoder: its weight is the token embeddings unless
    config.json says otherwise; its bias may be stored with the head's own name."""
    aliases = {f"{decoder}.bias": bias} if bias else {}
    if config.flag("tie_word_embeddings", True):
        aliases[f"{decoder}.weight"] = WORD
    return aliases


def _out(name: str, inputs: int, outputs: int) -> Dense:
    return Dense((name,), inputs, outputs)
