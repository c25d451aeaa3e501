"""Where a peer trains: what the machine has, and the user's word for it."""

from __future__ import annotations

import psutil
import torch


class DeviceError(ValueError):
    """The device asked for is not there."""


def device_of(name: str) -> str:
    """`auto` is the fastest there is; a device that is not there is the user's mistake."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(each for each in ("cuda", "mps", "cpu") if available[each])
    if not available.get(name.split(":")[0], False):
        here = ", ".join(each for each, there in available.items() if there)
        raise DeviceError(f"there is no {name} device here; choose auto or {here}")
    return name


def device_memory(device: str) -> int:
    """Bytes of memory where it trains: of that CUDA device, or of the machine."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)
