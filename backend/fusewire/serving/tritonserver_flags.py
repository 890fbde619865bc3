"""The flags that a tritonserver program has, and which of them `fusewire serve` passes on (after
`--`) or rejects.

tritonserver uses the last of two equal flags and accepts any unambiguous prefix of a flag, so a
flag that fusewire sets is rejected under each of its prefixes.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fusewire.errors import ConfigurationError
from fusewire.serving.installation import Installation

_HELP_TIMEOUT_S = 30  # it takes some 20 ms

_LOGS = "fusewire reads the server's log; use --log-level and --log-format"
_TLS = (
    "the watchdog, the OpenAI endpoint and model control speak plain gRPC to this port; terminate "
    "TLS in a gateway in front"
)
_ENDPOINT = "the watchdog needs it; block the port in the network, or bind it with --host"
_RESTRICTED = "fusewire restricts these APIs to holders of --control-key"
_CONTROL = "fusewire controls which models are loaded"

# Flag -> remedy.
REFUSED = {
    "model-repository": "give the repository to `fusewire serve`",
    "model-store": "give the repository to `fusewire serve`",
    "backend-directory": "fusewire assembles it; put other backends into tritonserver's own",
    "http-address": "use --host",
    "grpc-address": "use --host",
    "metrics-address": "use --host",
    "http-port": "use --http-port before the --",
    "grpc-port": "use --grpc-port before the --",
    "metrics-port": "use --metrics-port before the --",
    "reuse-http-port": "another server on the port would get the watchdog's requests",
    "reuse-grpc-port": "another server on the port would get the watchdog's requests",
    "allow-http": _ENDPOINT,
    "allow-grpc": _ENDPOINT,
    "allow-metrics": _ENDPOINT,
    "allow-gpu-metrics": "it is on when a model runs on a GPU",
    "grpc-use-ssl": _TLS,
    "grpc-use-ssl-mutual": _TLS,
    "grpc-server-cert": _TLS,
    "grpc-server-key": _TLS,
    "grpc-root-cert": _TLS,
    "http-restricted-api": _RESTRICTED,
    "grpc-restricted-protocol": _RESTRICTED,
    "model-control-mode": _CONTROL,
    "load-model": _CONTROL,
    "repository-poll-secs": _CONTROL,
    "model-namespacing": _CONTROL,
    "exit-on-error": "`fusewire serve` exits when a model does not load",
    "strict-readiness": "it is always off, and readiness a question by model",
    "disable-auto-complete-config": "it is always on",
    "strict-model-config": "it is always on",
    "exit-timeout-secs": "use --exit-timeout-s",
    "log-verbose": "use --log-level verbose",
    "log-info": _LOGS,
    "log-warning": _LOGS,
    "log-error": _LOGS,
    "log-format": _LOGS,
    "log-file": _LOGS,
    "pinned-memory-pool-byte-size": "models of fusewire do not use this pool",
    "cuda-memory-pool-byte-size": "models of fusewire do not use this pool",
    "help": "run the tritonserver program yourself: `fusewire doctor` says where it is",
    "version": "run the tritonserver program yourself: `fusewire doctor` says where it is",
}
_REGION = "shm-region-prefix-name"  # a key of --backend-config=python,…


def check(words: Sequence[str]) -> None:
    """Raises ConfigurationError for a flag that fusewire sets itself, and for words that are not
    flags."""
    takes_value = False
    for word in words:
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or flag == "--":
            if not takes_value or flag.startswith("-"):
                raise _refused(
                    word, "wanted flags of tritonserver as --NAME=VALUE; models go before the --"
                )
            takes_value = False
            value = word
        else:
            takes_value = not equals
            for name, remedy in REFUSED.items():
                if name.startswith(flag[2:]):
                    raise _refused(flag, f"wanted no flag that fusewire sets; {remedy}")
        if value.startswith(f"python,{_REGION}"):
            raise _refused(word, "wanted no flag that fusewire sets; leave it out")


def known(installation: Installation) -> frozenset[str]:
    """Returns the flags of a tritonserver program, without `--`. Raises ConfigurationError where it
    does not list them."""
    program = installation.tritonserver
    return _known(program, installation.libraries, program.stat().st_mtime_ns)


@functools.cache
def _known(program: Path, libraries: tuple[Path, ...], modified_ns: int) -> frozenset[str]:
    paths = [*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    try:
        done = subprocess.run(
            [program, "--help"],
            env={"PATH": os.defpath, "LD_LIBRARY_PATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_HELP_TIMEOUT_S,
            check=False,  # --help exits with 1
        )
        text = done.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        text = str(error)
    flags = frozenset(re.findall(r"^  --([a-z0-9-]+)", text, re.MULTILINE))
    if "http-port" not in flags:
        raise ConfigurationError(
            f"tritonserver: got {text.strip()[-200:]!r} from {program} --help, wanted a list of "
            "its flags; use another with --tritonserver"
        )
    return flags


def _refused(word: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"tritonserver_args: got {word[:80]}, {wanted}")
