"""Links from a report into the timeline."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from gpuscope.dashboards.data import event_details
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.range_statistics import longest_compute
from gpuscope.dashboards.page import Shown
from gpuscope.dashboards.state import View
from gpuscope.report.view import arrangement
from gpuscope.schema.document import Evidence, StepEntry
from gpuscope.words import units
from gpuscope.words.short_kernels import short_kernel

FINDING = "finding"
"""Parameter of the address: the finding pinned above the timeline, by its place among those shown."""
NAME = 100
"""Width of a name within a line, in cells."""


def around(start: int, end: int) -> tuple[int, int]:
    """A window with the span in its middle half, and some width even for an instant."""
    room = max((end - start) // 2, 500)
    return start - room, end + room


def timeline_view(evidence: Evidence, events: Events, view: View, finding: int | None = None) -> str:
    """The address of the timeline at a piece of evidence: its span marked, the event that it names selected, and its
    finding pinned. Evidence without an event is a range there, so that its length is shown too."""
    start = events.clock.shown(evidence["rank"], evidence["start_ns"])
    span = f"{start}:{start + evidence['dur_ns']}"
    event = events.named(evidence["rank"], evidence["event"]) if "event" in evidence else ""
    extra = {key: value for key, value in view.extra.items() if key != "range"} | {"mark": span}
    if not event and evidence["dur_ns"] > 0:
        extra["range"] = span
    if finding is not None:
        extra[FINDING] = str(finding)
    window = around(start, start + evidence["dur_ns"])
    ranks = view.ranks if view.has_rank(evidence["rank"]) else None
    return view.link("/timeline", window=window, event=event, ranks=ranks, extra=extra)


def meanwhile_link(evidence: Evidence, rank: int, shown: Shown, finding: int) -> Component | None:
    """The longest computation of another rank while this one waits, as a link; None where it computes nothing."""
    events = shown.run.events
    if events is None:
        return None
    start = events.clock.shown(evidence["rank"], evidence["start_ns"])
    span = (start, start + evidence["dur_ns"])
    ref = longest_compute(events, rank, span)
    one = event_details.event(events, ref) if ref else None
    if one is None:
        return None
    view = shown.view
    both = view.ranks | {rank, evidence["rank"]} if view.ranks is not None else None
    extra = {**view.extra, "mark": f"{span[0]}:{span[1]}", FINDING: str(finding)}
    href = view.link("/timeline", window=around(*span), event=ref, ranks=both, extra=extra)
    text = f"rank {rank} runs {units.clean(short_kernel(one.name, NAME))} for {units.duration(one.duration)}"
    return dmc.Anchor(text, href=href, size="sm", className="evidence meanwhile")


def step_place(shown: Shown, step: StepEntry) -> str:
    """The address of the timeline at a step; empty where there is none."""
    number = step["step"]
    if shown.run.events is None or number is None:
        return ""
    return shown.view.link("/timeline", steps=(number, number), window=None)


def evidence_link(evidence: Evidence, shown: Shown, finding: int | None = None) -> Component:
    """A piece of evidence as text, with a link if there is a timeline."""
    place = arrangement.place_ns(evidence, arrangement.starts(shown.run.report))
    at = "" if place is None else f" at {units.offset(place)}"
    name = units.clean(short_kernel(evidence["name"], NAME))
    text = f"rank {evidence['rank']}{at} for {units.duration(evidence['dur_ns'])}: {name}"
    note = dmc.Text(units.clean(evidence["note"]), size="xs", c="dimmed") if evidence["note"] else None
    events = shown.run.events
    if events is None:
        return html.Div([dmc.Text(text, size="sm"), note])
    href = timeline_view(evidence, events, shown.view, finding)
    return html.Div([dmc.Anchor(text, href=href, size="sm", className="evidence"), note])
