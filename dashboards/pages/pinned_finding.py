"""The finding that led to the timeline, pinned above it while one looks at its evidence."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from gpuscope.dashboards import theme, ui
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.page import Shown
from gpuscope.dashboards.page_links import FINDING, timeline_view
from gpuscope.report.view import arrangement
from gpuscope.words import units
from gpuscope.words.short_kernels import short_kernel

EVIDENCE = 6


def pinned(shown: Shown, events: Events) -> Component | None:
    """The finding named in the address, with its evidence as links and the way back; None where none is."""
    asked = shown.view.extra.get(FINDING, "")
    found = arrangement.findings(shown.run.report)
    if asked not in map(str, range(len(found))):
        return ui.ignored(FINDING, "this run has no such finding") if asked else None
    finding = found[int(asked)]
    links = [
        dmc.Anchor(
            f"rank {one['rank']}: {units.clean(short_kernel(one['name'], 40))}, {units.duration(one['dur_ns'])}",
            href=timeline_view(one, events, shown.view, int(asked)), size="xs", className="evidence",
        )
        for one in finding["evidence"][:EVIDENCE]
    ]  # fmt: skip
    back = {key: value for key, value in shown.view.extra.items() if key not in (FINDING, "mark", "range", "find")}
    return html.Section([
        dmc.Group([
            ui.severity(finding["severity"], theme.SEVERITY_COLOURS.get(finding["severity"], "gray")),
            dmc.Text(units.clean(finding["message"]), size="sm", fw=600),
            dmc.Anchor("Back to the overview", size="xs", href=shown.view.link("/", window=None, event="", extra=back)),
        ], gap="xs", wrap="nowrap", align="baseline"),
        dmc.Group([dmc.Text("Evidence", size="xs", c="dimmed"), *links], gap="sm") if links else None,
    ], className="pinned", **ui.attributes(aria_label="The finding that led here"))  # fmt: skip
