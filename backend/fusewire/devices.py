"""Names of devices as users write them, and the devices that this build and machine have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fusewire.errors import ConfigurationError

_DRIVER = Path("/proc/driver/nvidia/version")


def gpus_of(device: str) -> tuple[int, ...]:
    """Returns the GPUs that the setting `device` names, none for the CPU. `auto` is the first GPU
    if this build and machine have one, else the CPU. Raises ConfigurationError for any other
    word."""
    gpus = _meant(device)
    if gpus is None:
        raise _unknown(device, "auto, cpu, cuda, cuda:0 to cuda:9, or several as cuda:0,1")
    return gpus


def one_device(device: Any) -> str:
    """Returns the name of one device, `cpu` or `cuda:<index>`. `device` is a word as for `gpus_of`,
    or a torch.device. Raises ConfigurationError for anything else, including several GPUs."""
    word = _torch_word(device) if _is_torch_device(device) else device
    gpus = _meant(word) if isinstance(word, str) else None
    if gpus is None or len(gpus) > 1:
        raise _unknown(device, "one of auto, cpu, cuda, and cuda:0 to cuda:9")
    return f"cuda:{gpus[0]}" if gpus else "cpu"


def found() -> list[int]:
    """Returns the indices of the GPUs that this build and machine have."""
    from fusewire import kernels

    names = [name for name, _ in kernels.devices()]
    return [int(name.removeprefix("cuda:")) for name in names if name.startswith("cuda:")]


def cuda_built() -> bool:
    from fusewire import kernels

    return bool(kernels.cuda_built())


def described() -> str:
    """Describes the GPUs of this machine, and says where this build cannot use them."""
    if not cuda_built():
        if _DRIVER.exists():
            return (
                "not used: there is an NVIDIA driver, but this build has no CUDA kernels; build "
                "with FUSEWIRE_CUDA=ON (README, Installation requirements)"
            )
        return "none, and this build has no CUDA kernels"
    from fusewire import kernels

    names = [f"{name} {model}" for name, model in kernels.devices() if name != "cpu"]
    return ", ".join(names) or "none shown"


def _meant(device: str) -> tuple[int, ...] | None:
    """Returns the GPUs that a word names: none for the CPU, None for an unknown word."""
    if device == "cpu":
        return ()
    if device == "auto":
        return tuple(found()[:1])
    words = re.fullmatch(r"cuda(?::([0-9](?:,[0-9])*))?", device)
    gpus = tuple(int(word) for word in (words[1] or "0").split(",")) if words else ()
    return gpus if gpus and len(set(gpus)) == len(gpus) else None


def _unknown(device: Any, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"device: got {repr(device)[:80]}, wanted {wanted}; choose one of these"
    )


def _is_torch_device(value: Any) -> bool:
    return (type(value).__module__, type(value).__name__) == ("torch", "device")


def _torch_word(device: Any) -> str:
    indexed = device.index is not None and device.type != "cpu"  # torch has a cpu:0
    return f"{device.type}:{device.index}" if indexed else str(device.type)
