"""Details of an event as text, with links to related events."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.data.event_details import Details, Event, KernelInRange, RangeStatistics
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import WITHIN
from gpuscope.dashboards.state import View, span_of
from gpuscope.dashboards.ui import around
from gpuscope.words import units
from gpuscope.words.units import short_kernel, short_kernels

SHORT = 44
"""Cells of a kernel's name in the drawer's table."""
_BYTES = {"bytes"}


def link(event: Event, events: Events, view: View, window: tuple[int, int] | None = None) -> Component:
    """An event as text, with a link to it in the timeline."""
    at = units.offset(event.shown - events.origin)
    name = units.clean(short_kernel(event.name))
    text = f"rank {event.rank} {event.where} at {at} for {units.duration(event.duration)}: {name}"
    ranks = view.ranks if view.has_rank(event.rank) else None
    href = view.link("/timeline", window=window or around(*event.span), event=event.ref, ranks=ranks)
    return dmc.Anchor(text, href=href, size="sm", className="event")


def panel(found: Details, events: Events, view: View) -> Component:
    """Everything recorded about the selected event."""
    event = found.event
    step = "" if found.step is None else f", step {found.step}"
    rows: list[tuple[str, Any]] = [
        ("what", f"{event.what} on rank {event.rank}, {event.where}{step}"),
        (
            "time",
            f"{units.duration(event.duration)} at {units.offset(event.shown - events.origin)} "
            f"({units.exact_ns(event.start)} on its rank's clock)",
        ),
    ]
    if (part := _marked(event, events, view)) is not None:
        rows.insert(1, ("marked", part))
    rows += [(key.replace("_", " "), _value(key, value)) for key, value in found.facts]
    if found.launch is not None and found.on_host:
        rows.append(("the host's own record", link(found.launch, events, view)))
    elif found.launch is not None:
        wait = event.start - found.launch.start
        rows.append(("launched by", link(found.launch, events, view)))
        rows.append(("launch to start", units.duration(wait)))
    elif event.ref[0] == "d" and event.what != "memory":
        rows.append(("launched by", "not recorded: trace the CUDA API (ProfilerActivity.CPU, nsys -t cuda)"))
    if found.operator is not None:
        rows.append(("operator", link(found.operator, events, view)))
    if found.ranges:
        rows.append(("ranges", _list(found.ranges, events, view)))
    rows.append(("Python stack", _list(found.stack, events, view) if found.stack else _no_stack(events)))
    if found.launched:
        more = found.launched_count - len(found.launched)
        rows.append(
            (
                f"launched {found.launched_count}",
                html.Div(
                    [
                        _list(found.launched, events, view),
                        dmc.Text(f"and {more} more", size="sm") if more else None,
                    ]
                ),
            )
        )
    short = units.clean(short_kernel(event.name))
    if short != units.clean(event.name):
        rows.append(("whole name", event.name))
    body: list[Component] = [html.H3(short, className="drawer-title"), ui.facts(rows)]
    if found.collective:
        of_all = [(key.replace("_", " "), _value(key, value)) for key, value in found.collective]
        of_all.append(("on other ranks", _partners(found, events, view)))
        body += [html.H4("Collective", className="drawer-title"), ui.facts(of_all)]
    return html.Div(body)


def range_panel(found: RangeStatistics, events: Events, view: View) -> Component:
    """Each rank's breakdown of a chosen range, and the longest kernels in it."""
    start, end = found.window
    head = html.H3(
        f"{units.duration(end - start)} from {units.offset(start - events.origin)}", className="drawer-title"
    )
    if not found.events and not found.host:
        return html.Div([head, dmc.Text("No event runs in this range.", size="sm")])
    shares = [
        dmc.TableTr(
            [
                dmc.TableTh(f"rank {rank}"),
                *(
                    dmc.TableTd(html.Span(units.share(part / (end - start)), title=units.duration(part)))
                    for part in (one.compute, one.exposed_communication, one.exposed_memory, one.idle)
                ),
            ]
        )
        for rank, one in found.ranks
    ]
    columns = dmc.TableTr([dmc.TableTh(name) for name in ("", "compute", "comm.", "memory", "idle")])
    return html.Div(
        [
            head,
            dmc.Table([dmc.TableThead(columns), dmc.TableTbody(shares)], verticalSpacing=2, className="range-ranks"),
            dmc.Text(
                f"{units.plural(found.events, 'device event')}, clipped at the range; communication and "
                "memory where nothing is computed.",
                size="sm",
                my="xs",
            ),
            _by_name("longest kernels", found.kernels, view),
            _by_name("operators and calls, own time", found.host, view),
            dmc.Anchor(
                "All kernels of this range",
                size="sm",
                href=view.link(
                    "/kernels", window=found.window, event="", extra={**view.extra, "range": "", WITHIN: "window"}
                ),
            ),
        ]
    )


def _by_name(title: str, found: list[KernelInRange], view: View) -> Component | None:
    if not found:
        return None
    rows = [
        dmc.TableTr(
            [
                dmc.TableTd(
                    dmc.Anchor(
                        html.Span(units.clean(short), title=units.clean(one.name)),
                        size="sm",
                        href=view.link("/timeline", event=one.ref),
                    )
                ),
                dmc.TableTd(units.count(one.count)),
                dmc.TableTd(units.duration(one.time)),
            ]
        )
        for one, short in zip(found, short_kernels([one.name for one in found], SHORT), strict=True)
    ]
    head = dmc.TableTr([dmc.TableTh(name) for name in (title, "count", "time")])
    return dmc.Table([dmc.TableThead(head), dmc.TableTbody(rows)], verticalSpacing=2, className="range-kernels")


def _value(key: str, value: int | str) -> str:
    if isinstance(value, str):
        return value
    return f"{units.memory(value)} ({units.count(value)})" if key in _BYTES else str(value)


def _marked(event: Event, events: Events, view: View) -> str | None:
    """The span that the address marks, as the link that led here says it: where it is not just the event."""
    span = span_of(view.extra.get("mark", ""))
    if span is None or span == event.span:
        return None
    return f"{units.duration(span[1] - span[0])} at {units.offset(span[0] - events.origin)}"


def _list(found: list[Event], events: Events, view: View) -> Component:
    return html.Ul([html.Li(link(one, events, view)) for one in found], style={"margin": 0, "paddingLeft": 20})


def _no_stack(events: Events) -> str:
    if any(track.group == "python" for track in events.tracks):
        return "none around this event"
    return "not recorded: torch.profiler.profile(with_stack=True), or nsys profile --python-backtrace=cuda"


def _partners(found: Details, events: Events, view: View) -> Any:
    if not found.partners:
        return "not matched: the other ranks of its group are not open, or their records don't identify it"
    spans = [one.span for one in (found.event, *found.partners)]
    window = around(min(start for start, _ in spans), max(end for _, end in spans))
    lines = [html.Li(link(one, events, view, window)) for one in found.partners[:16]]
    if len(found.partners) > 16:
        lines.append(html.Li(f"and {len(found.partners) - 16} more"))
    return html.Ul(lines, style={"margin": 0, "paddingLeft": 20})
