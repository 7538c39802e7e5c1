"""Which events of a rank the tables are of: all that were recorded, or those of the steps asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.trace.columns.distinct import counted
from gpuscope.trace.columns.table import Mask, Table, Times, blocks, rows_of_rank, rows_where
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class RecordedRank:
    """A rank of the trace with its lanes, and the window that its tables are of."""

    rank: int
    lanes: tuple[LaneView, ...]
    window: tuple[int, int] | None
    """None for all that was recorded."""
    bounds: tuple[int, int]
    """Its first host event, and the one after its last."""
    device: Times
    """Rows of its device events that touch the window, by start; empty where its training thread is the device."""
    has_device: bool

    def host_rows(self, host: Table, wanted: Callable[[slice], Mask]) -> Times:
        """Rows of its host events that begin in the window and for which `wanted` holds, asked block by block."""
        return rows_where(*self.bounds, lambda block: self.began(host["start"][block]) & wanted(block))

    def began(self, start: Times) -> Mask:
        """Which of these instants lie in the window."""
        if self.window is None:
            return np.ones(len(start), np.bool_)
        return (start >= self.window[0]) & (start < self.window[1])


def recorded_ranks(trace: Trace, lanes: Sequence[LaneView]) -> list[RecordedRank]:
    """The ranks of a trace, in order."""
    by_rank: dict[int, list[LaneView]] = {}
    for view in lanes:
        by_rank.setdefault(view.lane.rank, []).append(view)
    return [_recorded(trace, rank, views) for rank, views in sorted(by_rank.items())]


def _recorded(trace: Trace, rank: int, views: Sequence[LaneView]) -> RecordedRank:
    host = trace["host_events"]
    window = None
    if any(view.cut for view in views):
        window = min(view.window[0] for view in views), max(view.window[1] for view in views)
    real = [view for view in views if view.lane.device != NA]
    events = [of_lane(trace, view) for view in real] or [np.empty(0, np.int64)]
    rows = events[0] if len(events) == 1 else np.sort(np.concatenate(events), kind="stable")
    return RecordedRank(rank, tuple(views), window, rows_of_rank(host, rank), rows, bool(real))


def of_lane(trace: Trace, view: LaneView) -> Times:
    """Rows of a lane's device events that touch its window, by start."""
    device, rows = trace["device_events"], view.rows
    if not view.cut:
        return rows
    return rows[(device["end"][rows] > view.window[0]) & (device["start"][rows] < view.window[1])]


def streams_of(device: Table, rows: Times) -> tuple[list[int], Times]:
    """The streams that device events ran on, ascending, and how many ran on each."""
    counts: Counter[int] = Counter()
    for block in blocks(0, len(rows)):
        found, number = counted(device.at("stream", rows[block]))
        counts.update(dict(zip(found.tolist(), number.tolist(), strict=True)))
    streams = sorted(counts)
    return streams, np.array([counts[stream] for stream in streams], np.int64)


def on_stream(device: Table, rows: Times, stream: int, streams: int) -> Times:
    """Those of the device events that ran on a stream, where they ran on so many."""
    if streams == 1:
        return rows
    pieces = (rows[block] for block in blocks(0, len(rows)))
    return np.concatenate([piece[device.at("stream", piece) == stream] for piece in pieces])
