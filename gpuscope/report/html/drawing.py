"""Where the HTML report's bars, steps and marks stand: geometry only, in the units of one SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import field

from gpuscope.averages import median
from gpuscope.report.view import arrangement
from gpuscope.report.view.step_bars import KINDS, Kind, pieces
from gpuscope.schema.document import BreakdownEntry, Evidence, RankEntry, Report, StepEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import BOUND, PARTS

WIDTH, HEIGHT = 960, 128
LEFT, RIGHT, TOP, BOTTOM = 70, 950, 22, 106
MARK_Y, MARK_HEIGHT = 4, 12
"""Evidence stands in a lane of its own above the steps."""

STRIPS = 16
COLUMNS = 400
"""So many columns over all strips; with more steps than that, neighbours share one."""
CLIP = 3.0
"""Columns higher than so many medians are cut, or a slow first step would flatten all the others."""


@dataclass(frozen=True)
class Column:
    """One step, or several neighbours: where it stands, and the words of its tooltip."""

    x: float
    width: float
    title: str
    cut: bool


@dataclass(frozen=True)
class Mark:
    """One piece of evidence on a strip; `number` ties it to its line in the findings."""

    number: int
    x: float
    width: float
    title: str


@dataclass
class Strip:
    """The steps of one rank over time, as one path per part."""

    label: str
    rank: int
    paths: dict[str, str]
    columns: list[Column]
    ticks: list[tuple[float, str]]
    y_label: str
    steps_per_column: int
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True)
class _Group:
    """Neighbouring steps, relative to the run's origin, with their parts summed; no step means the whole window."""

    start: int
    end: int
    steps: list[StepEntry]
    parts: list[int]

    @property
    def mean(self) -> float:
        return sum(self.parts) / max(len(self.steps), 1)


@dataclass(frozen=True)
class _Scale:
    """One scale for all strips, so that they compare."""

    first: int
    last: int
    top: float

    def x(self, ns: float) -> float:
        inside = min(max(ns, self.first), self.last)
        return LEFT + (RIGHT - LEFT) * (inside - self.first) / max(self.last - self.first, 1)


def segments(entry: RankEntry) -> list[tuple[Kind, float, float, str]]:
    """(kind, x, width, words) of a rank's bar, in per cent of its width."""
    found: list[tuple[Kind, float, float, str]] = []
    x, own = 0.0, pieces(entry)
    for kind in KINDS:
        frac = own.get(kind.code, 0) / entry["window_ns"] if entry["window_ns"] else 0.0
        if frac > 0:
            found.append((kind, round(x, 3), round(100 * frac, 3), f"{kind.label}: {units.share(frac)}"))
        x += 100 * frac
    return found


def strips(report: Report, evidence: list[Evidence]) -> list[Strip]:
    """A strip per shown rank, and one per rank that the numbered `evidence` points at, at most STRIPS."""
    entries = _drawn(report, evidence)
    steps: dict[tuple[int, int | None], list[StepEntry]] = defaultdict(list)
    for step in report["steps"]:
        steps[step["rank"], step["device"]].append(step)
    room = max(COLUMNS // max(len(entries), 1), 10)
    starts = arrangement.starts(report)
    groups = [_groups(entry, steps[entry["rank"], entry["device"]], room, starts) for entry in entries]
    scale = _scale(entries, groups, [place for one in evidence if (place := arrangement.place_ns(one, starts))])
    made: dict[int, Strip] = {}
    found = []
    for entry, label, of_rank in zip(entries, arrangement.rank_labels(entries), groups, strict=True):
        strip = _strip(label, entry, of_rank, scale)
        found.append(strip)
        made.setdefault(entry["rank"], strip)
    for number, one in enumerate(evidence):
        place = arrangement.place_ns(one, starts)
        if place is not None and one["rank"] in made:
            made[one["rank"]].marks.append(_mark(number, one, place, scale))
    return found


def _drawn(report: Report, evidence: list[Evidence]) -> list[RankEntry]:
    shown, _ = arrangement.shown_ranks(report)
    named = {one["rank"] for one in evidence}
    also = [entry for entry in report["ranks"] if entry["rank"] in named and entry not in shown]
    chosen = [*shown, *also][:STRIPS]
    return sorted(chosen, key=lambda entry: (entry["rank"], entry["device"] or 0))


def _groups(entry: RankEntry, steps: list[StepEntry], room: int, starts: arrangement.Starts) -> list[_Group]:
    """Steps in at most `room` groups; without steps the whole window is one."""
    zero = starts[entry["rank"]]
    if not steps:
        start = entry["start_ns"] - zero
        parts = [entry["breakdown_ns"][part.key] for part in PARTS]
        return [_Group(start, start + entry["window_ns"], [], parts)]
    ordered = sorted(steps, key=lambda step: step["start_ns"])
    each = math.ceil(len(ordered) / room)
    found = []
    for i in range(0, len(ordered), each):
        some = ordered[i : i + each]
        parts = [sum(step["breakdown_ns"][part.key] for step in some) for part in PARTS]
        start = some[0]["start_ns"] - zero
        end = some[-1]["start_ns"] + some[-1]["dur_ns"] - zero
        found.append(_Group(start, end, some, parts))
    return found


def _scale(entries: list[RankEntry], groups: list[list[_Group]], places: list[int]) -> _Scale:
    of_windows = (entry["window_ns"] for entry in entries)
    window = max([*of_windows, *(group.end for of_rank in groups for group in of_rank)], default=0)
    # A wait may begin before the first device event; but one absurd stamp may not squash the picture.
    first = max(min([0, *places]), -window // 4)
    means = [group.mean for of_rank in groups for group in of_rank] or [1.0]
    return _Scale(first, window, max(min(max(means), CLIP * median(means)), 1.0))


def _strip(label: str, entry: RankEntry, groups: list[_Group], scale: _Scale) -> Strip:
    paths: dict[str, list[str]] = {part.key: [] for part in PARTS}
    columns = []
    for group in groups:
        x, end = scale.x(group.start), scale.x(group.end)
        # A hairline between steps, unless they are too thin for one.
        width = max(end - x - (1 if end - x > 4 else 0), 0.4)
        height = (BOTTOM - TOP) * min(group.mean / scale.top, 1.0)
        total = max(sum(group.parts), 1)
        y = float(BOTTOM)
        for part, value in zip(PARTS, group.parts, strict=True):
            high = height * value / total
            if high > 0:
                y -= high
                paths[part.key].append(f"M{x:.1f} {y:.2f}h{width:.1f}v{high:.2f}h-{width:.1f}z")
        columns.append(Column(round(x, 1), round(width, 1), _step_title(group), group.mean > scale.top))
    times = _ticks(scale.last)
    ticks = [(round(scale.x(ns), 1), word) for ns, word in zip(times, units.axis(times), strict=True)]
    return Strip(
        label=label,
        rank=entry["rank"],
        paths={key: "".join(pieces) for key, pieces in paths.items() if pieces},
        columns=columns,
        ticks=ticks,
        y_label=units.duration(round(scale.top)),
        steps_per_column=max((len(group.steps) for group in groups), default=0),
    )


def _step_title(group: _Group) -> str:
    shares = _shares(group.parts)
    mean = units.duration(round(group.mean))
    if not group.steps:
        return f"whole window: {mean}; {shares}"
    first, last = group.steps[0], group.steps[-1]
    if first is not last:
        return f"steps {_step_name(first)} to {_step_name(last)}: mean {mean}; {shares}"
    cause = f" ({first['cause']})" if first["cause"] else ""
    return f"step {_step_name(first)}: {mean}; {shares}; {BOUND[first['bound_by']]}{cause}"


def _step_name(step: StepEntry) -> str:
    return "before the first" if step["step"] is None else str(step["step"])


def _shares(parts: list[int]) -> str:
    total = max(sum(parts), 1)
    return ", ".join(
        f"{part.label} {units.share(value / total)}" for part, value in zip(PARTS, parts, strict=True) if value
    )


def _mark(number: int, evidence: Evidence, place: int, scale: _Scale) -> Mark:
    x, end = scale.x(place), scale.x(place + evidence["dur_ns"])
    title = f"{units.offset(place)}, {units.duration(evidence['dur_ns'])}: {units.crop(evidence['name'], 100)}"
    width = max(end - x, 3.0)
    return Mark(number, round(min(x, RIGHT - width), 1), round(width, 1), title)


def _ticks(last: int) -> list[int]:
    """Round times from 0 to `last`, at most seven."""
    if last <= 0:
        return [0]
    rough = last / 6
    power = 10 ** math.floor(math.log10(rough)) if rough >= 1 else 1
    every = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return list(range(0, last + 1, int(every)))


def shares_of(breakdown: BreakdownEntry) -> str:
    """A breakdown in words, for those who can't see the bar."""
    return _shares([breakdown[part.key] for part in PARTS])
