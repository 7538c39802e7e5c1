"""Families of ranges alike but for the numbers in their names, of which one member, or one round, is a step.

`token_7_processing` and `frame_12` count up; `layer_0` … `layer_31` come round again, once per step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

MOST_WORK = 0.5
"""Share of the device's time that the members must have launched."""
COUNTING = 0.8
"""Share of the members that must count up by one, for a number that falls back to begin a round."""
_NUMBER = when_used.pattern(r"\d+")
_PHASE = when_used.pattern(
    r"optimizer|optim|zero_grad|scheduler|forward|backward|load|fetch|copy|nccl:|gloo:", re.IGNORECASE
)
"""Parts of a step, and ranges of libraries: micro-batches are numbered, too."""


@dataclass(frozen=True)
class Family:
    """Members on one thread, in order of time: one after the other, none overlapping the next."""

    label: str
    rows: Times
    start: Times
    end: Times
    name: Times
    """Per member, the code of its name."""


@dataclass(frozen=True)
class Spans:
    """What a family says of the steps: number, start and end of each, shape (steps,)."""

    step: Times
    start: Times
    end: Times
    basis: str


def steps_of_families(host: Table, device: Table, names: NamePool, rows: Times, device_rows: Mask) -> Spans | None:
    """The steps that the outermost family with two members or more tells, where its members launched most of the
    device's work; `rows` are the ranges of one rank in `host`, `device_rows` select its device events."""
    work: tuple[Times, Times] | None = None
    found = sorted(_families(host, names, rows), key=lambda own: -int((own.end - own.start).sum()))
    for family in found:
        work = work or _work(host, device, device_rows)
        if _share(family, *work) <= MOST_WORK:
            continue
        spans = _spans(family, names)
        if spans is not None:
            return spans
    return None


def _families(host: Table, names: NamePool, rows: Times) -> Iterator[Family]:
    """Families with at least two different names whose members do not overlap."""
    codes, which = np.unique(host["name"][rows], return_inverse=True)
    label_of: dict[str, int] = {}
    labels = np.full(len(codes), NA, np.int64)
    for place, code in enumerate(codes.tolist()):
        name = names[code]
        if _NUMBER.search(name) and not _PHASE.search(name):
            labels[place] = label_of.setdefault(_NUMBER.sub("#", name), len(label_of))
    texts = list(label_of)
    several = {label for label, count in zip(*np.unique(labels, return_counts=True), strict=True) if count > 1}
    label = labels[which]
    kept = np.flatnonzero(np.isin(label, list(several - {NA})))
    order = kept[np.lexsort((host["start"][rows[kept]], host["thread"][rows[kept]], label[kept]))]
    key = label[order] * (int(host["thread"].max(initial=0)) + 1) + host["thread"][rows[order]]
    for own in np.split(order, np.flatnonzero(np.diff(key)) + 1):
        members = rows[own]
        start, end = host["start"][members], host["end"][members]
        if len(own) > 1 and not bool((start[1:] < end[:-1]).any()):
            yield Family(texts[int(label[own[0]])], members, start, end, host["name"][members])


def _work(host: Table, device: Table, device_rows: Mask) -> tuple[Times, Times]:
    """When each device event whose launch is known was launched, in order of time, and how long it took."""
    events = np.flatnonzero(device_rows)
    launch = device.at("launch", events)
    events, launch = events[launch != NA], launch[launch != NA]
    at = host["start"][launch]
    order = np.argsort(at, kind="stable")
    return at[order], (device["end"][events] - device["start"][events])[order]


def _share(family: Family, launched: Times, took: Times) -> float:
    """The share of the device's time that was launched within the members."""
    if not len(launched):
        return 0.0
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(took)))
    inside = total[np.searchsorted(launched, family.end)] - total[np.searchsorted(launched, family.start)]
    return float(inside.sum() / total[-1]) if total[-1] else 0.0


def _spans(family: Family, names: NamePool) -> Spans | None:
    """A step per member; where the names come round again, per round. None where that leaves fewer than two."""
    numbers = _numbers(family.name, names)
    if len(np.unique(family.name)) == len(family.name):
        return Spans(_counted(numbers), family.start, family.end, f"ranges named {family.label!r}")
    begins = _rounds(family, numbers)
    if begins is None:
        steps = np.arange(len(family.name), dtype=np.int64)
        return Spans(steps, family.start, family.end, f"ranges named {family.label!r}")
    if len(begins) < 2:
        return None
    last = np.append(begins[1:], len(family.name)) - 1
    steps = np.arange(len(begins), dtype=np.int64)
    return Spans(steps, family.start[begins], family.end[last], f"rounds of ranges named {family.label!r}")


def _numbers(codes: Times, names: NamePool) -> Times:
    """The numbers in the members' names, shape (members, numbers in a name); those that fit no int64 are 0."""
    texts = [_NUMBER.findall(names[code]) for code in codes.tolist()]
    return np.array([[int(text) if len(text) < 19 else 0 for text in found] for found in texts], np.int64)


def _counted(numbers: Times) -> Times:
    """The first of the numbers that is each member's own; else 0, 1, 2…"""
    for column in numbers.T:
        if len(np.unique(column)) == len(column):
            return np.asarray(column)
    return np.arange(len(numbers), dtype=np.int64)


def _rounds(family: Family, numbers: Times) -> Times | None:
    """Places of the members that begin a round; None where the names recur without coming round (batches of equal
    size one after the other)."""
    period = _period(family.name)
    varying = [column for column in numbers.T if len(np.unique(column)) > 1]
    if period is not None:
        return _first_of_rounds(family, period, varying)
    if len(varying) == 1:
        climbs = np.diff(varying[0])
        if float((climbs == 1).mean()) >= COUNTING:
            return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(climbs < 0) + 1))
    return None


def _period(name: Times) -> int | None:
    """After how many members all names recur in the same order; None where they do not, or only one name does."""
    for place in np.flatnonzero(name[1:] == name[0])[:64].tolist():
        period = place + 1
        if bool((name[period:] == name[:-period]).all()):
            return period if period > 1 else None
    return None


def _first_of_rounds(family: Family, period: int, varying: Sequence[Times]) -> Times:
    """A round begins with the lowest number; where that occurs twice in it, where the pause before is longest."""
    head = np.stack([column[:period] for column in varying], axis=1)
    lowest = np.flatnonzero((head == head[np.lexsort(head.T[::-1])[0]]).all(axis=1))
    pauses = np.append(family.start[1:] - family.end[:-1], 0)[np.arange(len(family.start)) - 1]
    begins = lowest.tolist()
    longest = {place: np.median(own) if len(own := pauses[place or period :: period]) else 0.0 for place in begins}
    best = max(begins, key=lambda place: (longest[place], -place))
    return np.arange(best, len(family.start), period, dtype=np.int64)
