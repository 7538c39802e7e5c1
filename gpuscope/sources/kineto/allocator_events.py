"""Kineto's `[memory]` events (`profile_memory=True`): the allocator's totals at each allocation and free."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gpuscope.sources.kineto.event_arguments import decode_arguments
from gpuscope.sources.kineto.text.chrome_json import Instant
from gpuscope.sources.kineto.text.decimal_time import to_ns
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA

_NAME = b'"[memory]"'
_CPU = 0
"""c10::DeviceType of host memory, of which PyTorch keeps no totals."""
_LIMIT = 1 << 62


class MemoryArguments(msgspec.Struct, gc=False):
    """The arguments of one event; sizes are bytes."""

    device_type: int = msgspec.field(default=_CPU, name="Device Type")
    device: int = msgspec.field(default=NA, name="Device Id")
    allocated: int = msgspec.field(default=NA, name="Total Allocated")
    reserved: int = msgspec.field(default=NA, name="Total Reserved")


class MemoryEvents:
    """Collects the samples; rank and clock base are not known yet."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []

    def take(self, events: Sequence[Instant]) -> None:
        """Take in those of a block's instant events that are of device memory."""
        own = [event for event in events if bytes(event.name) == _NAME]
        decoded = decode_arguments([event.args for event in own], MemoryArguments)
        for time, one in zip(to_ns([event.ts for event in own]).tolist(), decoded, strict=True):
            sizes = (one.device, one.allocated)
            if one.device_type != _CPU and time != NA and all(0 <= value < _LIMIT for value in sizes):
                self._rows.append((time, one.device, one.allocated, one.reserved if 0 < one.reserved < _LIMIT else NA))

    def finish(self, builder: TraceBuilder, rank: int, base: int) -> None:
        """Hand the samples to the builder; `base` is the clock's zero in ns."""
        if self._rows:
            time, device, allocated, reserved = np.array(self._rows, np.int64).T
            columns = {"time": time + base, "device": device, "allocated": allocated, "reserved": reserved}
            builder.add("memory_samples", len(time), {"rank": rank, **columns})
