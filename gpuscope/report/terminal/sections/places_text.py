"""`--by`: where in the program device time, exposed communication and idle time arise, as a table or a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import places
from gpuscope.report.view.places import By
from gpuscope.schema.call_tree_section import PlaceEntry
from gpuscope.schema.document import Report
from gpuscope.words import units

Shown = By | Literal["tree"]
ROWS = 20
LEAST_FRAC = 0.01
"""Share of device and idle time from which a place stands in the tree, where no number of rows is asked for."""
_NONE = {
    "line": "no line of your own around it",
    "module": "no module around it",
    "operator": "no operator around it",
    "kernel": "idle time and communication without a kernel",
}
_RECORD = {
    "line": "Record Python stacks to see lines: torch.profiler.profile(with_stack=True).",
    "module": "Record modules to see them: torch.profiler.profile(with_stack=True, with_modules=True).",
}
_RECORD_BY_NSYS = {
    "line": "Record call stacks to see lines: nsys profile --sample=process-tree --cudabacktrace=all "
    "--python-sampling=true --python-backtrace=cuda.",
    "module": "Record modules to see them: ranges of your own, or nsys profile --pytorch=functions-trace.",
    "operator": "Record operators to see them: nsys profile --pytorch=autograd-nvtx.",
}
"""The same for reports of nsys, which has the flags on Python since 2023.4 and those on PyTorch since 2024.5."""


def render(report: Report, writer: Writer, by: Shown, shown: int | None) -> None:
    """Print the table or the tree, its `shown` first rows."""
    entries = report.get("call_tree", [])
    if not entries:
        writer.line("No place of the program is known: no host events were recorded that launches could be tied to.")
        return
    if by == "tree":
        _tree(entries, writer, shown)
        return
    _table(report, entries, writer, by, shown or ROWS)


def _table(report: Report, entries: Sequence[PlaceEntry], writer: Writer, by: By, shown: int) -> None:
    rows = places.rows(entries, by)
    everything = sum(row.device_ns for row in rows)
    writer.heading(f"By {by} (sums over ranks)")
    cells = []
    for row in rows[:shown]:
        share = row.device_ns / everything if everything else 0.0
        times = (row.device_ns, row.exposed_communication_ns, row.idle_ns)
        device, exposed, idle = (units.duration(ns) if ns else units.NONE for ns in times)
        cells.append((device, units.share(share), exposed, idle, row.name or _NONE[by]))
    writer.rows((">device", ">share", ">exposed comm.", ">idle", f"~{by}"), cells)
    if len(rows) > shown:
        writer.line(f"{len(rows) - shown} more: --top {len(rows)}")
    known = places.covered(entries, by)
    if known is not None and known < 1:
        writer.line(f"{units.share(known)} of the device time has a {by} around its launch.")
    by_nsys = all(source["format"].startswith("nsys") for source in report["trace"]["sources"])
    record = (_RECORD_BY_NSYS if by_nsys else _RECORD).get(by)
    if not known and record:
        writer.line(record)


def _tree(entries: Sequence[PlaceEntry], writer: Writer, shown: int | None) -> None:
    """Every place with what it and all below it take."""
    within = places.inclusive(entries)
    depth: dict[int | None, int] = {None: -1}
    for entry in entries:
        depth[entry["id"]] = depth[entry["parent"]] + 1
    everything = sum(within[entry["id"]][0] + within[entry["id"]][2] for entry in entries if entry["parent"] is None)
    least = LEAST_FRAC * everything if shown is None else 0
    kept = [entry for entry in entries if within[entry["id"]][0] + within[entry["id"]][2] >= least][:shown]
    writer.heading("By place (with all below it, sums over ranks)")
    rows = [
        (
            *(units.duration(ns) if ns else units.NONE for ns in within[entry["id"]]),
            f"{'  ' * depth[entry['id']]}{entry['name']}",
        )
        for entry in kept
    ]
    writer.rows((">device", ">exposed comm.", ">idle", "~place"), rows)
    if len(kept) < len(entries):
        writer.line(f"{len(entries) - len(kept)} smaller ones: --top {len(entries)}")
