"""Terminal sections of the profile tables: operators, ranges, phases, calls, copies, launches, streams, gaps.

Tables that have a row per rank show one rank, the first: the others are a `--ranks` or a `--csv` away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuscope.averages import median
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
ELSEWHERE = "--json, --csv"
"""What shows the rows that a table leaves out."""


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
    found = []
    names = short_kernels([rows[0]["name"] for rows in compared[:shown]], max(writer.console.width - TIMES, 24))
    for rows, name in zip(compared, names, strict=False):
        rows = sorted(rows, key=lambda row: row["mean_ns"])
        low, high = rows[0], rows[-1]
        middle = median(row["mean_ns"] for row in rows)
        found.append(
            (
                units.duration(low["mean_ns"]),
                str(low["rank"]),
                units.duration(middle),
                units.duration(high["mean_ns"]),
                str(high["rank"]),
                name,
            )
        )
    writer.rows((">fastest", ">rank", ">median", ">slowest", ">rank", "~kernel"), found)
    writer.more(len(compared) - shown, ELSEWHERE)


def _operators(report: Report, writer: Writer, shown: int) -> None:
    rows = report.get("operators", [])
    if not rows:
        return
    on_device = any(row["device_self_ns"] is not None for row in rows)
    writer.heading("Operators (self: without those in them)")
    device = [">device self", ">device"] if on_device else []
    cells = []
    for row in rows[:shown]:
        times = [row["device_self_ns"], row["device_ns"]] if on_device else []
        times += [row["host_self_ns"], row["host_ns"]]
        cells.append((*map(units.duration, times), units.count(row["count"]), row["name"]))
    writer.rows((*device, ">host self", ">host", ">calls", "~operator"), cells)
    writer.more(len(rows) - shown, ELSEWHERE)


def _phases(report: Report, writer: Writer) -> None:
    rows, where = _of_one_rank(report.get("phases", []))
    if not rows:
        return
    writer.heading(f"Phases{where}")
    on_device = rows[0]["device_ns"] is not None
    parts = [">device", ">compute", ">communication", ">memory"] if on_device else []
    keys = ("host_ns", *(("device_ns", "compute_ns", "communication_ns", "memory_ns") if on_device else ()))
    cells = [
        ("in no phase" if row["phase"] == "none" else row["phase"], *(units.duration(row[key]) for key in keys))
        for row in rows
    ]
    writer.rows(("<phase", ">host", *parts), cells)


def _ranges(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("ranges", []))
    if not rows:
        return
    writer.heading(f"Ranges and modules{where}")
    on_device = [">device"] if rows[0]["device_ns"] is not None else []
    keys = ("host_ns", "device_ns") if on_device else ("host_ns",)
    cells = [(*(units.duration(row[key]) for key in keys), units.count(row["count"]), row["name"]) for row in rows]
    writer.rows((">host", *on_device, ">count", "~range"), cells[:shown])
    writer.more(len(rows) - shown, ELSEWHERE)


def _gaps(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("gaps", []))
    if not rows:
        return
    starts = arrangement.starts(report)
    writer.heading(f"Longest idle gaps{where}")
    cells = []
    for row in rows[:shown]:
        at = arrangement.place_ns(row, starts)
        names = (short_kernel(row[key]) if row[key] else units.NONE for key in ("host", "after"))
        cells.append(
            (
                units.NONE if at is None else units.offset(at),
                units.duration(row["dur_ns"]),
                units.NONE if row["step"] is None else str(row["step"]),
                row["cause"] or units.NONE,
                *names,
            )
        )
    writer.rows((">at", ">idle", ">step", "<cause", "~host meanwhile", "~ended by"), cells)


def _streams(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("streams", []))
    if not rows:
        return
    writer.heading(f"Streams{where}")
    keys = ("busy_ns", "idle_ns", "host_wait_ns", "queued_wait_ns", "longest_idle_ns")
    cells = [
        (_stream(row), units.count(row["operations"]), *(units.duration(row[key]) for key in keys))
        for row in rows[:shown]
    ]
    writer.rows((">stream", ">operations", ">busy", ">idle", ">for the host", ">queued", ">longest"), cells)
    writer.more(len(rows) - shown, ELSEWHERE)


def _launches(report: Report, writer: Writer, shown: int) -> None:
    """Launch statistics of a few ranks, and the queues of one."""
    rows = report.get("launches", [])
    if rows:
        writer.heading("Launches")
        cells = []
        for row in rows[:shown]:
            times = (units.duration(row[key]) for key in ("call_median_ns", "delay_median_ns", "kernel_median_ns"))
            counts = (units.count(row[key]) for key in ("short_kernels", "slow_calls", "late_starts"))
            cells.append((str(row["rank"]), units.count(row["launches"]), *times, *counts))
        writer.rows((">rank", ">launches", ">call", ">delay", ">kernel", ">short", ">slow calls", ">late"), cells)
        note = "Medians; short: kernels shorter than their call; slow calls from 50 µs, late starts from 100 µs."
        writer.line(writer.text(note, "dim"))
        writer.more(len(rows) - shown, ELSEWHERE)
    queues, where = _of_one_rank(report.get("queues", []))
    if queues:
        writer.heading(f"Launch queue{where}")
        cells = [
            (
                _stream(row),
                f"{row['mean']:.3g}",
                units.count(row["max"]),
                units.share(row["empty_frac"]),
                spark(row, writer),
            )
            for row in queues[:shown]
        ]
        writer.rows((">stream", ">mean", ">max", ">empty", "<over time"), cells)


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
    cells = [
        (
            row["kind"],
            _sizes(row["least_bytes"], row["below_bytes"]),
            units.count(row["count"]),
            units.size(row["bytes"]),
            units.duration(row["dur_ns"]),
            units.bandwidth(row["bandwidth_gbps"]),
        )
        for row in rows[:shown]
    ]
    writer.rows(("<kind", ">size", ">count", ">bytes", ">time", ">bandwidth"), cells)
    writer.more(len(rows) - shown, ELSEWHERE)


def _calls(report: Report, writer: Writer, shown: int) -> None:
    rows, where = _of_one_rank(report.get("api_calls", []))
    if not rows:
        return
    writer.heading(f"Runtime calls{where}")
    cells = [
        (
            units.share(row["share_frac"]),
            units.duration(row["dur_ns"]),
            units.count(row["count"]),
            units.duration(row["median_ns"]),
            units.duration(row["max_ns"]),
            row["name"],
        )
        for row in rows[:shown]
    ]
    writer.rows((">share", ">time", ">count", ">median", ">longest", "~call"), cells)
    writer.more(len(rows) - shown, ELSEWHERE)


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
