"""The parts BERT and its relatives have in common; their files differ in names and order only."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.models.blueprint import Dense, Embeddings, Head, Layer, Norm, Table
from fusewire.models.config import Config

WORD = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class LayerNames:
    """Where a post-norm layer keeps its weights, below the layer's own prefix."""

    qkv: tuple[str, str, str]
    attention_output: str
    attention_norm: str
    intermediate: str
    output: str
    output_norm: str


def post_norm_layer(
    root: str, names: LayerNames, hidden: int, intermediate: int, eps: float
) -> Layer:
    """x = norm(x + attention(x)); x = norm(x + feed_forward(x)), all with biases."""
    return Layer(
        qkv=Dense(tuple(f"{root}.{name}" for name in names.qkv), hidden, 3 * hidden),
        attention_output=Dense((f"{root}.{names.attention_output}",), hidden, hidden),
        attention_norm=Norm(f"{root}.{names.attention_norm}", hidden, eps),
        intermediate=Dense((f"{root}.{names.intermediate}",), hidden, intermediate),
        output=Dense((f"{root}.{names.output}",), intermediate, hidden),
        output_norm=Norm(f"{root}.{names.output_norm}", hidden, eps),
    )


def summed_embeddings(
    config: Config, columns: int, eps: float, *, typed: bool, projection: Dense | None = None
) -> Embeddings:
    """word + learned position (+ token type), normalised."""
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
    )


def label_count(config: Config) -> int:
    return len(config.labels())


def first_token_head(first: str, activation: str, last: str, hidden: int, labels: int) -> Head:
    """last(activation(first(x of the first token)))."""
    return Head(
        "cls", (Dense((first,), hidden, hidden, activation=activation), _out(last, hidden, labels))
    )


def token_heads(hidden: int, labels: int) -> dict[str, Head]:
    """One plain linear layer over every token: tagging and extractive question answering."""
    return {
        "tag": Head(None, (_out("classifier", hidden, labels),)),
        "answer": Head(None, (_out("qa_outputs", hidden, 2),)),
    }


def pooler(name: str, hidden: int) -> Head:
    """tanh(dense(x of the first token)): the `pooler_output` of base models."""
    return Head("cls", (Dense((name,), hidden, hidden, activation="tanh"),))


def vocabulary_head(
    transform: str, activation: str, norm: Norm, decoder: str, hidden: int, vocabulary: int
) -> Head:
    """decoder(norm(activation(transform(x)))): masked language modelling."""
    first = Dense((transform,), hidden, norm.size, activation=activation, norm=norm)
    return Head(None, (first, _out(decoder, norm.size, vocabulary)))


def tied(config: Config, decoder: str, bias: str | None = None) -> dict[str, str]:
    """Aliases of a masked-language decoder: its weight is the word table's unless the checkpoint
    says otherwise; its bias may be stored under the head's own name."""
    aliases = {f"{decoder}.bias": bias} if bias else {}
    if config.flag("tie_word_embeddings", True):
        aliases[f"{decoder}.weight"] = WORD
    return aliases


def _out(name: str, inputs: int, outputs: int) -> Dense:
    return Dense((name,), inputs, outputs)
