"""One of the processes that train a model of SEGMENTS layers together, each a segment: FOLDER
DEVICE.

What happened in one backward pass, in the order of the host, goes to FOLDER/RANK.pt: the event, the
segment (from the lowest) or bucket of gradients (from the first) that it is of, and the
milliseconds, on a GPU by the device's clock.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from fusewire.train import replace
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tests.train.processes import meet, part

SEGMENTS = 4
# On a GPU large enough for a segment to take longer than its gradients.
HIDDEN = {"cpu": 32, "cuda": 1024}
ROWS, LENGTH = {"cpu": 8, "cuda": 128}, {"cpu": 12, "cuda": 128}


class Log:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._entries: list[tuple[str, int, Any]] = []
        self.clear()

    def clear(self) -> None:
        self._entries.clear()
        self._begin = self._now()

    def add(self, event: str, number: int) -> None:
        self._entries.append((event, number, self._now()))

    def count(self, event: str) -> int:
        return sum(entry[0] == event for entry in self._entries)

    def entries(self) -> list[tuple[str, int, float]]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return [(e, number, self._begin.elapsed_time(at)) for e, number, at in self._entries]
        return [(e, number, 1e3 * (at - self._begin)) for e, number, at in self._entries]

    def _now(self) -> Any:
        """A moment of the current stream."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Watched:
    """A segment's stack whose backward pass is in the log."""

    def __init__(self, stack: Any, number: int, log: Log) -> None:
        self._stack, self._number, self._log = stack, number, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def backward(self, *arguments: Any, **others: Any) -> None:
        self._log.add("computes", self._number)
        self._stack.backward(*arguments, **others)
        self._log.add("computed", self._number)


def main(folder: Path, device: str) -> None:
    rank, _, own_device = meet(device)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=HIDDEN[device],
        num_hidden_layers=SEGMENTS,
        num_attention_heads=HIDDEN[device] // 16,
        intermediate_size=4 * HIDDEN[device],
        max_position_embeddings=LENGTH[device],
    )
    model = transformers.BertForSequenceClassification(config).to(own_device)
    model = replace(model, segments=SEGMENTS)
    log = Log(own_device)
    for number, segment in enumerate(model.bert.fusewire.segments):
        segment.stack = Watched(segment.stack, number, log)
    layer = sum(4 * p.numel() for p in model.bert.encoder.layer[0].parameters())
    parallel = DistributedDataParallel(model, bucket_cap_mb=layer / 2**20)

    def send(_, bucket):  # torch reads annotations of hooks, and takes them for strings here
        number = log.count("sends")
        log.add("sends", number)

        def sent(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            log.add("sent", number)
            return future.value()

        return allreduce_hook(distributed.group.WORLD, bucket).then(sent)

    parallel.register_comm_hook(None, send)
    ids = torch.randint(1, 40, (ROWS[device], LENGTH[device]), device=own_device)
    for _ in range(3):  # buckets are made anew behind the first, in the order of gradients
        log.clear()
        parallel(input_ids=ids, labels=ids[:, 0] % 2).loss.backward()
    torch.save(log.entries(), folder / f"{rank}.pt")
    part()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
