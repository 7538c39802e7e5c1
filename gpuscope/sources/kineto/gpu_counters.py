"""Samples of GPU counters in torch.profiler's traces: power, clocks, and what PM sampling measured (SM, DRAM, NVLink…).

The CUPTI back end of torch 2.15 writes one counter per event of the process «GPU n Counters», with an empty key; Kineto
(`cat: hardware_counters`, pytorch/kineto PR 1527) the metrics by name, with the device as process. A unit stands in
brackets at the name's end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from gpuscope import when_used
from gpuscope.problems import completeness, reading
from gpuscope.sources.kineto.text.chrome_json import Counted
from gpuscope.sources.kineto.text.decimal_time import to_ns
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA

PARTS = 1000
"""Values are kept in thousandths of their unit."""
_PROCESS = when_used.pattern(r"GPU (\d+) Counters$")
_UNIT = when_used.pattern(r"\(([^()]*)\)$")
_OF_KINETO = "hardware_counters"
_LIMIT = 2**62
ENVIRONMENT = ("Power (W)", "Temperature (C)", "SM Clock (MHz)", "Memory Clock (MHz)", "Fan Speed (%)")
"""What CUPTI's environment records give (pytorch PR 188939): measuring these changes nothing."""
DERIVED = "Cycles (Current Kernel)"
"""One per kernel: its duration times the median SM clock."""

_decoder = msgspec.json.Decoder(dict[str, float | int | str | None])


class GpuCounters:
    """Collects the samples; the clock base is not known yet."""

    def __init__(self) -> None:
        self.unreadable = 0
        """Samples without a time or a finite value."""
        self._samples: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)

    def take(self, events: Sequence[Counted]) -> None:
        """Take in those of a JSON block's counters that are a GPU's; others are of no known kind and left out."""
        for event, time in zip(events, to_ns([event.ts for event in events]).tolist(), strict=True):
            device = _device(_plain(event.pid), _plain(event.cat))
            if device is None:
                continue
            name = _plain(event.name)
            try:
                values = _decoder.decode(event.args)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.unreadable += 1
                continue
            for key, value in values.items():
                self.add(device, key or str(name), time, value)

    def add(self, device: int, counter: str, time: int, value: object) -> None:
        """Take in one sample; `time` in ns or `NA`."""
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not abs(number) * PARTS < _LIMIT or time == NA or not 0 <= device < _LIMIT:
            self.unreadable += 1
            return
        self._samples[device, counter].append((time, round(number * PARTS)))

    @property
    def pm_sampled(self) -> bool:
        """Whether hardware counters were sampled: CUPTI locks the GPU's clocks for that (pytorch PR 188849)."""
        return any(counter not in (*ENVIRONMENT, DERIVED) for _, counter in self._samples)

    def finish(self, builder: TraceBuilder, source: int, base: int) -> None:
        """Hand the samples to the builder; `base` is the clock's zero in ns.

        A sample holds until the next one of its counter, the last one as long as the one before it.
        """
        code = builder.names.code
        for (device, counter), samples in sorted(self._samples.items()):
            start, value = np.array(sorted(samples), np.int64).T
            length = np.diff(start)
            unit = _UNIT.search(counter)
            columns = {
                "source": source,
                "place": code(f"GPU {device}"),
                "counter": code(counter),
                "unit": code(unit[1] if unit else ""),
                "start": start + base,
                "end": start + base + np.append(length, length[-1:] if len(length) else 0),
                "value": value,
                "parts": PARTS,
            }
            builder.add("counters", len(start), columns)
        builder.problem(reading.COUNTER_UNREADABLE, self.unreadable)
        builder.problem(completeness.CLOCKS_LOCKED, int(self.pm_sampled))


def _plain(text: bytes | msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _device(process: object, category: object) -> int | None:
    if isinstance(process, str) and (match := _PROCESS.match(process)):
        return int(match[1])
    if category == _OF_KINETO and isinstance(process, int) and not isinstance(process, bool):
        return process
    return None
