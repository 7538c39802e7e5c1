"""Counters of links and GPUs over time as lines of a picture: coordinates only, drawn by the HTML template."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.schema.document import Report
from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

WIDTH, HEIGHT = 960, 70
LEFT, TOP, BOTTOM = 90, 8, 60
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
    across = [LEFT + (WIDTH - LEFT) * edge / length for edge in edges]
    return " ".join(
        f"{x:.1f},{BOTTOM - (BOTTOM - TOP) * max(value, 0.0) / most:.1f}"
        for number, value in enumerate(values)
        for x in across[number : number + 2]
    )
