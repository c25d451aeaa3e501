"""The device on which a peer trains."""

from __future__ import annotations

import psutil
import torch


class DeviceError(ValueError):
    """A device of the settings that this machine does not have."""


def device_of(name: str) -> str:
    """Return the device of that name; `auto` is the fastest of this machine.

    Raises:
        DeviceError: this machine does not have it.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(each for each in ("cuda", "mps", "cpu") if available[each])
    if not available.get(name, False):
        here = ", ".join(each for each, there in available.items() if there)
        raise DeviceError(f"this machine has no {name} device; choose auto or {here}")
    return name


def device_memory(device: str) -> int:
    """Return the bytes of memory of that CUDA device, or of the machine for other devices."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def device_name(device: str) -> str | None:
    """Return the name of a CUDA device, such as "NVIDIA H200"; None for other devices."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else None
