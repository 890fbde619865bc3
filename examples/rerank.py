"""Sorts documents by how well they answer a query, with a cross-encoder.

    python examples/rerank.py [MODEL] [QUERY]

MODEL is a folder or a Hugging Face id of a classifier with one label.
"""

from __future__ import annotations

import sys

import fusewire

DOCUMENTS = [
    "Berlin has a population of 3.7 million people within the city limits.",
    "Berlin is well known for its museums.",
    "The population of New York City was 8.8 million in 2020.",
]


def main(
    model: str = "cross-encoder/ms-marco-MiniLM-L6-v2",
    query: str = "How many people live in Berlin?",
) -> None:
    reranker = fusewire.Reranker(model)
    for found in reranker.rank(query, DOCUMENTS, return_documents=True):
        print(f"{found['score']:.3f}  {found['text']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
