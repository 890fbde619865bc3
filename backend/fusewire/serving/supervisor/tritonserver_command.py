"""The command line of tritonserver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fusewire import devices
from fusewire.serving import tritonserver_flags
from fusewire.serving.endpoint import CONTROL_HEADER, Endpoint
from fusewire.serving.installation import Installation
from fusewire.serving.server_settings import ServerSettings
from fusewire.tasks.inputs import MOST_CHARACTERS

# Restricted to holders of the control key: load code, map memory, read or redirect logs.
RESTRICTED_APIS = "shared-memory,model-repository,trace,logging"
# Replaced in memory by the variable's value (csrc/tritonserver/preload.cc): every user of a machine
# can read command lines. tritonserver itself refuses what is not replaced.
_SECRET = "FUSEWIRE_RESTRICTED_APIS"
_MARGIN_S = 30
# Set where the program knows them; flags after `--` override these.
PROTECTIVE = {
    # Bytes of a request after decompression: the longest text in UTF-8, and 1 MiB for the rest.
    "http-max-input-size": f"{4 * MOST_CHARACTERS + (1 << 20)}",
    # No client maps memory of the server's machine, also with the key.
    "allow-client-shm": "false",
    # Unread responses of one stream: what a model of 131,072 tokens may send to one request. The
    # thread of the server that finds it full waits, so it must bound other backends' models alone.
    "grpc-max-response-pool-size": f"{8 * 131_072}",
    # Ports of their own, on every address; AIP_MODE in the environment would open one.
    "allow-sagemaker": "false",
    "allow-vertex-ai": "false",
}


def command(
    installation: Installation,
    settings: ServerSettings,
    at: Endpoint,
    *,
    repositories: Sequence[Path],
    models: Sequence[str],
    backends: Path,
    region_prefix: str,
    on_gpus: bool,
) -> list[str]:
    """`backends`: the backend directory; `on_gpus`: whether a model computes on one.
    ConfigurationError where the program does not list its flags."""
    gpus = devices.found() if on_gpus else []
    known = tritonserver_flags.known(installation)
    return [
        str(installation.tritonserver),
        *(f"--model-repository={path}" for path in repositories),
        f"--backend-directory={backends}",
        f"--http-address={at.host}",
        f"--http-port={at.http_port}",
        f"--grpc-address={at.host}",
        f"--grpc-port={at.grpc_port}",
        f"--metrics-address={at.host}",
        f"--metrics-port={at.metrics_port}",
        # The watchdog reloads models, which needs explicit model control: restricted by a key.
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
        f"--http-restricted-api=${_SECRET}",
        f"--grpc-restricted-protocol=${_SECRET}",
        "--exit-on-error=false",  # so that the index says what failed, and why
        # Readiness is asked of each model. Strict, a version that did not load would make the
        # server unready for ever.
        "--strict-readiness=false",
        "--disable-auto-complete-config",
        # Killed before that (embedded.py): at its own end it crashes while connections are open.
        f"--exit-timeout-secs={settings.exit_timeout_s + _MARGIN_S}",
        f"--log-verbose={1 if settings.log_level == 'verbose' else 0}",
        f"--backend-config=python,shm-region-prefix-name={region_prefix}",
        "--metrics-config=summary_latencies=true",  # quantiles, where counters give means
        f"--allow-gpu-metrics={str(on_gpus).lower()}",
        # Tensors pass between server and stub in the host's memory; the stubs have the GPU's.
        "--pinned-memory-pool-byte-size=0",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in gpus),
        *(f"--{flag}={value}" for flag, value in PROTECTIVE.items() if flag in known),
        *settings.tritonserver_args,  # of two equal flags it takes the last
    ]


def secrets(control_key: str) -> dict[str, str]:
    """The environment variables of the command line's placeholders."""
    return {_SECRET: f"{RESTRICTED_APIS}:{CONTROL_HEADER}={control_key}"}
