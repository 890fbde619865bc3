"""The environment variables of `fusewire serve`: FUSEWIRE_ and the name of a setting.

An unknown one is an error: a misspelt variable that is ignored could leave a server unprotected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from fusewire.errors import ConfigurationError
from fusewire.import_path import import_path
from fusewire.serving.config import SERVE, SERVE_WITHOUT, ServerSettings
from fusewire.serving.setting import secrets
from fusewire.settings import closest

_PREFIX = "FUSEWIRE_"
CONFIG = f"{_PREFIX}CONFIG"  # the file of `serve --config`

API_KEY = f"{_PREFIX}API_KEY"

# Variables that are not settings.
OTHERS = {
    API_KEY: "API key of the OpenAI endpoint, where there is no `api_key_file`.",
    CONFIG: "Path of the YAML file of `fusewire serve`, as `--config`.",
    "FUSEWIRE_CACHE": "Folder for measured GEMM choices; empty: nothing is kept on disk. Default: "
    "`$XDG_CACHE_HOME/fusewire`, else `~/.cache/fusewire`.",
    "FUSEWIRE_GEMM_TIMING": "`0`: take cuBLASLt's first suggestion instead of timing kernels.",
    "FUSEWIRE_MODELS": "With docker compose: folder of the model repository.",
    "FUSEWIRE_CONTAINER_MEMORY": "With docker compose: memory of the server's container, as `64g`. "
    "Default: `8g`, with GPUs `16g`.",
    "FUSEWIRE_CONTAINER_CPUS": "With docker compose: cores of the server's container, as `0-7`. "
    "Default: all.",
    "FUSEWIRE_CUDA": "When building: `ON` insists on CUDA kernels, `OFF` leaves them out.",
    "FUSEWIRE_CUDA_ARCHITECTURES": "When building: compute capabilities, as `80;90a`.",
}
# Variables that Kubernetes sets in every pod for a service whose name begins with `fusewire`.
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def variable(name: str) -> str:
    """Returns the environment variable of a setting."""
    return _PREFIX + name.upper()


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without keys, for other programs."""
    hidden = {API_KEY, *map(variable, secrets(ServerSettings))}
    return {name: value for name, value in environment.items() if name not in hidden}


def of_own_process() -> dict[str, str]:
    """Returns the environment for a Python process with the import path of this one."""
    return without_secrets(os.environ) | {"PYTHONPATH": os.pathsep.join(import_path())}


def check(environment: Mapping[str, str]) -> None:
    """Raises ConfigurationError for a variable that is neither that of a setting nor one of
    OTHERS."""
    names = {name for kind in SERVE for name in kind.model_fields} - set(SERVE_WITHOUT)
    known = set(map(variable, names)) | OTHERS.keys()
    for name in sorted(environment):
        if not name.startswith(_PREFIX) or name in known:
            continue
        if _SERVICE_LINK.search(name) or _SERVICE_ADDRESS.match(environment[name]):
            continue
        raise ConfigurationError(
            f"{name}: got an unknown environment variable, wanted one of `fusewire serve --help`; "
            f"{closest(name, known)}correct or unset it"
        )
