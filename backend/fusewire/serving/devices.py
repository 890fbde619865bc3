"""Devices of a model's instances: as operators say it, as config.pbtxt has it, as they are here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fusewire.errors import ConfigurationError

_DRIVER = Path("/proc/driver/nvidia/version")

CPU = "KIND_CPU"
GPU = "KIND_GPU"


def gpus_of(device: str) -> tuple[int, ...]:
    """The GPUs that an operator means, none for the CPU. ConfigurationError for other words.

    `auto` is the first GPU where this build and machine have one, else the CPU.
    """
    if device == "cpu":
        return ()
    if device == "auto":
        return tuple(found()[:1])
    words = re.fullmatch(r"cuda(?::([0-9](?:,[0-9])*))?", device)
    gpus = tuple(int(word) for word in (words[1] or "0").split(",")) if words else ()
    if not gpus or len(set(gpus)) < len(gpus):
        raise ConfigurationError(
            f"device: got {device[:80]!r}, wanted auto, cpu, cuda, cuda:0 to cuda:9, or several as "
            "cuda:0,1; choose one of these"
        )
    return gpus


def check(name: str, kind: str, gpus: Iterable[int]) -> None:
    """ConfigurationError for an instance group that this build or machine has no device for.

    `kind`: Triton's, with or without KIND_ before it. No `gpus`: any.
    """
    if kind.removeprefix("KIND_") != "GPU":
        return
    remedy = "or choose --device cpu"
    if not _built():
        raise ConfigurationError(
            f"{name}: instance_group: got KIND_GPU, wanted KIND_CPU: this build of fusewire has "
            f"no CUDA kernels; build it with FUSEWIRE_CUDA=ON, {remedy}"
        )
    here = found()
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


def described() -> str:
    """This machine's GPUs in words, and those that this build cannot use."""
    if not _built():
        if _DRIVER.exists():
            return (
                "not used: there is an NVIDIA driver, but this build has no CUDA kernels; build "
                "with FUSEWIRE_CUDA=ON (README, Two commands)"
            )
        return "none, and this build has no CUDA kernels"
    from fusewire import kernels

    names = [f"{name} {model}" for name, model in kernels.devices() if name != "cpu"]
    return ", ".join(names) or "none shown"


def _built() -> bool:
    from fusewire import kernels

    return bool(kernels.cuda_built())


def found() -> list[int]:
    """The GPUs that this build and machine have."""
    from fusewire import kernels

    names = [name for name, _ in kernels.devices()]
    return [int(name.removeprefix("cuda:")) for name in names if name.startswith("cuda:")]
