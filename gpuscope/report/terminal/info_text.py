"""The terminal form of `gpuscope info`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpuscope.report.terminal.screen import ReportConsole
from gpuscope.report.view import units


def render(facts: dict[str, Any]) -> None:
    """Print the facts of a trace: sources, ranks, tables, what is missing, what went wrong."""
    console = ReportConsole()
    for source in facts["sources"]:
        version = f" {source['format_version']}" if source["format_version"] else ""
        console.print(Text(f"{units.clean(source['path'])}: {source['format']}{version}, {source['events']:,} events"))
    _ranks(facts["ranks"], console)
    rows = ", ".join(f"{count:,} {name}" for name, count in facts["tables"].items() if count)
    console.print(Text(f"\nTables: {rows or 'none'}"))
    _list("Missing", facts["missing"], console)
    problems = [f"{p['severity']} {p['code']} ({p['count']:,}): {p['message']}" for p in facts["problems"]]
    _list("Problems", problems, console)


def _ranks(ranks: list[dict[str, Any]], console: Console) -> None:
    table = Table("rank", "device", "model", "host", "backend", "events", "window", "steps", box=None, pad_edge=False)
    for entry in ranks:
        steps = entry["steps"]
        shown = f"{len(steps)} ({steps[0]}..{steps[-1]})" if steps else "none"
        cells = (
            entry["rank"],
            ("CPU" if entry["device_events"] else "-") if entry["device"] is None else entry["device"],
            entry["device_name"] or "-",
            entry["host"] or "-",
            entry["backend"] or "-",
            f"{entry['device_events']:,}",
            units.duration(entry["window_ns"]) if entry["window_ns"] is not None else "-",
            shown,
        )
        table.add_row(*(Text(units.clean(str(cell))) for cell in cells))
    console.print()
    with console.capture() as drawn:
        console.print(table)
    console.print(Text("\n".join(line.rstrip() for line in drawn.get().splitlines())))
    for basis in sorted({entry["steps_basis"] for entry in ranks if entry["steps_basis"]}):
        console.print(Text(f"Steps from {units.clean(basis)}."))


def _list(title: str, lines: list[str], console: Console) -> None:
    if lines:
        console.print(Text(f"\n{title}"))
        for line in lines:
            console.print(Text(f"  - {units.clean(line)}"))
