"""Terminal sections of the profile tables: operators, ranges, phases, calls, copies, launches, streams, gaps.

Tables that have a row per rank show one rank, the first: the others are a `--ranks` or a `--csv` away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import arrangement
from gpuscope.schema.document import Report
from gpuscope.schema.profile_sections import KernelRankEntry, QueueEntry
from gpuscope.words import units
from gpuscope.words.short_kernels import short_kernel, short_kernels

TIMES = 46
"""Columns that times and ranks take before the names of kernels."""
SPARKS = "▁▂▃▄▅▆▇█"
SPARKS_PLAIN = "_.-=+*#@"


def sections(report: Report, writer: Writer, shown: int = 10) -> None:
    """Print those that have rows, the first `shown` of each."""
    _kernel_ranks(report, writer, shown)
    _operators(report, writer, shown)
    _phases(report, writer)
    _ranges(report, writer, shown)
    _gaps(report, writer, shown)
    _streams(report, writer, shown)
    _launches(report, writer, shown)
    _copies(report, writer, shown)
    _calls(report, writer, shown)


def _kernel_ranks(report: Report, writer: Writer, shown: int) -> None:
    """The longest kernels on the ranks where a call of each takes least and most time in the mean."""
    by_kernel: dict[tuple[str, str], list[KernelRankEntry]] = {}
    for row in report.get("kernel_ranks", []):
        by_kernel.setdefault((row["name"], row["category"]), []).append(row)
    compared = [rows for rows in by_kernel.values() if len(rows) > 1]
    if not compared:
        return
    writer.heading("Longest kernels by rank (mean of a call)")
    table = writer.table(">fastest", ">rank", ">median", ">slowest", ">rank", "~kernel")
    names = short_kernels([rows[0]["name"] for rows in compared[:shown]], max(writer.console.width - TIMES, 24))
    for rows, name in zip(compared, names, strict=False):
        rows = sorted(rows, key=lambda row: row["mean_ns"])
        low, high = rows[0], rows[-1]
        middle = median(row["mean_ns"] for row in rows)
        cells = (units.duration(low["mean_ns"]), str(low["rank"]), units.duration(middle),
                 units.duration(high["mean_ns"]), str(high["rank"]))  # fmt: skip
        table.add_row(*(writer.text(cell) for cell in cells), writer.cell(name))
    writer.show(table)
    _more(len(compared) - shown, writer)


def _operators(report: Report, writer: Writer, shown: int) -> None:
    rows = report.get("operators", [])
    if not rows:
        return
    on_device = any(row["device_self_ns"] is not None for row in rows)
    writer.heading("Operators (self: without those in them)")
    device = [">device self", ">device"] if on_device else []
    table = writer.table(*device, ">host self", ">host", ">calls", "~operator")
    for row in rows[:shown]:
        times = [row["device_self_ns"], row["device_ns"]] if on_device else []
        cells = [units.duration(ns) for ns in (*times, row["host_self_ns"], row["host_ns"])]
        table.add_row(*(writer.text(cell) for cell in (*cells, units.count(row["count"]))), writer.cell(row["name"]))
    writer.show(table)
    _more(len(rows) - shown, writer)


def _phases(report: Report, writer: Writer) -> None:
    rows, where = _of_one_rank(report.get("phases", []))
    if not rows:
        return
    writer.heading(f"Phases{where}")
    on_device = rows[0]["device_ns"] is not None
    parts = [">device", ">compute", ">communication", ">memory"] if on_device else []
    table = writer.table("<phase", ">host", *parts)
    for row in rows:
        keys = ("host_ns", *(("device_ns", "compute_ns", "communication_ns", "memory_ns") if on_device else ()))
        phase = "in no phase" if row["phase"] == "none" else row["phase"]
        table.add_row(writer.text(phase), *(writer.text(units.duration(row[key])) for key in keys))
    writer.show(table)


def _ranges(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("ranges", []))
    if not rows:
        return
    writer.heading(f"Ranges and modules{where}")
    on_device = rows[0]["device_ns"] is not None
    table = writer.table(">host", *([">device"] if on_device else []), ">count", "~range")
    for row in rows[:shown]:
        times = [units.duration(row["host_ns"]), *([units.duration(row["device_ns"])] if on_device else [])]
        table.add_row(*(writer.text(cell) for cell in (*times, units.count(row["count"]))), writer.cell(row["name"]))
    writer.show(table)
    _more(len(rows) - shown, writer)


def _gaps(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("gaps", []))
    if not rows:
        return
    starts = arrangement.starts(report)
    writer.heading(f"Longest idle gaps{where}")
    table = writer.table(">at", ">idle", ">step", "<cause", "~host meanwhile", "~ended by")
    for row in rows[:shown]:
        at = arrangement.place_ns(row, starts)
        cells = (units.NONE if at is None else units.offset(at), units.duration(row["dur_ns"]),
                 units.NONE if row["step"] is None else str(row["step"]),
                 row["cause"] or units.NONE)  # fmt: skip
        names = (writer.cell(short_kernel(row[key]) if row[key] else units.NONE) for key in ("host", "after"))
        table.add_row(*(writer.text(cell) for cell in cells), *names)
    writer.show(table)


def _streams(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("streams", []))
    if not rows:
        return
    writer.heading(f"Streams{where}")
    table = writer.table(">stream", ">operations", ">busy", ">idle", ">for the host", ">queued", ">longest")
    for row in rows[:shown]:
        keys = ("busy_ns", "idle_ns", "host_wait_ns", "queued_wait_ns", "longest_idle_ns")
        cells = (_stream(row), units.count(row["operations"]), *(units.duration(row[key]) for key in keys))
        table.add_row(*(writer.text(cell) for cell in cells))
    writer.show(table)
    _more(len(rows) - shown, writer)


def _launches(report: Report, writer: Writer, shown: int) -> None:
    """Launch statistics of a few ranks, and the queues of one."""
    rows = report.get("launches", [])
    if rows:
        writer.heading("Launches")
        table = writer.table(">rank", ">launches", ">call", ">delay", ">kernel", ">short", ">slow calls", ">late")
        for row in rows[:shown]:
            times = (units.duration(row[key]) for key in ("call_median_ns", "delay_median_ns", "kernel_median_ns"))
            counts = (units.count(row[key]) for key in ("short_kernels", "slow_calls", "late_starts"))
            cells = (str(row["rank"]), units.count(row["launches"]), *times, *counts)
            table.add_row(*(writer.text(cell) for cell in cells))
        writer.show(table)
        note = "Medians; short: kernels shorter than their call; slow calls from 50 µs, late starts from 100 µs."
        writer.line(writer.text(note, "dim"))
        _more(len(rows) - shown, writer)
    queues, where = _of_one_rank(report.get("queues", []))
    if queues:
        writer.heading(f"Launch queue{where}")
        table = writer.table(">stream", ">mean", ">max", ">empty", "<over time")
        for row in queues[:shown]:
            cells = (_stream(row), f"{row['mean']:.3g}", units.count(row["max"]), units.share(row["empty_frac"]))
            table.add_row(*(writer.text(cell) for cell in cells), writer.text(spark(row, writer)))
        writer.show(table)


def spark(queue: QueueEntry | Mapping[str, Any], writer: Writer) -> str:
    """The length of a queue over time as a line of blocks, two bins each; a blank where it is empty."""
    means = queue["mean_by_bin"]
    pairs = [max(means[i : i + 2]) for i in range(0, len(means), 2)]
    top = max(pairs, default=0.0) or 1.0
    blocks = SPARKS_PLAIN if writer.plain else SPARKS
    return "".join(" " if not mean else blocks[min(int(mean / top * len(blocks)), len(blocks) - 1)] for mean in pairs)


def _copies(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("copies", []))
    if not rows:
        return
    writer.heading(f"Copies{where}")
    table = writer.table("<kind", ">size", ">count", ">bytes", ">time", ">bandwidth")
    for row in rows[:shown]:
        cells = (row["kind"], _sizes(row["least_bytes"], row["below_bytes"]), units.count(row["count"]),
                 units.size(row["bytes"]), units.duration(row["dur_ns"]),
                 units.bandwidth(row["bandwidth_gbps"]))  # fmt: skip
        table.add_row(*(writer.text(cell) for cell in cells))
    writer.show(table)
    _more(len(rows) - shown, writer)


def _calls(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("api_calls", []))
    if not rows:
        return
    writer.heading(f"Runtime calls{where}")
    table = writer.table(">share", ">time", ">count", ">median", ">longest", "~call")
    for row in rows[:shown]:
        cells = (units.share(row["share_frac"]), units.duration(row["dur_ns"]), units.count(row["count"]),
                 units.duration(row["median_ns"]), units.duration(row["max_ns"]))  # fmt: skip
        table.add_row(*(writer.text(cell) for cell in cells), writer.cell(row["name"]))
    writer.show(table)
    _more(len(rows) - shown, writer)


def _of_one_rank(rows: Iterable[Any]) -> tuple[Sequence[Any], str]:
    """The rows of the first rank, and what the heading says of that."""
    rows = list(rows)
    ranks = sorted({row["rank"] for row in rows})
    if not ranks:
        return [], ""
    own = [row for row in rows if row["rank"] == ranks[0]]
    return own, f" of rank {ranks[0]} (others: --csv)" if len(ranks) > 1 else ""


def _stream(row: Mapping[str, Any]) -> str:
    return units.NONE if row["stream"] is None else str(row["stream"])


def _sizes(least: int | None, below: int | None) -> str:
    """`4 KiB to 64 KiB`, `from 16 MiB`."""
    if least is None:
        return units.NONE
    if below is None:
        return f"from {units.memory(least)}"
    return f"below {units.memory(below)}" if not least else f"{units.memory(least)} to {units.memory(below)}"


def _more(number: int, writer: Writer) -> None:
    if number > 0:
        writer.line(writer.text(f"and {units.count(number)} more (--json, --csv)", "dim"))
