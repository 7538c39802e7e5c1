"""Compute time by module, operator and input shapes, with the work it did: what two platforms have in common, while
their kernels have other names."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import msgspec
import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, FileAnalyzer, entries_of_devices
from gpuscope.analyzers.base.lanes import OPERATOR_WORK, LaneView, computing
from gpuscope.analyzers.device_time.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.operator_work import label
from gpuscope.schema.call_tree_section import OperatorWorkEntry
from gpuscope.trace.launch_links import innermost, outermost
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    blocks,
    constant,
    distinct,
    distinct_rows,
    distinct_values,
    looked_up,
    picked,
)
from gpuscope.trace.trace import Trace

_MODULE = when_used.pattern(r"nn\.Module: (.+?)(_\d+)?")
_LONGEST = 160
"""Characters of shapes that are kept: a fused optimizer's has every parameter's."""


def _of_lane(trace: Trace, view: LaneView) -> Iterator[OperatorWorkEntry]:
    host, device = trace["host_events"], trace["device_events"]
    rows = computing(trace, view)
    if not len(rows):
        return
    launch = device.at("launch", rows)
    is_operator = np.asarray(host["category"] == Category.OP)
    modules = trace.names.matching(lambda name: name.startswith("nn.Module: "))
    operator = np.maximum(_around(host, is_operator, launch), -1)
    outer = _around(host, _outermost(host, np.flatnonzero(is_operator)), launch)
    columns = [*_named(trace, operator), *_named(trace, outer)]
    del outer
    is_module = (host["category"] == Category.PYTHON) & looked_up(modules, host["name"])
    columns.append(_names_of(host, _around(host, is_module, launch)))
    del launch
    first, which = distinct_rows(*columns)
    texts = [[_text(trace, code) for code in column[first].tolist()] for column in columns]
    calls = np.bincount(which[distinct_rows(which, operator)[0]])
    steps, sums = len(view.judged_steps), _Sums(trace, rows, which, len(first))
    for place, (name, dims, around, around_dims, of) in enumerate(zip(*texts, strict=True)):
        found = _MODULE.fullmatch(of)
        own = sums.of(place, steps)
        yield own | {
            "module": found[1] if found else None,
            "operator": name or None,
            "shapes": shape_text(dims),
            "within": around or None,
            "within_shapes": shape_text(around_dims),
            "calls": float(calls[place]) / steps if name else 0.0,
        }


class _Sums:
    """Sums over the kernels of a lane by group."""

    def __init__(self, trace: Trace, rows: Times, which: Times, groups: int) -> None:
        device, facts = trace["device_events"], kernel_facts(trace)
        self._trace, self._which, self._groups = trace, which, groups
        self._spent = device.at("end", rows) - device.at("start", rows)
        roofs = facts.roofs
        self._needed = picked(roofs.floor if roofs.assumed else roofs.needed, rows)
        known = picked(facts.roofs.known, rows)
        self._known = self._by(np.where(known & (self._needed > 0), self._spent, 0))
        self._counted = self._by(np.where(known, self._spent, 0))
        self._flops, self._bytes = self._by(picked(facts.work.flops, rows)), self._by(picked(facts.roofs.bytes, rows))
        self._whole, self._floor, self._kernels = self._by(self._spent), self._by(self._needed), np.bincount(which)
        self._category, self._name = self._longest(facts.category[rows]), self._longest(device["name"][rows])

    def _by(self, values: Array) -> Array:
        return np.bincount(self._which, np.asarray(values, np.float64), self._groups)

    def _longest(self, codes: Array) -> Times:
        """Per group the code with most of its time."""
        values, place = distinct(codes)
        place = place + self._which * len(values)
        pairs, of_pair = distinct(place)
        del place
        order = np.argsort(np.bincount(of_pair, self._spent.astype(np.float64)), kind="stable")
        found = np.zeros(self._groups, np.int64)
        found[pairs[order] // len(values)] = values[pairs[order] % len(values)]
        return found

    def of(self, place: int, steps: int) -> OperatorWorkEntry:
        """Of one group, per step; what the group is of is left open."""
        whole, known = self._whole[place], self._known[place]
        return {
            "module": None,
            "operator": None,
            "shapes": "",
            "within": None,
            "within_shapes": "",
            "calls": 0.0,
            "kernels": float(self._kernels[place]) / steps,
            "kernel": self._trace.names[int(self._name[place])],
            "category": label(int(self._category[place])),
            "dur_ns": round(whole / steps),
            "flops": round(self._flops[place] / steps),
            "bytes": round(self._bytes[place] / steps),
            # Helpers of an operator have no work of their own, so a little of its time may have none.
            "peak_ns": round(self._floor[place] / steps) if whole and known >= 0.5 * whole else None,
            "known_ns": round(self._counted[place] / steps),
        }


def _around(host: Table, wanted: Mask, launch: Times) -> Times:
    """The innermost wanted host event around each launch, else NA."""
    found = np.full(len(launch), NA, np.int64)
    if wanted.any():
        linked = np.flatnonzero(launch != NA)
        own = launch[linked]
        found[linked] = innermost(host, wanted, host["thread"][own], host["start"][own])
    return found


def _outermost(host: Table, operators: Times) -> Mask:
    """Which host events are operators that no other encloses."""
    found = np.zeros(len(host), np.bool_)
    thread = host["thread"][operators]
    for which in distinct_values(thread).tolist():
        found[outermost(host, operators[thread == which])] = True
    return found


def _names_of(host: Table, events: Times) -> Array:
    return _of_events(host["name"], events)


def _of_events(codes: Array, events: Times) -> Array:
    """Of each event its code, `NO_NAME` where there is no event (a trace may have none at all)."""
    found = np.full(len(events), NO_NAME, codes.dtype)
    for block in blocks(0, len(events)):
        known = events[block] >= 0
        found[block][known] = codes[events[block][known]]
    return found


def _named(trace: Trace, events: Times) -> tuple[Array, Array]:
    """Codes of the names and of the input shapes of host events."""
    host, shapes = trace["host_events"], trace["shapes"]
    if not len(shapes):
        return _names_of(host, events), constant(NO_NAME, len(events), np.int64)
    dims = np.full(len(host), NO_NAME, np.int32)
    dims[shapes["event"]] = shapes["dims"]
    return _names_of(host, events), _of_events(dims, events)


def _text(trace: Trace, code: int) -> str:
    return "" if code == NO_NAME else trace.names[code]


def shape_text(dims: str) -> str:
    """`16×559×1024, 1024`: without inputs that are no tensors, whose number differs between versions of torch."""
    try:
        shapes = msgspec.json.decode(dims) if dims else []
    except msgspec.DecodeError:
        return ""
    text = ", ".join(_shape(shape) for shape in shapes if shape)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {crc32(text.encode()):08x}"


def _shape(shape: list[object]) -> str:
    if any(isinstance(size, list) for size in shape):
        return f"[{', '.join(_shape(one) for one in shape if isinstance(one, list))}]"
    return "×".join(map(str, shape))


ANALYZER = FileAnalyzer(
    "operator_work",
    entries_of_devices("operator_work", OPERATOR_WORK, _of_lane),
    (DEVICE_EVENTS,),
    (OPERATOR_WORK,),
    cost=2,
    large=True,
)
