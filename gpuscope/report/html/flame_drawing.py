"""The tree of places as a flame graph: boxes only, drawn by the HTML template."""

from __future__ import annotations

from gpuscope.report.view import places
from gpuscope.schema.call_tree_section import PlaceKind
from gpuscope.schema.document import Report
from gpuscope.when_used import dataclass
from gpuscope.words import palette, units

WIDTH, ROW = 960, 17
LEAST = 2.0
"""Pixels from which a place is drawn."""
LETTER = 7.2
DEEPEST = 40
COLOURS: dict[PlaceKind, str] = {
    "range": palette.YELLOW,
    "line": palette.SKY,
    "module": palette.GREEN,
    "operator": palette.ORANGE,
    "kernel": palette.PURPLE,
    "unknown": palette.GREY,
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
    within = places.inclusive(entries)
    weight = {number: device + idle for number, (device, _, idle) in within.items()}
    everything = sum(weight[entry["id"]] for entry in entries if entry["parent"] is None)
    if not everything:
        return None
    left: dict[int | None, float] = {None: 0.0}
    depth: dict[int | None, int] = {None: -1}
    boxes: list[Box] = []
    kinds: dict[PlaceKind, str] = {}
    for entry in entries:
        width = WIDTH * weight[entry["id"]] / everything
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
