"""The caching allocator over time, its contents at the peak, and its segments with their holes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.data.counter_tracks import memory_over_time, segments_of
from gpuscope.dashboards.figures import gains_figure as figures
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.report.view import report_rows
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.words import units

PICK = "memory"
"""Parameter of the address: the entry of the report's section to show."""


def layout(shown: Shown) -> Component:
    """The page."""
    memory: list[MemoryEntry] = cast("dict[str, Any]", shown.run.report).get("memory") or []
    entries = [entry for entry in memory if shown.view.has_rank(entry["rank"])]
    if not entries:
        return ui.empty(
            "No record of the allocator",
            "Open an allocator snapshot (torch.cuda.memory._dump_snapshot; gpuscope record --memory writes them), or "
            "record with profile_memory=True."
            if not memory
            else "The filter excludes all ranks with such a record.",
        )
    chosen = shown.view.extra.get(PICK, "0")
    known = chosen in map(str, range(len(entries)))
    entry = entries[int(chosen)] if known else entries[0]
    return ui.page(
        None if known else ui.ignored(PICK, f"the snapshots are numbered 0 to {len(entries) - 1}"),
        _choice(entries, entry, shown),
        _facts(entry),
        _over_time(entry, shown),
        _peak(entry, shown),
        *_segments(entry, shown),
        *_failures(entry),
    )


def _choice(entries: list[MemoryEntry], chosen: MemoryEntry, shown: Shown) -> Component | None:
    if len(entries) == 1:
        return None
    links = [
        dmc.Anchor(
            _name(entry),
            href=shown.view.link("/memory", extra={**shown.view.extra, PICK: str(place)}),
            size="sm",
            fw=700 if entry is chosen else None,
        )
        for place, entry in enumerate(entries)
    ]
    return dmc.Group(links, mb="md", gap="md")


def _name(entry: MemoryEntry) -> str:
    return units.clean(units.crop(report_rows.label(entry), 80))


def _bytes(value: int | None) -> str:
    return units.NONE if value is None else units.memory(value)


def _settings(entry: MemoryEntry) -> str:
    if entry["settings"] is None:
        return "not recorded"
    return f"{entry['variable']}={entry['settings']}" if entry["settings"] else f"{entry['variable']} is not set"


def _facts(entry: MemoryEntry) -> Component:
    pairs: list[tuple[str, Any]] = [
        ("from", f"{_name(entry)} ({entry['kind']}, {units.count(entry['events'])} events)"),
        ("peak allocated", _bytes(entry["peak_allocated_bytes"])),
        ("peak reserved", _bytes(entry["peak_reserved_bytes"])),
        ("allocated at the end", _bytes(entry["end_allocated_bytes"])),
        ("reserved at the end", _bytes(entry["end_reserved_bytes"])),
        ("settings", _settings(entry)),
        ("fragmentation", _fragmentation(entry)),
        ("retries", str(len(entry["retries"]))),
    ]
    replay = entry["replay"]
    if replay is not None:
        error = f"reserved peak within {units.share(abs(replay['error_frac']))} of the recorded one"
        pairs.append(("model of the allocator", error if replay["usable"] else f"{error}; not used: {replay['why']}"))
        if replay["best"] is not None:
            best = replay["best"]
            pairs.append(
                (
                    f"with {best['option']}:{best['value']}",
                    f"{units.memory(best['peak_reserved_bytes'])} reserved at peak",
                )
            )
    return ui.card(
        "Memory",
        ui.facts(pairs),
        note="Reserved above allocated is mostly cache: it is wasted only where a request could not use it.",
    )


def _fragmentation(entry: MemoryEntry) -> str:
    found = entry["fragmentation"]
    if found is None:
        return "none: no segment was allocated while enough free bytes lay in unusable blocks"
    largest = units.memory(found["largest_request_bytes"])
    return (
        f"{units.memory(found['reserved_bytes'])} reserved for {units.plural(found['requests'], 'request')} "
        f"while enough free bytes lay in blocks too small; the largest requested {largest}"
    )


def _over_time(entry: MemoryEntry, shown: Shown) -> Component:
    if not entry["timeline"]:
        return ui.empty(
            "No memory over time",
            "The snapshot holds no history: call torch.cuda.memory._record_memory_history(stacks='python') before "
            "training (gpuscope record --memory does).",
        )
    by_kind = memory_over_time(shown.run.trace, entry) if shown.run.trace is not None else None
    note = "In use by kind of allocation, judged by its stack." if by_kind is not None else ""
    return ui.card("Over time", ui.figure(figures.over_time(entry, shown.dark, by_kind), "memory", 340), note=note)


def _peak(entry: MemoryEntry, shown: Shown) -> Component:
    if not entry["at_peak"]:
        return ui.empty("What is in use at the peak is not known", "The record holds totals, not single allocations.")
    held = entry["at_peak"]
    note = "By the line of your own code that asked for it; hover or click for the stack."
    if left := report_rows.lines_left(entry, figures.STACKS):
        note += f" {left[0].upper()}{left[1:]}."
    if kinds := report_rows.kinds(entry):
        note += f" By kind: {kinds}."
    cut = [one["message"] for one in shown.run.report["problems"] if one["code"] == "frame_name_cut"]
    note = " ".join([note, *(f"{units.clean(one)}." for one in cut)])
    drawn = min(len(held), figures.STACKS)
    return ui.card(
        "In use at the peak",
        ui.figure(figures.at_peak(held, shown.dark), "peak", 100 + 28 * drawn, id=ui.told("peak")),
        html.Pre(id=ui.telling("peak"), className="told", **ui.attributes(aria_live="polite")),
        note=note,
    )


def _segments(entry: MemoryEntry, shown: Shown) -> Iterator[Component]:
    trace = shown.run.trace
    if entry["kind"] != "snapshot":
        return
    if trace is None:
        yield ui.empty("Segments can't be drawn", shown.run.why_no_events)
        return
    drawn, left = segments_of(trace, entry["path"], entry["device"])
    if not drawn:
        yield ui.empty("No segments", "At the time of the snapshot the allocator held none.")
        return
    yield ui.card(
        "Segments and holes",
        ui.figure(figures.segments(drawn, shown.dark), "segments", 120 + 22 * len(drawn), id=ui.told("segments")),
        html.Pre(id=ui.telling("segments"), className="told", **ui.attributes(aria_live="polite")),
        note="At the time of the snapshot, largest first"
        + (f"; {left} smaller ones are left out." if left else ".")
        + " Click a block for its stack.",
    )


def _failures(entry: MemoryEntry) -> Iterator[Component]:
    if entry["failures"]:
        lines = [
            f"{units.memory(one['requested_bytes'])} requested with {_bytes(one['device_free_bytes'])} free on the "
            f"device and {units.memory(one['free_bytes'])} free in the cache: {one['why']}"
            for one in entry["failures"]
        ]
        if left := entry.get("failures_left"):
            lines.append(f"and {units.plural(left, 'more failed request')}")
        yield ui.card("Out of memory", ui.sentences(lines))


PAGE = Page("/memory", "Memory", 11, layout, has=lambda run: bool(run.report.get("memory")))
