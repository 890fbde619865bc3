"""Forks the processes that train together on CPUs: COUNT MODULE FOLDER ARGUMENTS...

torchrun has an interpreter of its own and one for each process, all of which import torch and
transformers: seconds each, where the training of a test takes less than one.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from multiprocessing import SimpleQueue
from pathlib import Path
from typing import Any, NoReturn

import transformers.modeling_utils  # noqa: F401  models import it when they are made
from torch.distributed import TCPStore

HOST = "127.0.0.1"


def process(module: Any, rank: int, count: int, port: int, *arguments: Any) -> NoReturn:
    """Goes on as torchrun's process of that rank."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    own |= {"MASTER_ADDR": HOST, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ |= {name: str(value) for name, value in own.items()}
    try:
        module.main(*arguments)
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # `part` ends one that is done


def main(count: int, name: str, folder: str, *arguments: str) -> int:
    module = importlib.import_module(name)
    ports: SimpleQueue[int] = SimpleQueue()
    running = set()
    for rank in range(count):
        if (pid := os.fork()) == 0:
            process(module, rank, count, ports.get(), Path(folder), *arguments)
        running.add(pid)
    # After the forks: it has threads.
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    for _ in range(count):
        ports.put(store.port)
    failed = 0
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status and not failed:  # the others would wait for it
            failed = 1
            for other in running:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
