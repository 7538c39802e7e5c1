"""The what-if controls of the advice page, and the changes of the replay they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from gpuscope.analyzers.advice.rule import Predict
from gpuscope.analyzers.changes import (
    BucketSize,
    CapturedGraphs,
    Change,
    LinkSpeed,
    LoaderWorkers,
    MicroBatches,
    NoAllocatorStalls,
    NoCollector,
    NoHostWork,
    PinnedCopies,
    Refused,
    RemovedSyncs,
    ReplacedRank,
    WireBytes,
)
from gpuscope.analyzers.replay.critical_path import PathSpan
from gpuscope.when_used import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Slider:
    """A knob: its name in the address, its label, and its stops; the first is «as recorded»."""

    key: str
    label: str
    stops: tuple[float, ...]
    unit: str

    def describe(self, value: float) -> str:
        """A stop in words."""
        number = f"{value:g}"
        return f"×{number}" if self.unit == "×" else f"{number} {self.unit}".strip()


SLIDERS = (
    Slider("bucket", "gradient buckets", (5, 10, 25, 50, 100, 200), "MiB"),
    Slider("link", "bandwidth of the link", (0.5, 2, 4, 8), "×"),
    Slider("micro", "micro-batches", (2, 4, 8, 16, 32, 64), ""),
    Slider("workers", "loader workers", (1, 2, 4, 8), ""),
)
SWITCHES: Mapping[str, tuple[str, Change]] = {
    "syncs": ("no blocking calls", RemovedSyncs()),
    "graphs": ("CUDA graphs", CapturedGraphs()),
    "gc": ("no garbage collection", NoCollector()),
    "host": ("other host work aside", NoHostWork()),
    "copies": ("pinned copies", PinnedCopies()),
    "allocator": ("no allocator calls", NoAllocatorStalls()),
    "half": ("16-bit gradients", WireBytes(0.5)),
}
"""Chips by name in the address: label and change."""
SWITCHED, RANK = "without", "replaced"
"""The address's names for the chips, and for the rank replaced."""


class WhatIf:
    """Predictions of changes by replay; what was once refused outright is remembered."""

    def __init__(self, predict: Predict, critical_path: Callable[[], Sequence[PathSpan]] = list) -> None:
        self.predict = predict
        self.critical_path = critical_path
        """Of what is replayed, as recorded."""
        self._lock = Lock()
        self._impossible: dict[str, str] | None = None

    def impossible(self) -> Mapping[str, str]:
        """The controls, by name in the address, all of whose changes the trace can't support, each with the reason."""
        with self._lock:
            if self._impossible is None:
                changes = {slider.key: [_change(slider.key, stop) for stop in slider.stops] for slider in SLIDERS}
                changes |= {key: [change] for key, (_, change) in SWITCHES.items()}
                self._impossible = {key: why for key, own in changes.items() if (why := self._refused(own))}
            return self._impossible

    def _refused(self, changes: Sequence[Change]) -> str:
        """Why none of them can be predicted; the first that can ends the search."""
        why = ""
        for change in changes:
            outcome = self.predict([change])
            if not isinstance(outcome, Refused):
                return ""
            why = why or outcome.why
        return why


def chosen(state: Mapping[str, str]) -> list[tuple[str, Change]]:
    """The changes in the address, each with its label; invalid ones are ignored."""
    found: list[tuple[str, Change]] = []
    for slider in SLIDERS:
        place = _whole(state.get(slider.key))
        if place is not None and 1 <= place <= len(slider.stops):
            value = slider.stops[place - 1]
            found.append((f"{slider.label}: {slider.describe(value)}", _change(slider.key, value)))
    for name in state.get(SWITCHED, "").split(","):
        if name in SWITCHES:
            found.append(SWITCHES[name])
    rank = _whole(state.get(RANK))
    if rank is not None:
        found.append((f"rank {rank} as fast as its peers", ReplacedRank(rank)))
    return found


def _change(key: str, value: float) -> Change:
    if key == "bucket":
        return BucketSize(int(value) * MIB, int(value) * MIB)
    if key == "link":
        return LinkSpeed(bandwidth=value)
    if key == "micro":
        return MicroBatches(int(value))
    return LoaderWorkers(int(value))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 9 else None
