"""The return types of the client's methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Classification:
    """The label that the server chose for a text or image, and the scores of all labels.

    `scores`: float32 [labels], in the order of the model's labels, or of the candidate labels of
    the request.
    """

    label: str
    scores: np.ndarray


@dataclass(frozen=True)
class Entity:
    """An entity found in a text; `start` and `end` are offsets in characters."""

    entity: str
    word: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answer:
    """A span of the context; `start` and `end` are offsets in characters of the context."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Candidate:
    """One candidate token for a mask; `sequence` is the text with the token in place of the
    mask."""

    token: str
    token_id: int
    score: float
    sequence: str


@dataclass(frozen=True)
class Ranked:
    """A document with its score and its index in the given list."""

    corpus_id: int
    score: float
    text: str


@dataclass(frozen=True)
class Usage:
    """The numbers of prompt tokens, of those that came from the prefix cache, and of generated
    tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability at its position. `rank` is its rank in the vocabulary: 1 is the
    likeliest, None where beam search chose the token."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True)
class Alignment:
    """How much each generated token attends to each source token: `weights` is float32 [tokens,
    source tokens] and its rows sum to 1; argmax(axis=1) gives the source token of each generated
    token."""

    source_ids: list[int]
    token_ids: list[int]
    weights: np.ndarray


@dataclass(frozen=True)
class Word:
    """A word with adjacent space and punctuation, spoken between `start` and `end`, in seconds."""

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """The text spoken between `start` and `end`, in seconds; each is None where no timestamp tells
    it. `words` has its words where they were requested. The other fields describe the window that
    the segment was decoded in, which begins at frame `seek` (frames of 10 ms) of the audio:
    `avg_logprob` of its tokens and, where fallback thresholds need them, its `temperature` and
    `no_speech_prob`, the probability that it has no speech."""

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
    """A generated text, or a piece of it from a stream.

    `finish_reason` is `stop` or `length`, and None in a piece that others follow. `usage` of a
    piece counts its own tokens, `cumulative_logprob` all tokens from the beginning. `logprobs` has
    an entry for each token, by token id, where requested; `prompt_logprobs` one for each token of
    the prompt, None for the first, with the first piece. `index` tells which of n texts it is.
    `score` comes with the last piece of texts that beam search found: cumulative_logprob / tokens
    ** length_penalty. `alignment` comes with the last piece of encoder-decoder models where
    requested. For audio, `segments` come where timestamps were requested, with the last piece or,
    for long audio, with the piece that completes them, and `language` is set for models that know
    several.
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


# The output that identifies the task of a model.
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
    """A loaded model. `task` is None where its outputs are not those of a fusewire task."""

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
        """Returns whether the model does the task. Encoder-decoder models are identified by their
        output `alignment`."""
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
        """Returns the mean number of sequences per execution; 0 before the first."""
        return self.inferences / self.executions if self.executions else 0.0

    @staticmethod
    def of(stats: dict[str, Any]) -> ModelStatistics:
        """Reads Triton's record, as JSON or as protobuf prints it (with numbers as strings)."""
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
