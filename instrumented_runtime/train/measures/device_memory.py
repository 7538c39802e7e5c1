"""Memory and energy of this rank's device between two steps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """GPU: peaks since the last reading, and counts since the process began. CPU: peak RSS."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    allocator_retries: int | None = None
    ooms: int | None = None
    peak_host_bytes: int | None = None


def read_memory(device: torch.device) -> Memory:
    """Read the allocator's counters and reset its peaks."""
    host = _peak_rss()
    if device.type != "cuda":
        return Memory(peak_host_bytes=host)
    stats = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return Memory(
        stats.get("allocated_bytes.all.peak"),
        stats.get("reserved_bytes.all.peak"),
        stats.get("num_alloc_retries"),
        stats.get("num_ooms"),
        host,
    )


def _peak_rss() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class EnergyMeter:
    """Joules the device used between readings, if NVML reports energy."""

    def __init__(self) -> None:
        from gpuscope.instrumented_runtime.record.capture.nvml_samples import current_device

        self._device: tuple[Any, Any] | None = current_device()
        self._last_mj = self._total_mj()

    def read(self) -> float | None:
        """Joules since the last reading; None if not counted."""
        now, last = self._total_mj(), self._last_mj
        self._last_mj = now
        return None if now is None or last is None else (now - last) / 1000

    def _total_mj(self) -> int | None:
        if self._device is None:
            return None
        nvml, handle = self._device
        try:
            return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except nvml.NVMLError:
            return None
