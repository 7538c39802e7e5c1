"""Calls and kernels of files without correlation ids (ROCm builds of Kineto), linked by what else they share.

Definitions: «Call and kernel». First the arrows from a call to its work, then an External id that exactly one launch
holds. What is linked so is given one number, as if the file had had it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpuscope.errors import InputError
from gpuscope.sources.kineto.event_arguments import Loose, decode_arguments, integer
from gpuscope.sources.kineto.event_block import Decoded, Numbered, Rows, Work
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.text.chrome_json import Document, FlowEnd, FlowStart
from gpuscope.sources.kineto.text.decimal_time import to_ns
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category, Kind

_ARROWS = frozenset({"ac2g", "async_cpu_to_gpu", "async"})
"""Categories of the arrows from a call to its work, the latter two of 2020 and 2021."""
_CLOCK_NS = 2
"""By which a time and the same time as written elsewhere may differ."""

Column = np.ndarray[Any, np.dtype[np.int64]]
Lane = tuple[int, int]


class _External(msgspec.Struct, gc=False):
    now: Loose = msgspec.field(default=None, name="External id")
    before: Loose = msgspec.field(default=None, name="external id")


def correlate(columns: EventColumns, names: NamePool, path: Path) -> None:
    """Give calls and device events that belong together one number, where the file gives them none."""
    device, host = columns.whole("device_events"), columns.whole("host_events")
    if device is None or host is None:
        return
    runtime = host["category"] == Category.RUNTIME
    calls = np.flatnonzero(runtime & names.matching(kinds.asks_for_work)[host["name"]])
    missing = device["correlation"] == NA
    if (host["correlation"][calls] == NA).any():  # then the events' own numbers may be of no use either
        missing |= ~np.isin(device["correlation"], host["correlation"][calls])
    events = np.flatnonzero(missing)
    if not len(calls) or not len(events):
        return
    try:
        found = _Found(path)
    except InputError:
        return  # what of it can't be read was told when it was read first
    of_event = np.full(len(device["start"]), NA, np.int64)
    _by_arrows(found, columns, host, calls, device, of_event)
    _by_external_id(found, names, host, calls, device, events, of_event)
    linked = events[of_event[events] != NA]
    of_call = host["correlation"].copy()
    highest = max(int(of_call.max(initial=0)), int(device["correlation"].max(initial=0)), 0)
    unnumbered = np.unique(of_event[linked])
    unnumbered = unnumbered[of_call[unnumbered] == NA]
    of_call[unnumbered] = highest + 1 + np.arange(len(unnumbered))
    correlation = device["correlation"].copy()
    correlation[linked] = of_call[of_event[linked]]
    columns.replace("host_events", "correlation", of_call)
    columns.replace("device_events", "correlation", correlation)


class _Found:
    """What a second reading gives, in the order of the rows: External ids, and both ends of the arrows."""

    def __init__(self, path: Path) -> None:
        device: list[int] = []
        host: list[int] = []
        self.sets: list[bool] = []
        """Of device events, whether each is a memset."""
        self.tails: dict[int, tuple[Lane, int]] = {}
        self.heads: list[tuple[int, Lane, int]] = []
        decoded = Decoded(NamePool(), Numbered(), {})
        for events in Document(path, flows=True).events():
            self._arrows([e for e in events if isinstance(e, FlowStart | FlowEnd) and e.cat in _ARROWS])
            block = decoded.block(events)
            if block.device is not None:
                device += _external_ids(block.device)
                self.sets += (block.device.route == Work.SET).tolist()
            if block.host is not None:
                host += _external_ids(block.host)
        self.device, self.host = np.array(device, np.int64), np.array(host, np.int64)

    def _arrows(self, ends: Sequence[FlowStart | FlowEnd]) -> None:
        for end, at in zip(ends, to_ns([end.ts for end in ends]).tolist(), strict=True):
            number, lane = integer(end.id), (integer(end.pid), integer(end.tid))
            if number != NA and at != NA and isinstance(end, FlowStart):
                self.tails[number] = lane, at
            elif number != NA and at != NA:
                self.heads.append((number, lane, at))


def _external_ids(rows: Rows) -> list[int]:
    told = decode_arguments(rows.texts(range(len(rows))), _External)
    return [integer(one.before if one.now is None else one.now) for one in told]


def _by_arrows(
    found: _Found,
    columns: EventColumns,
    host: dict[str, Column],
    calls: Column,
    device: dict[str, Column],
    of_event: Column,
) -> None:
    """An arrow leads from a time within a call on its thread to the start of work on its stream."""
    if not found.heads:
        return
    keys = [(integer(pid), integer(tid)) for pid, tid in columns.threads]
    by_lane: defaultdict[Lane, list[int]] = defaultdict(list)
    for row in calls[np.argsort(host["start"][calls], kind="stable")].tolist():
        by_lane[keys[int(host["thread"][row])]].append(row)
    starts = {lane: host["start"][rows] for lane, rows in by_lane.items()}
    lanes = zip(device["device"].tolist(), device["stream"].tolist(), device["start"].tolist(), strict=True)
    at_start = {key: row for row, key in enumerate(lanes)}
    for number, lane, at in found.heads:
        tail = found.tails.get(number)
        if tail is None or tail[0] not in by_lane:
            continue
        place = int(np.searchsorted(starts[tail[0]], tail[1] + _CLOCK_NS, "right")) - 1
        call = by_lane[tail[0]][place] if place >= 0 else NA
        near = sorted(range(-_CLOCK_NS, _CLOCK_NS + 1), key=abs)
        event = next((row for off in near if (row := at_start.get((*lane, at + off))) is not None), None)
        if event is not None and call != NA and tail[1] <= host["end"][call] + _CLOCK_NS:
            of_event[event] = call


def _by_external_id(
    found: _Found,
    names: NamePool,
    host: dict[str, Column],
    calls: Column,
    device: dict[str, Column],
    events: Column,
    of_event: Column,
) -> None:
    """Operators pass their id on to all their calls: it tells whose work an event is only where one launch (for copies
    and memsets one such call) holds it."""
    if len(found.device) != len(device["start"]) or len(found.host) != len(host["start"]):
        return  # the file changed while it was read
    launching, setting = (
        names.matching(says)[host["name"][calls]]
        for says in (kinds.is_launch_call, lambda name: "set" in name.lower() or "fill" in name.lower())
    )
    kernel = device["kind"] != Kind.MEMORY
    memset = np.array(found.sets, np.bool_)
    groups: tuple[tuple[Mask, Mask], ...] = (
        (launching, kernel),
        (~launching & setting, memset),
        (~launching & ~setting, ~kernel & ~memset),
    )
    for of_calls, of_device in groups:
        own = calls[of_calls & (found.host[calls] != NA)]
        ids, first, counts = np.unique(found.host[own], return_index=True, return_counts=True)
        single = dict(zip(ids[counts == 1].tolist(), own[first[counts == 1]].tolist(), strict=True))
        open_events = events[of_device[events] & (of_event[events] == NA)]
        for event, number in zip(open_events.tolist(), found.device[open_events].tolist(), strict=True):
            call = single.get(number)
            if call is not None and host["start"][call] <= device["start"][event]:
                of_event[event] = call
