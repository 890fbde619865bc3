"""The devices of a model's instances, in the notation of config.pbtxt and Triton.

KIND_MODEL has no meaning here and is rejected. KIND_AUTO, which also applies to a file without
instance groups, is resolved by Triton before the model is loaded: GPUs if there are any, otherwise
the CPU, even where the file names a GPU that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusewire import devices
from fusewire.errors import ConfigurationError

AUTO = "KIND_AUTO"
CPU = "KIND_CPU"
GPU = "KIND_GPU"


def check(name: str, kind: str, gpus: Sequence[int]) -> None:
    """Raises ConfigurationError for an instance group for which this build or machine has no
    device.

    Empty `gpus`: any GPU.
    """
    if kind not in (AUTO, CPU, GPU):
        raise ConfigurationError(
            f"{name}: instance_group: got {kind}, wanted {GPU}, {CPU} or {AUTO}; say where to "
            "compute: write one of these into config.pbtxt, or import the model with --device"
        )
    if kind == CPU or (kind == AUTO and not gpus):
        return
    remedy = "or choose --device cpu"
    if not devices.cuda_built():
        raise ConfigurationError(
            f"{name}: instance_group: got {kind}, wanted {CPU}: this build of fusewire has "
            f"no CUDA kernels; build it with FUSEWIRE_CUDA=ON, {remedy}"
        )
    here = devices.found()
    if not here:
        raise ConfigurationError(
            f"{name}: instance_group: got {kind}, wanted {CPU}: this machine shows no GPU; "
            f"see nvidia-smi (driver 580 or later) and CUDA_VISIBLE_DEVICES, {remedy}"
        )
    for gpu in gpus:
        if gpu not in here:
            raise ConfigurationError(
                f"{name}: instance_group: got GPU {gpu}, wanted one of those that this machine "
                f"shows ({', '.join(map(str, here))}); import the model with another --device"
            )


def instances(groups: Iterable[Mapping[str, Any]]) -> int:
    """Returns the number of instances in a model's instance groups, which are in Triton's JSON."""
    return sum(int(each.get("count", 1)) * max(1, len(each.get("gpus", ()))) for each in groups)


def of_instance(name: str, kind: str, device_id: str) -> str:
    """Returns the device of an instance. `kind`, without KIND_, and `device_id` are those that
    Triton passes."""
    kind = f"KIND_{kind}"
    check(name, kind, [int(device_id)] if kind == GPU else [])
    if kind == AUTO:  # known versions of Triton always resolve it
        return devices.one_device("auto")
    return f"cuda:{device_id}" if kind == GPU else "cpu"


def described(kind: str, gpus: Sequence[int]) -> str:
    """Returns the devices of a group's instances in the notation of --device."""
    if kind not in (AUTO, GPU) or (kind == AUTO and not devices.found()):
        return "cpu"
    return f"cuda:{','.join(map(str, gpus))}" if gpus else "every GPU"
