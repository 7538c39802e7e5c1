"""Memory over time as lines of a picture: coordinates only, drawn by the HTML template."""

from __future__ import annotations

from gpuscope.report.view import memory_sentences
from gpuscope.schema.document import Report
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

WIDTH, HEIGHT = 960, 150
LEFT, TOP, BOTTOM = 90, 12, 130
LINES_SHOWN = 16
NAME = 120


@dataclass(frozen=True)
class Lines:
    """One device: points of what was in use and of what was reserved, and the label of the highest."""

    label: str
    allocated: str
    reserved: str
    most: str


def lines(report: Report) -> list[Lines]:
    """One per entry of the section `memory`, across in order of events."""
    return [_lines(entry) for entry in report.get("memory", [])[:LINES_SHOWN] if len(entry["timeline"]) > 1]


def _lines(entry: MemoryEntry) -> Lines:
    samples = entry["timeline"]
    most = max(max(sample["allocated_bytes"], sample["reserved_bytes"] or 0) for sample in samples) or 1
    allocated = [sample["allocated_bytes"] for sample in samples]
    reserved = [sample["reserved_bytes"] for sample in samples]
    return Lines(
        units.crop(memory_sentences.label(entry), NAME),
        _points(allocated, most),
        _points(reserved, most),
        units.memory(most),
    )


def _points(values: list[int] | list[int | None], most: int) -> str:
    step = (WIDTH - LEFT) / max(len(values) - 1, 1)
    return " ".join(
        f"{LEFT + at * step:.1f},{BOTTOM - (BOTTOM - TOP) * value / most:.1f}"
        for at, value in enumerate(values)
        if value is not None
    )
