"""The terminal form of `gpuscope info`."""

from __future__ import annotations

from typing import Any

from gpuscope.report.terminal.screen import ReportConsole, Writer
from gpuscope.words import units

_NAMES = {"device_name": "model", "host": "host", "backend": "backend"}
"""Names of a rank, where any rank has them."""


def render(facts: dict[str, Any], writer: Writer | None = None) -> None:
    """Print the facts of a trace: sources, ranks, tables, what is missing, what went wrong."""
    writer = writer or Writer(ReportConsole())
    for source in facts["sources"]:
        version = f" {source['format_version']}" if source["format_version"] else ""
        events = units.plural(source["events"], "event")
        writer.line(f"{source['path']}: {source['format']}{version}, {events}", hang=2)
    _ranks(facts["ranks"], writer)
    rows = ", ".join(f"{units.count(count)} {name}" for name, count in facts["tables"].items() if count)
    writer.line("")
    writer.line(f"Tables: {rows or 'none'}", hang=2)
    _list("Missing", facts["missing"], writer)
    problems = [f"{p['severity']} {p['code']} ({units.count(p['count'])}): {p['message']}" for p in facts["problems"]]
    _list("Problems", problems, writer)


def _ranks(ranks: list[dict[str, Any]], writer: Writer) -> None:
    told = [key for key in _NAMES if any(entry[key] for entry in ranks)]
    rows = []
    for entry in ranks:
        steps = entry["steps"]
        device = ("CPU" if entry["device_events"] else units.NONE) if entry["device"] is None else str(entry["device"])
        rows.append(
            (
                str(entry["rank"]),
                device,
                *(entry[key] or units.NONE for key in told),
                units.count(entry["device_events"]),
                units.duration(entry["window_ns"]),
                f"{len(steps)} ({steps[0]}..{steps[-1]})" if steps else "none",
            )
        )
    writer.line("")
    writer.rows((">rank", ">device", *(f"~{_NAMES[key]}" for key in told), ">events", ">window", ">steps"), rows)
    for basis in sorted({entry["steps_basis"] for entry in ranks if entry["steps_basis"]}):
        writer.line(f"Steps from {basis}.")


def _list(title: str, lines: list[str], writer: Writer) -> None:
    if lines:
        writer.line("")
        writer.line(title)
        for line in lines:
            writer.line("- ", line, indent=2, hang=2)
