"""Evidence as small pictures of the timeline at that place, each leading there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

import dash_mantine_components as dmc
import numpy as np
from dash import html
from dash.development.base_component import Component

from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.rows.event_styles import EVENT_STYLES
from gpuscope.dashboards.data.typical_step import busy_share
from gpuscope.dashboards.page import Shown
from gpuscope.dashboards.page_links import evidence_link, timeline_view
from gpuscope.dashboards.ui import attributes
from gpuscope.report.html.evidence_drawing import Busy, Moments
from gpuscope.report.html.html_report import moment_svg
from gpuscope.report.view import arrangement
from gpuscope.schema.document import Evidence
from gpuscope.trace.schema import Kind

KINDS = ((0, Kind.COMPUTE), (1, Kind.COMMUNICATION), (1, Kind.MEMORY))
"""Rows of a picture, and what is drawn in them."""


def pictures(found: Sequence[Evidence], ranks: Sequence[int], shown: Shown, finding: int) -> Component:
    """Each piece of evidence with a picture of its rank beside the first of `ranks`, where their clocks compare."""
    events, starts = shown.run.events, arrangement.starts(shown.run.report)
    moments = Moments(shown.run.report, found, _busy(events)) if events is not None else None
    cards = []
    for one in found:
        body: list[Component] = [evidence_link(one, shown, finding)]
        moment = moments.around(one, ranks, starts.get(one["rank"])) if moments is not None else None
        if moment is not None and events is not None:
            source = "data:image/svg+xml," + quote(moment_svg(moment, shown.dark))
            picture = html.Img(src=source, alt="", className="moment")
            # The text below is the link for keyboards and screen readers.
            href = timeline_view(one, events, shown.view, finding)
            body.insert(0, dmc.Anchor(picture, href=href, tabIndex=-1, **attributes(aria_hidden="true")))
        cards.append(dmc.Paper(body, withBorder=True, p="xs"))
    return dmc.SimpleGrid(cards, cols={"base": 1, "sm": 2, "lg": 3}, spacing="sm")


def _busy(events: Events) -> Busy:
    def busy(rank: int, begin: int, end: int, columns: int) -> Iterator[tuple[int, str, Sequence[float]]]:
        first, last = (events.clock.shown(rank, at) for at in (begin, end))
        edges = np.linspace(first, last, columns + 1).astype(np.int64)
        tracks = events.streams(rank)
        for row, kind in KINDS:
            if (share := busy_share(tracks, kind, edges)) is not None:
                yield row, EVENT_STYLES[kind][1], share.tolist()

    return busy
