"""Devices of a model's instances as config.pbtxt and Triton have them."""

from __future__ import annotations

from collections.abc import Iterable

from fusewire import devices
from fusewire.errors import ConfigurationError

CPU = "KIND_CPU"
GPU = "KIND_GPU"


def check(name: str, kind: str, gpus: Iterable[int]) -> None:
    """ConfigurationError for an instance group that this build or machine has no device for.

    `kind`: Triton's, with or without KIND_ before it. No `gpus`: any.
    """
    if kind.removeprefix("KIND_") != "GPU":
        return
    remedy = "or choose --device cpu"
    if not devices.cuda_built():
        raise ConfigurationError(
            f"{name}: instance_group: got KIND_GPU, wanted KIND_CPU: this build of fusewire has "
            f"no CUDA kernels; build it with FUSEWIRE_CUDA=ON, {remedy}"
        )
    here = devices.found()
    if not here:
        raise ConfigurationError(
            f"{name}: instance_group: got KIND_GPU, wanted KIND_CPU: this machine shows no GPU; "
            f"see nvidia-smi (driver 580 or later) and CUDA_VISIBLE_DEVICES, {remedy}"
        )
    for gpu in gpus:
        if gpu not in here:
            raise ConfigurationError(
                f"{name}: instance_group: got GPU {gpu}, wanted one of those that this machine "
                f"shows ({', '.join(map(str, here))}); import the model with another --device"
            )


def of_instance(name: str, kind: str, device_id: str) -> str:
    """Where an instance computes: `kind` and `device_id` as Triton tells them."""
    if kind.removeprefix("KIND_") != "GPU":
        return "cpu"
    check(name, kind, [int(device_id)])
    return f"cuda:{device_id}"
