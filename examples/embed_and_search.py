"""Embeds a few passages and finds those that answer a query: semantic search in memory.

    python examples/embed_and_search.py [MODEL] [QUERY]

MODEL is a folder or a Hugging Face id.
"""

from __future__ import annotations

import sys

import fusewire

PASSAGES = [
    "Knead the dough for ten minutes, let it rise, then bake it for half an hour.",
    "The rocket left the launch pad at dawn and put a weather satellite into orbit.",
    "A kitten is napping on the couch, curled up between two cushions.",
    "Interest rates rose by a quarter of a percentage point.",
    "The cellist tuned her instrument and waited for the conductor.",
]


def main(
    model: str = "sentence-transformers/all-MiniLM-L6-v2", query: str = "How do I make bread?"
) -> None:
    embedder = fusewire.Embedder(model)
    passages = embedder.encode_document(PASSAGES)  # float32 [5, dim]
    question = embedder.encode_query(query)  # float32 [dim]
    (scores,) = embedder.similarity(question, passages)
    for index in scores.argsort()[::-1][:3]:
        print(f"{scores[index]:.3f}  {PASSAGES[index]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
