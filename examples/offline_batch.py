"""Generates a text for each line of a JSONL file and writes another: a batch without a server.

    python examples/offline_batch.py MODEL PROMPTS.jsonl ANSWERS.jsonl

Each line of PROMPTS has a "prompt". Its line in ANSWERS has the same fields, and "text",
"finish_reason" and "output_tokens".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fusewire


def main(model: str, prompts: str, answers: str) -> None:
    rows = [json.loads(line) for line in Path(prompts).read_text().splitlines()]
    with fusewire.LLM(model) as llm:
        outputs = llm.generate([row["prompt"] for row in rows], max_new_tokens=32)
    with Path(answers).open("w") as file:
        for row, output in zip(rows, outputs, strict=True):
            (answer,) = output.outputs
            row |= {
                "text": answer.text,
                "finish_reason": answer.finish_reason,
                "output_tokens": output.usage.completion_tokens,
            }
            file.write(json.dumps(row) + "\n")
    print(f"{len(rows)} answers in {answers}")


if __name__ == "__main__":
    main(*sys.argv[1:])
