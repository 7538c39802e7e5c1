"""A small timeline around one piece of evidence: its span, others near it, the steps they lie in, and where events are
at hand what the ranks run meanwhile; geometry only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from gpuscope.schema.document import Evidence, Report, StepEntry
from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Counters of links and GPUs over time as lines of a picture: coordinates only, drawn by the HTML template.

COUNTER_DRAWING_WIDTH, HEIGHT = 960, 70
COUNTER_DRAWING_LEFT, COUNTER_DRAWING_TOP, BOTTOM = 90, 8, 60
LINES_SHOWN = 32


@dataclass(frozen=True)
class Course:
    """One counter: the points of its means over time, its figures, and when it was sampled."""

    place: str
    counter: str
    points: str
    most: str
    figures: str
    span: str


def courses(report: Report) -> list[Course]:
    """One per entry of `link_counters` and `device_counters`, all on one time axis: that of all counters together."""
    entries: list[LinkCounterEntry] = [*report.get("link_counters", []), *report.get("device_counters", [])]
    if not entries:
        return []
    begin = min(entry["start_ns"] for entry in entries)
    end = max((entry["start_ns"] + entry["bin_ns"] * len(entry["course"])) for entry in entries)
    return [_course(entry, begin, max(end - begin, 1)) for entry in entries[:LINES_SHOWN]]


def _course(entry: LinkCounterEntry, begin: int, length: int) -> Course:
    exposed = entry["mean_while_exposed"]
    figures = f"mean {units.amount(entry['mean'], entry['unit'])}, peak {units.amount(entry['peak'], entry['unit'])}"
    if exposed is not None:
        figures += f", while communication is exposed {units.amount(exposed, entry['unit'])}"
    most = max(entry["course"], default=0.0)
    return Course(
        entry["place"],
        entry["counter"],
        _points(entry, begin, length, most or 1.0),
        units.amount(most, entry["unit"]),
        figures,
        units.duration(length),
    )


def _points(entry: LinkCounterEntry, begin: int, length: int, most: float) -> str:
    """A step per bin, the mean over it as its height."""
    values: Sequence[float] = entry["course"]
    edges = [entry["start_ns"] + number * entry["bin_ns"] - begin for number in range(len(values) + 1)]
    across = [COUNTER_DRAWING_LEFT + (COUNTER_DRAWING_WIDTH - COUNTER_DRAWING_LEFT) * edge / length for edge in edges]
    return " ".join(
        f"{x:.1f},{BOTTOM - (BOTTOM - COUNTER_DRAWING_TOP) * max(value, 0.0) / most:.1f}"
        for number, value in enumerate(values)
        for x in across[number : number + 2]
    )


WIDTH, LEFT, LANE = 400, 62, 32
TOP, ROW = 16, 11
"""Above the first lane, and the height of each of its two rows: compute, and below it what is no compute."""
COLUMNS = 240
"""Of a lane, each as high as it is busy."""
AROUND = 1.0
"""So many times its own length is shown on either side of a span."""
OTHER_RANKS = 2

Busy = Callable[[int, int, int, int], Iterable[tuple[int, str, Sequence[float]]]]
"""Of a rank between two times in so many columns: row, colour, and the share of each column that it is busy."""


@dataclass(frozen=True)
class Span:
    """One span of a lane; `own` is the evidence itself."""

    x: float
    width: float
    own: bool
    title: str


@dataclass(frozen=True)
class Lane:
    """One rank: where its steps begin, and what is known to run."""

    label: str
    y: int
    bounds: list[tuple[float, str]]
    """(x, step) of each step that begins in the picture."""
    spans: list[Span]
    paths: list[tuple[str, str]]
    """(colour, path) of what it runs; empty where only the evidence is known."""


@dataclass(frozen=True)
class Moment:
    """The picture."""

    height: int
    lanes: list[Lane]
    first: str
    last: str
    lasts: str
    at: float
    """The middle of the evidence, under which its length stands."""


class Moments:
    """Draws the surroundings of evidence of one report."""

    def __init__(self, report: Report, evidence: Sequence[Evidence], busy: Busy = lambda *_: ()) -> None:
        self.busy = busy
        self.steps: dict[int, list[StepEntry]] = defaultdict(list)
        for step in report["steps"]:
            self.steps[step["rank"]].append(step)
        self.spans: dict[int, list[Evidence]] = defaultdict(list)
        for one in evidence:
            self.spans[one["rank"]].append(one)
        self.compared = report["trace"]["clock_error_ns"] is not None
        clock = report["trace"].get("clock")
        self.offsets = clock["offset_ns"] if clock is not None else {}
        """By rank, how far its own clock is ahead, ns."""

    def around(self, one: Evidence, ranks: Sequence[int], start: int | None) -> Moment | None:
        """The picture of `one`, with the `ranks` of its finding where clocks are comparable: those it waits for stand
        above it, others of its kind below. None where its rank has no window, whose start all times are relative to."""
        if start is None or one["dur_ns"] <= 0:
            return None
        margin = round(AROUND * one["dur_ns"])
        begin, end = one["start_ns"] - margin, one["start_ns"] + one["dur_ns"] + margin
        others = [rank for rank in ranks if rank != one["rank"] and rank in self.steps] if self.compared else []
        accused = set() if one["rank"] in ranks else set(others)
        shown = sorted([one["rank"], *others[:OTHER_RANKS]], key=lambda rank: rank not in accused)
        ahead = [self.offsets.get(str(rank), 0) - self.offsets.get(str(one["rank"]), 0) for rank in shown]
        lanes = [
            self._lane(rank, TOP + i * LANE, begin + ahead[i], end + ahead[i], one, "▸ " * (rank in accused))
            for i, rank in enumerate(shown)
        ]
        height = TOP + LANE * len(shown) + 12
        at = LEFT + (WIDTH - LEFT) / 2
        lasts = units.duration(one["dur_ns"])
        return Moment(height, lanes, units.offset(begin - start), units.offset(end - start), lasts, at)

    def _lane(self, rank: int, y: int, begin: int, end: int, one: Evidence, mark: str) -> Lane:
        def x(ns: int) -> float:
            return round(LEFT + (WIDTH - LEFT) * (min(max(ns, begin), end) - begin) / (end - begin), 1)

        bounds = [
            (x(step["start_ns"]), "" if step["step"] is None else f"step {step['step']}")
            for step in self.steps[rank]
            if begin < step["start_ns"] < end
        ]
        near = [own for own in self.spans[rank] if own["start_ns"] < end and own["start_ns"] + own["dur_ns"] > begin]
        spans = [
            Span(
                x(own["start_ns"]),
                max(round(x(own["start_ns"] + own["dur_ns"]) - x(own["start_ns"]), 1), 2.0),
                own is one,
                f"{units.crop(own['name'], 80)}: {units.duration(own['dur_ns'])}",
            )
            for own in near
        ]
        paths = [
            (colour, "".join(_columns(shares, y + (row + 1) * ROW)))
            for row, colour, shares in self.busy(rank, begin, end, COLUMNS)
        ]
        return Lane(f"{mark}rank {rank}", y, bounds, spans, paths)


def _columns(shares: Sequence[float], bottom: float) -> Iterator[str]:
    """A box for each run of columns that are as busy as each other."""
    at, wide = 0, (WIDTH - LEFT) / COLUMNS
    for high, same in groupby(round(share * (ROW - 1), 1) for share in shares):
        number = len(list(same))
        if high:
            yield f"M{LEFT + at * wide:.1f} {bottom - high:.1f}h{number * wide:.1f}v{high}h-{number * wide:.1f}z"
        at += number
