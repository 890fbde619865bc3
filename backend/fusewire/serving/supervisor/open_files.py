"""The open files of this process and its child processes: the standard streams, and the limit, as
each connection is an open file."""

from __future__ import annotations

import os
import resource

_ENOUGH = 4096
_MOST = 1 << 20  # some programs allocate tables of this size


def open_standard() -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that is closed, as after `2>&-`.
    Otherwise a pipe would get its number, and child processes would have nothing to write to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(descriptor, True)


def raise_limit() -> None:
    """Raises the soft limit to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def warning() -> str | None:
    """Returns a warning with a remedy where the limit allows few connections, or None."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH:
        return None
    return (
        f"open files: got a limit of {soft}, wanted at least {_ENOUGH}, as each connection needs "
        "one or more; raise the hard limit: ulimit -Hn, LimitNOFILE= of systemd, or --ulimit "
        "nofile of docker run"
    )
