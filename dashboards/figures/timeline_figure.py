"""The timeline: marks of tracks as bars over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpuscope.dashboards import theme
from gpuscope.dashboards.data.detail_levels import Marks
from gpuscope.dashboards.data.tracks import NESTED, STEP, Track
from gpuscope.dashboards.plain_text import plain
from gpuscope.report.view import palette, units
from gpuscope.trace.schema import Category, Kind

ROW = 22
"""Pixels per track."""
WIDTH = 900
"""About the pixels that the plot is wide: used to estimate what text fits into a bar."""
_CHARACTER = 7
NAME = 140

LOOKS: dict[int, tuple[str, str, str]] = {
    Kind.COMPUTE: ("compute", palette.BLUE, ""),
    Kind.COMMUNICATION: ("communication", palette.ORANGE, ""),
    Kind.MEMORY: ("memory", palette.PURPLE, ""),
    len(Kind) + Category.OP: ("operator", palette.SKY, ""),
    len(Kind) + Category.RUNTIME: ("runtime call", palette.GREEN, ""),
    len(Kind) + Category.ANNOTATION: ("range", palette.YELLOW, ""),
    len(Kind) + Category.PYTHON: ("Python", palette.GREY, ""),
    len(Kind) + Category.OS: ("system call", palette.VERMILLION, ""),
    len(Kind) + Category.OVERHEAD: ("profiler's own work", palette.GREY, "x"),
    len(Kind) + Category.COMMUNICATION: ("communication call", palette.ORANGE, "/"),
    STEP: ("step", "#BBBBBB", ""),
}
"""Per look of an event: its label, colour and pattern."""


@dataclass(frozen=True)
class Frame:
    """What is shown: `window` and `base` (the zero of the axis) in ns on the run's clock."""

    window: tuple[int, int]
    base: int
    dark: bool = False
    selected: tuple[str, tuple[int, int]] | None = None
    """Key of a track, and the span on it that is outlined."""
    marked: tuple[int, int] | None = None
    """A span to point at on all tracks."""


Name = Callable[[Track, int], str]
"""The name of the event at a place of a track."""


def timeline(marks: Sequence[Marks], name: Name, frame: Frame) -> dict[str, Any]:
    """One row per track, in this order, with its marks as bars; `customdata` holds the reference of each event.

    A plain dict: validating and copying thousands of values in a `go.Figure` takes longer than all the rest.
    """
    bars = [_bars(look, columns) for look, columns in _by_look(marks, name, frame)]
    ticks, rows = _ticks(frame), list(range(len(marks)))
    layout = {
        "template": theme.template_json(frame.dark),
        "barmode": "overlay",
        "bargap": 0,
        "dragmode": "pan",
        "hovermode": "closest",
        "hoverdistance": 4,
        "showlegend": True,
        "legend": {"uirevision": "keep", "itemsizing": "constant"},
        "margin": {"l": 10, "r": 10, "t": 60, "b": 36},
        "shapes": list(_shapes(marks, frame)),
        "xaxis": {
            "range": [at - frame.base for at in frame.window], "tickmode": "array", "tickvals": ticks,
            "ticktext": units.axis(ticks), "showgrid": True, "zeroline": False,
        },
        "yaxis": {
            "range": [len(rows) - 0.4, -0.6], "fixedrange": True, "tickmode": "array", "tickvals": rows,
            "ticktext": [_label(one.track) for one in marks], "showgrid": False, "zeroline": False,
        },
    }  # fmt: skip
    return {"data": bars, "layout": layout}


def _bars(look: int, columns: dict[str, list[Any]]) -> dict[str, Any]:
    label, colour, pattern = LOOKS[look]
    return {
        "type": "bar", "orientation": "h", "name": label, "width": 0.82,
        "marker": {"color": colour, "line": {"width": 0}, "pattern": theme.pattern(pattern)},
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "textfont": {"size": 11},
        "constraintext": "none", "hovertemplate": "%{hovertext}<extra></extra>", **columns,
    }  # fmt: skip


def _label(track: Track) -> str:
    return plain(track.label if track.label.startswith(NESTED) else units.crop(f"{track.rank} · {track.label}", 30))


def height(tracks: int) -> int:
    """Pixels of the figure with so many tracks."""
    return 110 + ROW * max(tracks, 3)


def _by_look(marks: Sequence[Marks], name: Name, frame: Frame) -> Iterator[tuple[int, dict[str, Any]]]:
    """Columns of the bars of each look, in order of the look."""
    per_ns = WIDTH / (frame.window[1] - frame.window[0])
    columns: dict[int, dict[str, list[Any]]] = {}
    hovering = cache(lambda full: plain(units.crop(full, NAME)))
    for row, of_track in enumerate(marks):
        track = of_track.track
        letter = {"device_events": "d", "host_events": "h", "steps": "s"}[track.table]
        looks = track.look[of_track.place].tolist()
        lengths = (track.end[of_track.place] - track.start[of_track.place]).tolist()
        values = (array.tolist() for array in (of_track.start, of_track.end, of_track.count, of_track.place))
        for start, end, count, place, look, longest in zip(*values, looks, lengths, strict=True):
            own = columns.setdefault(look, {key: [] for key in ("y", "base", "x", "text", "hovertext", "customdata")})
            full = name(track, place)
            begin, finish = max(start, frame.window[0]), min(end, frame.window[1])
            own["y"].append(row)
            own["base"].append(start - frame.base)
            own["x"].append(end - start)
            own["text"].append(_fitting(full, (finish - begin) * per_ns) if count == 1 else "")
            own["hovertext"].append(_hover(hovering(full), start - frame.base, end - start, count, longest))
            own["customdata"].append(f"{letter}{int(track.rows[place])}")
    yield from sorted(columns.items())


def _fitting(name: str, pixels: float) -> str:
    room = int(pixels / _CHARACTER) - 1
    return plain(units.crop(name, room)) if room >= 3 else ""


def _hover(shown: str, at: int, width: int, count: int, longest: int) -> str:
    if count == 1:
        return f"{shown}<br>{units.duration(width)} at {units.offset(at)}"
    return (
        f"{units.count(count)} events within {units.duration(width)} at {units.offset(at)}"
        f"<br>the longest: {shown}, {units.duration(longest)}"
    )


def _shapes(marks: Sequence[Marks], frame: Frame) -> Iterator[dict[str, Any]]:
    line = "#FFFFFF" if frame.dark else "#000000"
    if frame.marked is not None:
        x0, x1 = (at - frame.base for at in frame.marked)
        yield {
            "type": "rect", "x0": x0, "x1": x1, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
            "fillcolor": palette.VERMILLION, "opacity": 0.18, "line": {"width": 1, "color": palette.VERMILLION},
        }  # fmt: skip
    if frame.selected is not None:
        key, span = frame.selected
        for row in (row for row, one in enumerate(marks) if one.track.key == key):
            x0, x1 = (at - frame.base for at in span)
            yield {
                "type": "rect", "x0": x0, "x1": x1, "y0": row - 0.46, "y1": row + 0.46,
                "line": {"width": 2.5, "color": line}, "fillcolor": "rgba(0,0,0,0)",
            }  # fmt: skip


def _ticks(frame: Frame) -> list[int]:
    """Round times over the window and as much again on both sides, for while it is dragged."""
    low, high = (at - frame.base for at in frame.window)
    rough = max((high - low) / 7, 1)
    power = 10 ** int(np.floor(np.log10(rough)))
    step = max(next(int(power * nice) for nice in (1, 2, 5, 10) if power * nice >= rough), 1)
    reach = high - low
    return list(range((low - reach) // step * step, high + reach, step))
