"""Sequences of kernels that a stream repeats, by the time they cover."""

from __future__ import annotations

import numpy as np

from gpuscope.dashboards.data.events import Events
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import Kind
from gpuscope.when_used import dataclass

LONGEST = 64
"""Kernels of a sequence at most."""
MOST_EVENTS = 100_000
"""Of a stream, the first so many are looked at."""
SHOWN = 10


@dataclass(frozen=True)
class Sequence:
    """Kernels one behind the other: how often, and how long they run in all, ns."""

    names: tuple[str, ...]
    count: int
    time: int
    share: float
    """Of what the stream's kernels take."""
    ref: str
    """The first kernel of the first."""


def sequences(events: Events, rank: int) -> list[Sequence]:
    """Of the busiest stream of a rank, those that cover most; each kernel counts for one of them at most."""
    own = events.streams(rank)
    track = max(own, key=lambda one: int((one.end - one.start)[one.look == Kind.COMPUTE].sum()), default=None)
    if track is None:
        return []
    places = np.flatnonzero(track.look == Kind.COMPUTE)[:MOST_EVENTS]
    rows, spent = track.rows[places], (track.end - track.start)[places]
    codes = events.trace["device_events"]["name"][rows].astype(np.int64)
    sums = np.concatenate(([0], np.cumsum(spent)))
    taken, chosen = np.zeros(len(codes) + 1, np.int64), list[tuple[int, Times]]()
    for length, begun, _ in sorted(_repeated(codes, sums), key=lambda one: (-one[2], one[0])):
        before = np.cumsum(taken) - taken
        begun = begun[before[begun + length] == before[begun]]
        if len(begun) > 1 and len(chosen) < SHOWN:
            chosen.append((length, begun))
            taken[(begun[:, None] + np.arange(length)).ravel()] = 1
    return [
        Sequence(
            tuple(events.trace.names[int(code)] for code in codes[begun[0] : begun[0] + length]),
            len(begun),
            time := int((sums[begun + length] - sums[begun]).sum()),
            time / max(int(sums[-1]), 1),
            f"d{int(rows[begun[0]])}",
        )
        for length, begun in chosen
    ]


def _repeated(codes: Times, sums: Times) -> list[tuple[int, Times, int]]:
    """(kernels, where each begins, ns covered) of the best few of each length that occur twice or more."""
    found: list[tuple[int, Times, int]] = []
    ids = codes
    for length in range(2, min(LONGEST, len(codes) // 2) + 1):
        pairs = ids[:-1] * (int(codes.max()) + 1) + codes[length - 1 :]
        _, ids = distinct(pairs)
        covered = np.bincount(ids, sums[length:] - sums[: len(ids)])
        for which in np.argsort(-np.where(np.bincount(ids) > 1, covered, 0), kind="stable")[:SHOWN].tolist():
            begun = _apart(np.flatnonzero(ids == which), length)
            if len(begun) > 1:
                found.append((length, begun, int((sums[begun + length] - sums[begun]).sum())))
    return found


def _apart(begun: Times, length: int) -> Times:
    """Of places in order, from the first on those that do not overlap."""
    kept, free = [], -1
    for place in begun.tolist():
        if place >= free:
            kept.append(place)
            free = place + length
    return np.array(kept, np.int64)
