"""A conversation in the terminal with a model on a server; an empty line or Ctrl-D ends it.

    fusewire serve MODEL
    python examples/chat.py [ADDRESS] [MODEL NAME]

ADDRESS is the server's gRPC address. The model's folder has a chat template.
"""

from __future__ import annotations

import contextlib
import sys

from fusewire_client import Client


def main(address: str = "localhost:8001", model: str | None = None) -> None:
    messages: list[dict[str, str]] = []
    with Client(address, model=model) as client, contextlib.suppress(EOFError):
        while text := input("> "):
            messages.append({"role": "user", "content": text})
            answer = ""
            for piece in client.chat(messages, stream=True, max_new_tokens=64):
                print(piece, end="", flush=True)
                answer += piece
            print()
            messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main(*sys.argv[1:])
