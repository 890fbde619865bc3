"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when `parent`, the process id of who started it, ends; more
    exactly, when the thread that started it does. Ends it at once if that was before."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
