"""`gpuscope info`: what is in a file, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuscope.commands.options import inputs, open_with_progress

if TYPE_CHECKING:
    from gpuscope.trace.trace import Trace


@click.command(short_help="Show what is in a file and what is missing.")
@inputs
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(
    paths: tuple[str, ...], ranks: frozenset[int] | None, partial: bool, nsys: str | None, as_json: bool
) -> None:
    """Show what a trace holds: format, ranks, devices, steps, events by kind, and what is missing."""

    facts = describe(open_with_progress(paths, ranks, partial, nsys))
    if as_json:
        import json

        click.echo(json.dumps(facts, indent=2))
    else:
        from gpuscope.report.terminal.diff_text import info_text_render

        info_text_render(facts)


def describe(trace: Trace) -> dict[str, Any]:
    """The facts of a trace as plain JSON types."""
    from gpuscope.trace.trace import missing

    files = trace.ranks_by_file()
    return {
        "sources": [
            {
                "path": str(path),
                "format": fmt,
                "format_version": source.format_version,
                "events": source.events,
                "ranks": ranks,
                "world_size": world_size,
            }
            for (path, fmt, ranks, world_size), source in zip(files, trace.sources, strict=True)
        ],
        "ranks": [_rank(trace, row) for row in range(len(trace["ranks"]))],
        "tables": {name: len(trace[name]) for name in trace.tables},
        "missing": missing(trace),
        "problems": [
            {"severity": p.severity, "code": p.code, "count": p.count, "message": p.message} for p in trace.problems
        ],
    }


def _rank(trace: Trace, row: int) -> dict[str, Any]:
    import numpy as np

    from gpuscope.trace.name_pool import NO_NAME
    from gpuscope.trace.schema import NA

    ranks, steps, device = trace["ranks"], trace["steps"], trace["device_events"]
    rank, ordinal = int(ranks["rank"][row]), int(ranks["device"][row])
    own = np.flatnonzero(steps["rank"] == rank)
    events = np.flatnonzero((device["rank"] == rank) & (device["device"] == ordinal))

    def name(column: str) -> str | None:
        code = int(ranks[column][row])
        return None if code == NO_NAME else trace.names[code]

    return {
        "rank": rank,
        "device": None if ordinal == NA else ordinal,
        "device_name": name("device_name"),
        "host": name("host"),
        "backend": name("backend"),
        "device_events": len(events),
        "window_ns": int(np.diff(trace.window(events))[0]) if len(events) else None,
        "steps": sorted({int(step) for step in steps["step"][own]}),
        "steps_basis": trace.names[int(steps["basis"][own[0]])] if len(own) else None,
    }
