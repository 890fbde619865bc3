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

# These APIs load code, map memory, and read or redirect logs. They need the control key.
RESTRICTED_APIS = "shared-memory,model-repository,trace,logging"
# Replaced in memory by the variable's value (csrc/tritonserver/preload.cc), as every user of a
# machine can read command lines. tritonserver itself refuses the name if it is not replaced.
_SECRET = "FUSEWIRE_RESTRICTED_APIS"
_MARGIN_S = 30
# Set where the program has these flags. Flags after `--` override them.
PROTECTIVE = {
    # Bytes of a request after decompression: the longest text in UTF-8, and 1 MiB for the rest.
    "http-max-input-size": f"{4 * MOST_CHARACTERS + (1 << 20)}",
    # No client may map memory of the server's machine, not even with the key.
    "allow-client-shm": "false",
    # Unread responses of one stream: as many as a model of 131,072 tokens may send to one request.
    # A server thread waits while the pool is full, so the limit must only affect other backends.
    "grpc-max-response-pool-size": f"{8 * 131_072}",
    # These endpoints have ports of their own on every address; AIP_MODE in the environment would
    # open one.
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
    """Returns the command line. `backends`: the backend directory. `on_gpus`: whether a model
    computes on a GPU. Raises ConfigurationError where the program does not list its flags."""
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
        # The watchdog reloads models, which needs explicit model control. The key restricts it.
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
        f"--http-restricted-api=${_SECRET}",
        f"--grpc-restricted-protocol=${_SECRET}",
        "--exit-on-error=false",  # so that the index has the models that failed, and the reasons
        # Readiness is checked per model. With strict readiness a version that did not load would
        # make the server not ready for ever.
        "--strict-readiness=false",
        "--disable-auto-complete-config",
        # The supervisor kills it earlier (embedded.py): when it exits by itself with open
        # connections, it crashes.
        f"--exit-timeout-secs={settings.exit_timeout_s + _MARGIN_S}",
        f"--log-verbose={1 if settings.log_level == 'verbose' else 0}",
        f"--backend-config=python,shm-region-prefix-name={region_prefix}",
        "--metrics-config=summary_latencies=true",  # quantiles; counters only give means
        f"--allow-gpu-metrics={str(on_gpus).lower()}",
        # Tensors between server and stub are in host memory. GPU memory is for the stubs.
        "--pinned-memory-pool-byte-size=0",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in gpus),
        *(f"--{flag}={value}" for flag, value in PROTECTIVE.items() if flag in known),
        *settings.tritonserver_args,  # tritonserver uses the last of two equal flags
    ]


def secrets(control_key: str) -> dict[str, str]:
    """Returns the environment variables of the command line's placeholders."""
    return {_SECRET: f"{RESTRICTED_APIS}:{CONTROL_HEADER}={control_key}"}
