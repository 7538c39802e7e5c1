"""Where the HTML report's bars, steps and marks stand: geometry only, in the units of one SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import field

from gpuscope.report.view import call_tree, report_rows
from gpuscope.report.view.headline import KINDS, Kind, pieces
from gpuscope.schema.call_tree_section import PlaceKind
from gpuscope.schema.document import BreakdownEntry, Evidence, RankEntry, Report, StepEntry
from gpuscope.welch import median
from gpuscope.when_used import dataclass
from gpuscope.words import units, vocabulary
from gpuscope.words.vocabulary import BOUND, PARTS

# The tree of places as a flame graph: boxes only, drawn by the HTML template.

FLAME_DRAWING_WIDTH, ROW = 960, 17
LEAST = 2.0
"""Pixels from which a place is drawn."""
LETTER = 7.2
DEEPEST = 40
COLOURS: dict[PlaceKind, str] = {
    "range": vocabulary.YELLOW,
    "line": vocabulary.SKY,
    "module": vocabulary.GREEN,
    "operator": vocabulary.ORANGE,
    "kernel": vocabulary.PURPLE,
    "unknown": vocabulary.GREY,
}


@dataclass(frozen=True)
class Box:
    """A place: where it is drawn, the part of its name that fits, and what a reader who points at it is told."""

    x: str
    y: int
    width: str
    colour: str
    label: str
    title: str


@dataclass(frozen=True)
class Flame:
    """The picture: as wide as device and idle time of all places together."""

    height: int
    boxes: list[Box]
    kinds: list[tuple[PlaceKind, str]]
    """Those drawn, with their colours."""


def flame(report: Report) -> Flame | None:
    """The picture; None where no place is known."""
    entries = report.get("call_tree", [])
    within = call_tree.inclusive(entries)
    weight = {number: device + idle for number, (device, _, idle) in within.items()}
    everything = sum(weight[entry["id"]] for entry in entries if entry["parent"] is None)
    if not everything:
        return None
    left: dict[int | None, float] = {None: 0.0}
    depth: dict[int | None, int] = {None: -1}
    boxes: list[Box] = []
    kinds: dict[PlaceKind, str] = {}
    for entry in entries:
        width = FLAME_DRAWING_WIDTH * weight[entry["id"]] / everything
        x = left[entry["id"]] = left[entry["parent"]]
        left[entry["parent"]] = x + width
        level = depth[entry["id"]] = depth[entry["parent"]] + 1
        if width < LEAST or level >= DEEPEST:
            continue
        name, kind = units.clean(entry["name"]), entry["kind"]
        device, exposed, idle = (units.duration(ns) for ns in within[entry["id"]])
        label = units.crop(name, int(width / LETTER)) if width > 4 * LETTER else ""
        title = f"{units.crop(name, 200)} ({kind}): device {device}, exposed communication {exposed}, idle {idle}"
        boxes.append(Box(f"{x:.1f}", level * ROW, f"{width:.1f}", COLOURS[kind], label, title))
        kinds[kind] = COLOURS[kind]
    return Flame((1 + max(box.y for box in boxes) // ROW) * ROW, boxes, list(kinds.items())) if boxes else None


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
    starts = report_rows.starts(report)
    groups = [_groups(entry, steps[entry["rank"], entry["device"]], room, starts) for entry in entries]
    scale = _scale(entries, groups, [place for one in evidence if (place := report_rows.place_ns(one, starts))])
    made: dict[int, Strip] = {}
    found = []
    for entry, label, of_rank in zip(entries, report_rows.rank_labels(entries), groups, strict=True):
        strip = _strip(label, entry, of_rank, scale)
        found.append(strip)
        made.setdefault(entry["rank"], strip)
    for number, one in enumerate(evidence):
        place = report_rows.place_ns(one, starts)
        if place is not None and one["rank"] in made:
            made[one["rank"]].marks.append(_mark(number, one, place, scale))
    return found


def _drawn(report: Report, evidence: list[Evidence]) -> list[RankEntry]:
    shown, _ = report_rows.shown_ranks(report)
    named = {one["rank"] for one in evidence}
    also = [entry for entry in report["ranks"] if entry["rank"] in named and entry not in shown]
    chosen = [*shown, *also][:STRIPS]
    return sorted(chosen, key=lambda entry: (entry["rank"], entry["device"] or 0))


def _groups(entry: RankEntry, steps: list[StepEntry], room: int, starts: report_rows.Starts) -> list[_Group]:
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
