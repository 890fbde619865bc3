"""Reports the state of this machine, for a person with a problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fusewire import devices, hub
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.serving import environment
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import choose_ports
from fusewire.serving.installation import find

# A stub's region has one megabyte at first, and grows with the largest request and answer.
_SHARED_MEMORY_WANTED = 64 << 20
_PACKAGES = ("numpy", "tokenizers", "pydantic", "protobuf", "tritonclient", "pillow")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is empty where nothing is wrong."""

    subject: str
    found: str
    remedy: str = ""


def examine(settings: ServerSettings) -> Iterator[Finding]:
    """Yields a finding for each thing that serving depends on."""
    from fusewire import __version__

    yield Finding("fusewire", f"{__version__}, Python {platform.python_version()}")
    yield Finding("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES))
    yield _try("kernels", _kernels)
    yield _try("GPUs", devices.described)
    yield _try("environment", _variables)
    yield Finding("cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    yield _try("tritonserver", lambda: find(settings.tritonserver).origin)
    yield Finding("Hugging Face", hub.described())
    yield _shared_memory()
    for flag in ("http_port", "grpc_port", "metrics_port", "openai_port"):
        port = getattr(settings, flag)
        name = flag.replace("_", "-")
        if port is not None:
            yield _try(name, partial(_free, settings.host, name, port))


def _try(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, look())
    except FusewireError as error:
        found, _, remedy = str(error).rpartition("; ")
        return Finding(subject, found, remedy)


def _variables() -> str:
    environment.check(os.environ)
    found = sorted(name for name in os.environ if name.startswith("FUSEWIRE_"))
    return ", ".join(found) or "no variable FUSEWIRE_… is set"


def _kernels() -> str:
    try:
        from fusewire import kernels
    except ImportError as error:
        raise ConfigurationError(
            f"kernels: the compiled library cannot be loaded ({error}); install fusewire again"
        ) from None
    return f"{kernels.cpu_target()} (usable here: {', '.join(kernels.cpu_targets())})"


def _shared_memory() -> Finding:
    free = shutil.disk_usage("/dev/shm").free
    text = f"{free >> 20} MiB free in /dev/shm"
    if free < _SHARED_MEMORY_WANTED:
        wanted = f"at least {_SHARED_MEMORY_WANTED >> 20} MiB"
        return Finding("shared memory", text, f"give the container {wanted}: --shm-size")
    return Finding("shared memory", text)


def _free(host: str, flag: str, port: int) -> str:
    choose_ports(host, [(flag, port)])
    return f"{host}:{port} is free" if port else f"any free port of {host}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
