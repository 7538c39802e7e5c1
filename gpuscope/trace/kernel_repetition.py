"""Steps from the repetition of the kernels themselves, where nothing in a recording is named after its steps.

The names of the kernels on the busiest stream recur with a period. A layer recurs too: what falls between groups of
periods (a collective, a kernel of another stream, a pause) shows that the whole group is what repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpuscope import when_used
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.intervals import union_at
from gpuscope.trace.schema import NA, Kind

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
