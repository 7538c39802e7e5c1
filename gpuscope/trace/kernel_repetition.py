"""Steps from the repetition of the kernels themselves, where nothing in a recording is named after its steps.

The names of the kernels on the busiest stream recur with a period. A layer recurs too: what falls between groups of
periods (a collective, a kernel of another stream, a pause) shows that the whole group is what repeats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpuscope import when_used
from gpuscope.trace.intervals import union_at
from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Array, Mask, Table, Times
from gpuscope.when_used import dataclass

# Families of ranges alike but for the numbers in their names, of which one member, or one round, is a step.
#
# `token_7_processing` and `frame_12` count up; `layer_0` … `layer_31` come round again, once per step.

MOST_WORK = 0.5
"""Share of the device's time that the members must have launched."""
COUNTING = 0.8
"""Share of the members that must count up by one, for a number that falls back to begin a round."""
_RANGE_FAMILIES_NUMBER = when_used.pattern(r"\d+")
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
        if _RANGE_FAMILIES_NUMBER.search(name) and not _PHASE.search(name):
            labels[place] = label_of.setdefault(_RANGE_FAMILIES_NUMBER.sub("#", name), len(label_of))
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
    texts = [_RANGE_FAMILIES_NUMBER.findall(names[code]) for code in codes.tolist()]
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
    period = _range_families_period(family.name)
    varying = [column for column in numbers.T if len(np.unique(column)) > 1]
    if period is not None:
        return _first_of_rounds(family, period, varying)
    if len(varying) == 1:
        climbs = np.diff(varying[0])
        if float((climbs == 1).mean()) >= COUNTING:
            return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(climbs < 0) + 1))
    return None


def _range_families_period(name: Times) -> int | None:
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


MIN_PERIODS = 3
"""Minimum repetitions of a kernel sequence before its period counts as a step, and of groups before they do."""
MIN_AGREEMENT = 0.95
"""Share of kernels that must have the same name one period later."""
AS_EXACT = 0.001
"""Periods whose agreement differs by less repeat equally exactly."""
ON_TIME = 0.8
"""Share of what interrupts the periods that must come at equal distances: a checkpoint may add one now and then."""
_LAGS_TRIED = 256
_MARKS_TRIED = 64
_NUMBER = when_used.pattern(r"\d+")


class Repetition(NamedTuple):
    """Start and end of each step: of the ranges of this label on the host's clock, without one on the device's."""

    start: Times
    end: Times
    label: str


def repeating_kernels(host: Table, device: Table, names: NamePool, ranges: Times, rows: Mask) -> Repetition | None:
    """The steps of one rank: what repeats as a whole on its busiest stream, by the names of the kernels.

    `ranges` are the rank's rows in `host` that may bound a step, `rows` select its device events. None where nothing
    repeats, or where what repeats is a part of something whose bounds can't be told.
    """
    kernels = np.flatnonzero(rows & (device["kind"] != Kind.MEMORY))
    if len(kernels) < 2 * MIN_PERIODS:
        return None
    streams, counts = np.unique(device["stream"][kernels], return_counts=True)
    on_stream = device["stream"][kernels] == streams[np.argmax(counts)]
    sequence = kernels[on_stream]
    period = _period(device["name"][sequence])
    if period is None:
        return None
    start = device["start"][sequence]
    pause = start[1:] - device["end"][sequence][:-1]
    groups = _groups(host, device, kernels, on_stream, np.flatnonzero(rows), period)
    if groups is None:
        return None
    length, places = groups
    if length > period:
        # Where several things fall between groups, these begin where the pause before is the longest.
        offset = max(places, key=lambda place: _usual(pause[(place or length) - 1 :: length]))
        if (bounding := _bounding_ranges(host, device, names, ranges, sequence[offset:], length)) is not None:
            return bounding
    else:
        # Where a step begins within the period is not recorded; the longest pause is the likeliest place.
        whole = len(pause) // period
        offset = (int(pause[: whole * period].reshape(whole, period).sum(0).argmax()) + 1) % period
    begin = start[offset::length]
    return Repetition(begin, np.concatenate((begin[1:], device["end"][sequence][-1:])), "")


# -- the period of the kernels


def _period(sequence: Array) -> int | None:
    """The shortest p with which the names recur about as exactly as with any other, `MIN_PERIODS` times.

    Layers repeat too, but less exactly than the steps they are in; and a kernel that occurs less than
    once per period (an embedding, a loss) shows that the period is a layer's.
    """
    _, codes, counts = np.unique(sequence, return_inverse=True, return_counts=True)
    agreement = {
        lag: float((codes[lag:] == codes[:-lag]).mean())
        for lag in _likely_lags(codes)
        if bool((counts >= len(codes) // lag).all())
    }
    best = max(agreement.values(), default=0.0)
    if best < MIN_AGREEMENT:
        return None
    return min(lag for lag, share in agreement.items() if share >= best - AS_EXACT)


def _likely_lags(codes: Array) -> list[int]:
    """Lags at which the sequence looks most like itself, by autocorrelation, O(n log n).

    Each name becomes a random number of modulus 1, so that equal names correlate and others cancel out.
    """
    size = 1 << int(2 * len(codes) - 1).bit_length()
    phase = np.random.default_rng(0).random(int(codes.max()) + 1)
    spectrum = np.fft.fft(np.exp(2j * np.pi * phase)[codes], size)
    longest = len(codes) // MIN_PERIODS
    correlation = np.fft.ifft(np.abs(spectrum) ** 2).real[: longest + 1] / (len(codes) - np.arange(longest + 1))
    lags = np.argsort(-correlation[1:], kind="stable")[:_LAGS_TRIED] + 1
    return [int(lag) for lag in lags]


# -- groups of periods


class _Spacing(NamedTuple):
    """At what distance (kernels of the sequence) something interrupts the periods, 0 where that changes midway; and
    the places where it does."""

    length: int
    marks: Times


def _groups(
    host: Table, device: Table, kernels: Times, on_stream: Mask, events: Times, period: int
) -> tuple[int, list[int]] | None:
    """(kernels in a group, at which of its places groups may begin); the period itself and no place where nothing
    interrupts it; None where something does, and no length fits all that does."""
    sequence = kernels[on_stream]
    by_kernels = [
        spacing
        for marks in _other_kernels(host, device, kernels, on_stream, period)
        if (spacing := _spacing(marks, len(sequence), period)) is not None
    ]
    pauses = _spacing(_long_pauses(device, sequence, events, period), len(sequence), period)
    if any(spacing.length == 0 for spacing in by_kernels):
        return None
    length = math.lcm(*(spacing.length for spacing in by_kernels))
    if MIN_PERIODS * length > len(sequence) and len(by_kernels) > 1:
        return None
    # Pauses come by chance, too: what kernels tell goes first.
    if pauses is not None and (pauses.length % length == 0 if by_kernels else True):
        if pauses.length == 0:
            return None if not by_kernels else (length, _places(by_kernels, length))
        by_kernels, length = [*by_kernels, pauses], pauses.length
    return (length, _places(by_kernels, length)) if by_kernels else (period, [])


def _places(spacings: list[_Spacing], length: int) -> list[int]:
    """Where in a group what interrupts it comes: what does so once per group, else what comes most seldom."""
    seldom = max(spacing.length for spacing in spacings)
    marks = np.concatenate([one.marks for one in spacings if one.length == seldom])
    return [int(place) for place in np.unique(marks % length)]


def _other_kernels(host: Table, device: Table, kernels: Times, on_stream: Mask, period: int) -> Iterator[Times]:
    """By name, where in the sequence kernels fall that its periods lack: before how many of its kernels.

    In order of launch, for what runs beside the sequence starts now a little sooner, now a little later.
    """
    launch = device.at("launch", kernels)
    start = device["start"][kernels]
    at = host["start"][launch] if bool((launch != NA).all()) else start
    order = np.lexsort((start, at))
    within = on_stream[order]
    before = np.cumsum(within)[~within]
    others = kernels[order][~within]
    code, kind = device["name"][others], device["kind"][others]
    lacked = (kind == Kind.COMMUNICATION) | ~np.isin(code, device["name"][kernels[on_stream]])
    code, before = code[lacked], before[lacked]
    if not len(code):
        return
    by_name = np.argsort(code, kind="stable")
    count = int(on_stream.sum())
    for places in np.split(before[by_name], np.flatnonzero(np.diff(code[by_name])) + 1):
        # What every period has is a part of it; what more of it there is now and then falls between groups.
        in_period = np.bincount(places // period, minlength=count // period)
        more = in_period > np.sort(in_period[: count // period])[(count // period - 1) // 2]
        last = np.append(places[1:] // period != places[:-1] // period, True)
        yield places[last & more[places // period]]


def _long_pauses(device: Table, sequence: Times, events: Times, period: int) -> Times:
    """Where in the sequence the device idles for longer than a period usually takes."""
    start = device["start"][sequence]
    usual = _usual(start[period:] - start[:-period])
    busy = union_at(device["start"], device["end"], events)
    behind = busy.start[1:][busy.start[1:] - busy.end[:-1] > usual]
    return np.unique(np.searchsorted(start, behind))


def _spacing(marks: Times, count: int, period: int) -> _Spacing | None:
    """At what equal distances marks fall into a sequence of `count` kernels, `MIN_PERIODS` groups or more; None where
    that is by chance, or in every period."""
    marks = np.unique(marks[(marks > 0) & (marks < count)])
    if len(marks) < MIN_PERIODS - 1:
        return None
    apart, times = np.unique(np.diff(marks), return_counts=True)
    # Where several fall into a group, their distances come round.
    rounds = (marks[1:_MARKS_TRIED] - marks[0]).tolist()
    for length in (int(apart[times.argmax()]), *rounds):
        on_time = _on_time(marks, length, count)
        if len(on_time) and length <= period:
            return None
        if len(on_time) and _whole_groups(on_time, length, count) >= MIN_PERIODS:
            return _Spacing(length, on_time)
    # Groups of one length for the most part, then others: parts of something, whose bounds nothing tells.
    apart, times = np.unique(np.diff(marks, prepend=0, append=count), return_counts=True)
    grouped = (apart > period) & (times >= MIN_PERIODS) & (2 * apart * times > count)
    return _Spacing(0, marks) if grouped.any() else None


def _on_time(marks: Times, length: int, count: int) -> Times:
    """The marks that have one `length` before and behind them, as far as the sequence reaches; none where too many
    have not."""
    behind = (marks + length >= count) | np.isin(marks + length, marks)
    before = (marks - length <= 0) | np.isin(marks - length, marks)
    kept = behind & before
    return marks[kept] if float(kept.mean()) >= ON_TIME else marks[:0]


def _whole_groups(marks: Times, length: int, count: int) -> int:
    """Groups from mark to mark, those at the ends of the sequence included where nothing of them is missing."""
    places, times = np.unique(marks % length, return_counts=True)
    return int((times - 1 + (places == 0) + ((count - places) % length == 0)).max())


def _usual(times: Times) -> int:
    """The lower median, ns."""
    return int(np.sort(times)[(len(times) - 1) // 2])


# -- what bounds the groups on the host


def _bounding_ranges(
    host: Table, device: Table, names: NamePool, ranges: Times, sequence: Times, length: int
) -> Repetition | None:
    """The ranges of one label and thread of which each holds the launches of one group, group after group; of several
    such the outermost."""
    whole = len(sequence) // length
    launch = device.at("launch", sequence[: whole * length])
    if whole < MIN_PERIODS - 1 or bool((launch == NA).any()):
        return None
    at = host["start"][launch].reshape(whole, length)
    first, last = at.min(axis=1), at.max(axis=1)
    label_of = {code: _NUMBER.sub("#", names[code]) for code in np.unique(host["name"][ranges]).tolist()}
    members: dict[tuple[str, int], list[int]] = {}
    for row in ranges[np.argsort(host["start"][ranges], kind="stable")].tolist():
        members.setdefault((label_of[int(host["name"][row])], int(host["thread"][row])), []).append(row)
    found: list[Repetition] = []
    for (label, _), rows in members.items():
        if len(rows) < whole:
            continue
        start, end = host["start"][rows], host["end"][rows]
        place = np.searchsorted(start, first, "right") - 1
        if place[0] < 0 or bool((np.diff(place) != 1).any()) or bool((start[1:] < end[:-1]).any()):
            continue
        if bool((last < end[place]).all()):
            found.append(Repetition(start, end, label))
    return max(found, key=lambda one: int((one.end - one.start).sum()), default=None)
