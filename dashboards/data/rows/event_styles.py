"""What each kind of event is called and how it is coloured on the timeline."""

from __future__ import annotations

from gpuscope.dashboards.data.rows.tracks import STEP
from gpuscope.trace.schema import Category, Kind
from gpuscope.words import palette

EVENT_STYLES: dict[int, tuple[str, str]] = {
    Kind.COMPUTE: ("compute", palette.BLUE),
    Kind.COMMUNICATION: ("communication", palette.ORANGE),
    Kind.MEMORY: ("memory copy", palette.PURPLE),
    len(Kind) + Category.OP: ("operator", palette.SKY),
    len(Kind) + Category.RUNTIME: ("runtime call", palette.GREEN),
    len(Kind) + Category.ANNOTATION: ("range", palette.YELLOW),
    len(Kind) + Category.PYTHON: ("Python", palette.GREY),
    len(Kind) + Category.OS: ("system call", palette.VERMILLION),
    len(Kind) + Category.OVERHEAD: ("profiler's own work", "#6B6B6B"),
    len(Kind) + Category.COMMUNICATION: ("communication call", palette.ORANGE),
    STEP: ("step", "#BBBBBB"),
}
"""Label and colour by look of an event (`Track.look`)."""
