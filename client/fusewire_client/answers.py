"""The return types of the methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Classification:
    """`scores`: float32 [labels], in the order of the model's labels, or of those to choose from;
    `label`: the server's choice."""

    label: str
    scores: np.ndarray


@dataclass(frozen=True)
class Entity:
    """A tagged piece of text; `start` and `end` count characters of the text."""

    entity: str
    word: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answer:
    """A span of the context; `start` and `end` count characters of the context."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Candidate:
    """One token for a mask; `sequence` is the text with the token in it."""

    token: str
    token_id: int
    score: float
    sequence: str


@dataclass(frozen=True)
class Ranked:
    """A document's index in the given list, its score and itself."""

    corpus_id: int
    score: float
    text: str


@dataclass(frozen=True)
class Usage:
    """Tokens of a prompt, those of them that came from the prefix cache, and those generated."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability at its position; `rank` 1 is the likeliest of the vocabulary,
    None where beam search took it."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True)
class Alignment:
    """How much each token of a text attends to each of its source: `weights` float32 [tokens,
    source tokens], rows that sum to 1; argmax(axis=1) is the source token of each."""

    source_ids: list[int]
    token_ids: list[int]
    weights: np.ndarray


@dataclass(frozen=True)
class Word:
    """A word with the space and punctuation beside it, said from `start` on until `end`, in
    seconds."""

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """What was said from `start` on until `end`, in seconds; None where no timestamp says so.
    `words`: where they were asked for. The rest is of the window that it was heard in, from frame
    `seek` (of 10 ms) of the sound on: `avg_logprob` of its tokens, and where thresholds of fallback
    asked for them the `temperature` and `no_speech_prob`, the probability that nothing is said."""

    start: float | None
    end: float | None
    text: str
    words: list[Word] | None = None
    seek: int | None = None
    avg_logprob: float | None = None
    temperature: float | None = None
    no_speech_prob: float | None = None


@dataclass(frozen=True)
class Generated:
    """A generated text, or a piece of it as it comes.

    `finish_reason`: `stop` or `length`; None of a piece that others follow. `usage` of
    a piece counts its own tokens. `cumulative_logprob` counts from the beginning. `logprobs`: of
    each token, by token id, where requested; `prompt_logprobs` of each token of the
    prompt, None for the first, with the first piece. `index`: which of n texts. `score`, of texts
    that beam search found, with their last piece: cumulative_logprob / tokens ** length_penalty.
    `alignment`, of encoder-decoder models, with the last piece where it was asked for. Of sound
    `segments` where timestamps were asked for, with the last piece or, of long sound, with those
    that complete them, and the `language`, of a model
    that knows several.
    """

    text: str
    finish_reason: str | None
    usage: Usage
    cumulative_logprob: float
    logprobs: list[dict[int, Logprob]] | None = None
    index: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    score: float | None = None
    alignment: Alignment | None = None
    segments: list[Segment] | None = None
    language: str | None = None


# The output that tells which task a model does.
TASK_OF_OUTPUT = {
    "embedding": "embed",
    "last_hidden_state": "hidden",
    "entities": "tag",
    "answer": "answer",
    "candidates": "fill",
    "scores": "classify",
    "text_output": "generate",
}


@dataclass(frozen=True)
class ModelInfo:
    """A loaded model. `task` is None where the outputs are none of fusewire's."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def task(self) -> str | None:
        tasks = [TASK_OF_OUTPUT[name] for name in self.outputs if name in TASK_OF_OUTPUT]
        if tasks == ["classify"] and "image" in self.inputs:
            return "label"
        if tasks == ["generate"] and "audio" in self.inputs:
            return "transcribe"
        return tasks[0] if len(tasks) == 1 else None

    def does(self, task: str) -> bool:
        """Whether it does the task. Those that write after a source align it with their text."""
        if task in ("translate", "summarise"):
            return self.task == "generate" and "alignment" in self.outputs
        return self.task == ("generate" if task == "chat" else task)


@dataclass(frozen=True)
class ModelStatistics:
    """The server's counters of one model version since it was loaded.

    `inferences` counts sequences, `requests` requests that succeeded, `executions` runs of the
    model; times are sums over requests. `batches` maps a batch size to its executions.
    """

    name: str
    version: str
    requests: int
    failures: int
    inferences: int
    executions: int
    queue_seconds: float
    compute_seconds: float
    batches: dict[int, int] = field(default_factory=dict)

    @property
    def mean_batch(self) -> float:
        """Sequences per execution; 0 before the first."""
        return self.inferences / self.executions if self.executions else 0.0

    @staticmethod
    def of(stats: dict[str, Any]) -> ModelStatistics:
        """From Triton's record, as JSON has it or as protobuf prints it (numbers as strings)."""
        times = stats.get("inference_stats", {})

        def count(name: str) -> int:
            return int(times.get(name, {}).get("count", 0))

        def seconds(name: str) -> float:
            return int(times.get(name, {}).get("ns", 0)) * 1e-9

        return ModelStatistics(
            name=stats["name"],
            version=str(stats.get("version", "")),
            requests=count("success"),
            failures=count("fail"),
            inferences=int(stats.get("inference_count", 0)),
            executions=int(stats.get("execution_count", 0)),
            queue_seconds=seconds("queue"),
            compute_seconds=seconds("compute_infer"),
            batches={
                int(b["batch_size"]): int(b.get("compute_infer", {}).get("count", 0))
                for b in stats.get("batch_stats", [])
            },
        )
