"""Locates the server program, and checks that it fits this Python.

There are two: /opt/tritonserver of the official image, and the one in the `nvidia-pytriton` wheel.
Both run Python backends in a stub that is linked against one version of libpython, which must be
the version that fusewire runs on. The stub may also be too old for the installed numpy.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from fusewire.errors import ConfigurationError

IMAGE = Path("/opt/tritonserver/bin/tritonserver")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
INSTALL = "install it with Python 3.11 or 3.12: pip install 'fusewire[server]'"


@dataclass(frozen=True)
class Installation:
    """A tritonserver program, and what its Python backends need."""

    tritonserver: Path
    python_backend: Path  # folder of libtriton_python.so
    stub: Path
    libraries: tuple[Path, ...]  # for LD_LIBRARY_PATH
    origin: str  # for messages


def find(tritonserver: Path | None = None) -> Installation:
    """Returns the installation of the given program, otherwise that of the image, otherwise that of
    the wheel."""
    if tritonserver is not None:
        if not tritonserver.is_file():
            raise ConfigurationError(
                f"tritonserver: got {tritonserver}, wanted the program file; correct the path"
            )
        return _checked(_beside(tritonserver.absolute()))
    if IMAGE.is_file():
        return _checked(_beside(IMAGE))
    return _checked(_wheel())


def _beside(tritonserver: Path) -> Installation:
    root = tritonserver.resolve().parent.parent
    backend = root / "backends" / "python"
    return Installation(
        tritonserver,
        backend,
        backend / "triton_python_backend_stub",
        (root / "lib", *_libpython()),
        f"{root}",
    )


def _wheel() -> Installation:
    try:
        distribution = importlib.metadata.distribution("nvidia-pytriton")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"tritonserver: found none on this machine for Python {_PYTHON}; {INSTALL}"
        ) from None
    # Located, not imported: the package starts threads and needs more libraries than the server.
    root = Path(str(distribution.locate_file("pytriton"))) / "tritonserver"
    return Installation(
        root / "bin" / "tritonserver",
        root / "backends" / "python",
        root / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub",
        (Path(str(distribution.locate_file("nvidia_pytriton.libs"))), *_libpython()),
        f"nvidia-pytriton {distribution.version}",
    )


def _checked(installation: Installation) -> Installation:
    for path in (
        installation.tritonserver,
        installation.python_backend / "libtriton_python.so",
        installation.stub,
    ):
        if not path.is_file():
            raise ConfigurationError(
                f"tritonserver: {installation.origin} has no {path.name} for Python {_PYTHON}; "
                f"{INSTALL}"
            )
    linked = re.search(rb"libpython(\d+\.\d+)\.so", installation.stub.read_bytes())
    if linked and linked[1].decode() != _PYTHON:
        raise ConfigurationError(
            f"tritonserver: the Python stub of {installation.origin} is for Python "
            f"{linked[1].decode()}, wanted {_PYTHON}; install fusewire for that Python"
        )
    check_numpy(installation.stub)
    return installation


def check_numpy(stub: Path) -> None:
    """Raises ConfigurationError where the stub would send every answer empty, without an error of
    its own.

    Stubs of Triton 24.10 and before are built with a pybind11 that treats numpy 2 arrays as empty.
    Their binary contains the name numpy.core.multiarray; later ones compose the name at run time.
    """
    version = importlib.metadata.version("numpy")
    if int(version.split(".")[0]) >= 2 and b"numpy.core.multiarray" in stub.read_bytes():
        raise ConfigurationError(
            f"numpy: got {version}, wanted one below 2, because the Python stub of this Triton "
            "sends empty answers with numpy 2; pip install 'numpy<2', or use Triton 24.12 or later"
        )


def _libpython() -> tuple[Path, ...]:
    """Returns the folder of libpython, or nothing where the system's loader finds it anyway."""
    folder = sysconfig.get_config_var("LIBDIR")
    library = sysconfig.get_config_var("INSTSONAME")
    if folder and library and (Path(folder) / library).is_file() and ".so" in library:
        return (Path(folder),)
    return ()
