"""The sections `bandwidth`, `fits`, `traffic`, `nccl` and `topology`, and counters, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from rich.console import RenderableType

from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import report_rows
from gpuscope.schema.call_tree_section import CompilationSection, CompileEntry, DeviceCounterEntry, DivergenceEntry
from gpuscope.schema.document import Report
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.schema.nccl_sections import (
    BandwidthEntry,
    ChoiceEntry,
    FitEntry,
    LinkCounterEntry,
    Nccl,
    TopologyEntry,
    TrafficEntry,
)
from gpuscope.trace.frameworks import own_frames
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import frame_place

# The section `memory` in the terminal: peaks, what was in use at the peak, failed requests, replayed settings.

ENTRIES_SHOWN = 16
LINES_SHOWN = 8
"""Lines of code of one snapshot."""
LEAST_LINES = 2
"""Of one of several that share the first screen."""
BRIEF = 3
"""Snapshots whose contents the first screen shows."""
FAILURES_SHOWN = 3


def section(report: Report, writer: Writer, *, brief: bool = False) -> None:
    """Nothing for a report without the section; `brief` is for the first screen."""
    entries = report.get("memory", [])
    if not entries:
        return
    writer.heading("Memory of the caching allocator")
    if len(entries) > 1 or entries[0]["kind"] != "snapshot" or not brief:
        _table(entries, writer)
    snapshots = report_rows.snapshots(report)
    shown = snapshots[: BRIEF if brief else ENTRIES_SHOWN]
    whole = not brief or len(shown) == 1
    for entry in shown:
        _details(entry, LINES_SHOWN if whole else LEAST_LINES, writer, whole=whole, replay=not brief)
    if len(snapshots) > len(shown):
        more = units.plural(len(snapshots) - len(shown), "more snapshot")
        writer.line(writer.text(f"and {more} ({'--full, ' if brief else ''}--html, --json)", "dim"))


def _table(entries: list[MemoryEntry], writer: Writer) -> None:
    titles = (">rank", ">device", ">peak in use", ">peak reserved", ">in use at end", ">reserved", "~from")
    writer.rows(titles, [(*numbers(entry), PurePath(entry["path"]).name) for entry in entries[:ENTRIES_SHOWN]])
    writer.more(len(entries) - ENTRIES_SHOWN)


def numbers(entry: MemoryEntry) -> tuple[str, ...]:
    """Rank, device, peaks and what was held at the end, as text."""
    reserved = (entry["peak_reserved_bytes"], entry["end_reserved_bytes"])
    peak, end = (units.NONE if size is None else units.memory(size) for size in reserved)
    allocated = units.memory(entry["peak_allocated_bytes"]), units.memory(entry["end_allocated_bytes"])
    return report_rows.rank_of(entry), str(entry["device"]), allocated[0], peak, allocated[1], end


def _details(entry: MemoryEntry, lines: int, writer: Writer, *, whole: bool, replay: bool) -> None:
    peak, reserved = units.memory(entry["peak_allocated_bytes"]), entry["peak_reserved_bytes"]
    of = "" if reserved is None else f" ({units.memory(reserved)} reserved)"
    writer.line(writer.text(report_rows.label(entry), "bold"), f"  {peak} in use at the peak{of}, by line:", hang=2)
    if entry["at_peak"]:
        whole_peak = max(entry["peak_allocated_bytes"], 1)
        rows = [
            (
                units.memory(held["bytes"]),
                units.count(held["blocks"]),
                units.share(held["bytes"] / whole_peak),
                report_rows.brief_where(held),
            )
            for held in entry["at_peak"][:lines]
        ]
        writer.rows((">bytes", ">blocks", ">share", "~where"), rows)
        if more := report_rows.lines_left(entry, lines):
            writer.line(writer.text(more, "dim"))
        if kinds := report_rows.kinds(entry) if whole else "":
            writer.line(f"By kind: {kinds}", hang=2)
        if hint := report_rows.to_record(entry) if whole else "":
            writer.line(writer.text(hint, "dim"), hang=2)
    for failure in entry["failures"][:FAILURES_SHOWN]:
        blocks = ", ".join(map(units.memory, failure["free_blocks"])) or "none"
        writer.line(writer.text("failed", "bold red"), f"  {failure['why']} (free blocks: {blocks})", hang=4)
        for frame in own_frames(failure["frames"])[:FAILURES_SHOWN]:
            writer.line(frame, indent=4, hang=2)
    if (left := report_rows.failures(entry) - FAILURES_SHOWN) > 0:
        writer.line(writer.text(f"and {units.plural(left, 'more failed request')}", "dim"))
    if entry["replay"] is not None and replay:
        for line in report_rows.replay_lines(entry["replay"]):
            writer.line(line, hang=2)


# The section `compilation` in words: what torch.compile took of each rank, where graphs break, what differs.

ROWS = 10


@dataclass(frozen=True)
class Line:
    """What happened at one place, over all ranks and times."""

    kind: str
    place: str
    ranks: list[int]
    times: int
    cost: str
    why: str


def compile_text_section(report: Report, writer: Writer) -> None:
    """Nothing without logs of torch.compile."""
    if "compilation" not in report:
        return
    compilation = report["compilation"]
    writer.heading("torch.compile")
    for sentence in sentences(compilation):
        writer.line(sentence, hang=2)
    found = lines(compilation)
    rows = [
        (line.kind, line.place, units.ranks(line.ranks), str(line.times), line.cost, line.why) for line in found[:ROWS]
    ]
    writer.rows(("<what", "<where", "<ranks", ">times", ">cost", "~why"), rows)
    if len(found) > ROWS:
        writer.line(writer.text(f"and {units.plural(len(found) - ROWS, 'more line')} (--html, --json)", "dim"))


def sentences(compilation: CompilationSection) -> list[str]:
    """How much was compiled, and how ranks differ."""
    ranks = compilation["ranks"]
    longest = max(ranks, key=lambda one: one["compile_ns"])
    inside = [one["in_steps_ns"] for one in ranks if one["in_steps_ns"] is not None]
    of_rank = f", most on rank {longest['rank']}" if len(ranks) > 1 else ""
    compiles = units.plural(sum(one["compiles"] for one in ranks), "compilation")
    took = f"{compiles} on {units.rank_words([one['rank'] for one in ranks])}: {units.duration(longest['compile_ns'])}"
    within = f"; {units.duration(max(inside))} within recorded steps" if inside else ""
    told = [took + of_rank + within]
    return told + [_unlike(one) for one in compilation["divergence"]]


def _unlike(one: DivergenceEntry) -> str:
    pairs = zip(one["groups"], one["what"], strict=True)
    groups = "; ".join(f"{units.rank_words(group)}: {what}" for group, what in pairs)
    what = "The collectives of" if one["kind"] == "schedule" else "The compilations of"
    return f"{what} {frame_place(one['function'], one['file'], one['line'])} differ: {groups}"


def lines(compilation: CompilationSection) -> list[Line]:
    """Graph breaks, then recompilations and failures, each place once, the costliest first."""
    found = [
        Line(
            "graph break",
            frame_place(None, one["file"], one["line"]),
            one["ranks"],
            len(one["compile_ids"]) if one["per_step"] is None else round(one["per_step"]),
            units.NONE if one["idle_ns_per_step"] is None else f"{units.duration(one['idle_ns_per_step'])} a step",
            one["reason"],
        )
        for one in compilation["graph_breaks"]
    ]
    again: dict[tuple[str, str], list[CompileEntry]] = {}
    for one in compilation["compiles"]:
        kind = "failed" if one["failed"] else "recompiled" if one["recompiled"] else "compiled"
        again.setdefault((kind, frame_place(one["function"], one["file"], one["line"])), []).append(one)
    ordered = sorted(again.items(), key=lambda item: (item[0][0] == "compiled", -_spent(item[1])))
    return found + [
        Line(
            kind,
            where,
            sorted({one["rank"] for one in own}),
            len(own),
            units.duration(_spent(own)),
            own[-1]["failed"] or own[-1]["reason"] or (f"cache {own[-1]['cache']}" if own[-1]["cache"] else ""),
        )
        for (kind, where), own in ordered
    ]


def _spent(own: list[CompileEntry]) -> int:
    return sum(one["dur_ns"] or 0 for one in own)


ROWS_SHOWN = 40
AVERAGES_SHOWN = 3
COSTLIEST = 12
"""Rows shown of what a trace holds: those that took most time."""
TRACE = "trace"


def sections(report: Report, writer: Writer) -> None:
    """Whichever of them the report has."""
    if "nccl" in report:
        _nccl(report["nccl"], writer)
    if "bandwidth" in report:
        _bandwidth(report["bandwidth"], writer)
    if "fits" in report:
        _fits(report["fits"], writer)
    if "link_counters" in report:
        _counters("Links over time", report["link_counters"], writer)
    if "device_counters" in report:
        _counters("GPU counters over time", report["device_counters"], writer)
        _by_kernel(report["device_counters"], writer)
    if "traffic" in report:
        _traffic(report["traffic"], writer)
    if "topology" in report:
        _topology(report["topology"], writer)


def _nccl(nccl: Nccl, writer: Writer) -> None:
    writer.heading("NCCL")
    if nccl["versions"]:
        writer.line(f"version {', '.join(nccl['versions'])}")
    for entry in nccl["communicators"]:
        details = [units.plural(entry["size"], "rank")]
        details += [units.plural(entry["nodes"], "node")] if entry["nodes"] else []
        details += [f"{entry['channels']} channels"] if entry["channels"] is not None else []
        details += [f"{entry['p2p_channels']} for send and receive"] if entry["p2p_channels"] is not None else []
        details += [f"{entry['rings']} rings"] if entry["rings"] else []
        details += [f"{entry['trees']} trees"] if entry["trees"] else []
        writer.line(f"{units.plural(entry['count'], 'communicator')}: {', '.join(details)}", hang=2)
    for transport in nccl["transports"]:
        where = {True: " on one host", False: " between hosts", None: ""}[transport["same_node"]]
        writer.line(
            f"{transport['transport']}: {units.plural(transport['connections'], 'connection')} between "
            f"{units.plural(transport['pairs'], 'pair')} of ranks{where}",
            hang=2,
        )
    if nccl["average_busbw_gbps"]:
        shown = ", ".join(units.bandwidth(value) for value in nccl["average_busbw_gbps"][:AVERAGES_SHOWN])
        more = ", …" if len(nccl["average_busbw_gbps"]) > AVERAGES_SHOWN else ""
        writer.line(f"nccl-tests' own average bus bandwidth: {shown}{more}")
    for variable in nccl["environment"]:
        writer.line(f"set: {variable['name']}={variable['value']}", hang=2)
    _choices(nccl["choices"], writer)


def _choices(choices: Sequence[ChoiceEntry], writer: Writer) -> None:
    if not choices:
        return
    titles = ("<operation", ">bytes", "<algorithm", "<protocol", ">channels", ">devices", ">count")
    rows = [
        (
            entry["op"] or units.NONE,
            units.size(entry["bytes"]),
            entry["algorithm"],
            entry["protocol"],
            _number(entry["channels"]),
            _number(entry["ranks"]),
            units.count(entry["count"]),
        )
        for entry in choices[:ROWS_SHOWN]
    ]
    writer.rows(titles, rows)
    writer.more(len(choices) - ROWS_SHOWN)


def _bandwidth(entries: Sequence[BandwidthEntry], writer: Writer) -> None:
    tools = sorted({entry["tool"] for entry in entries} - {TRACE})
    for measured, rows in (
        (True, [e for e in entries if e["tool"] != TRACE]),
        (False, [e for e in entries if e["tool"] == TRACE]),
    ):
        if not rows:
            continue
        writer.heading(f"Bandwidth measured by {', '.join(tools)}" if measured else "Bandwidth in the trace")
        shown = rows[:ROWS_SHOWN] if measured else _costliest(rows)
        _bandwidth_table(shown, len(tools) > 1 and measured, writer)
        writer.more(len(rows) - len(shown))
        for basis in dict.fromkeys(row["size_basis"] for row in rows if row["size_basis"]):
            writer.line(writer.text(f"≈ size estimated from {basis}, not recorded", "dim"), hang=2)
        _peaks(rows, writer)


def _costliest(rows: Sequence[BandwidthEntry]) -> list[BandwidthEntry]:
    kept = sorted(rows, key=lambda row: -row["dur_ns"] * row["count"])[:COSTLIEST]
    return [row for row in rows if row in kept]


def _bandwidth_table(rows: Sequence[BandwidthEntry], several: bool, writer: Writer) -> None:
    rated = any(row["efficiency_frac"] is not None for row in rows)
    # Beside a tool's rows stands the table of choices.
    chosen = any(row["algorithm"] and row["tool"] == TRACE for row in rows)
    columns = ["<operation", ">ranks", ">bytes", ">count", ">time"]
    timed = any(row["tool"] != TRACE for row in rows) and not rated
    columns += [">algbw", ">busbw"] if timed else [">busbw"]
    columns += [">of peak"] if rated else []
    columns += ["<chosen"] if chosen else []
    shown = []
    for row in rows:
        bound = "≥ " if row["lower_bound"] and row["busbw_gbps"] is not None else ""
        cells = [
            row["op"],
            str(row["group_size"]) if row["group_size"] else units.NONE,
            ("≈ " if row["size_basis"] else "") + units.size(row["bytes"]),
            units.count(row["count"]),
            units.duration(row["dur_ns"]),
            *([units.bandwidth(row["algbw_gbps"])] if timed else []),
            bound + units.bandwidth(row["busbw_gbps"]),
        ]
        cells += [bound + units.share(row["efficiency_frac"])] if rated else []
        cells += [_choice(row)] if chosen else []
        words = (row["tool"] if several else "", row["run"] or "", row["variant"] or "", row["group"] or "")
        shown.append([*cells, " ".join(word for word in words if word)])
    writer.rows([*columns, "~"], shown)


def _choice(row: BandwidthEntry) -> str:
    if row["algorithm"] is None:
        return units.NONE
    channels = f" ×{row['channels']}" if row["channels"] else ""
    return "/".join(part for part in (row["algorithm"], row["protocol"]) if part) + channels


def _peaks(rows: Sequence[BandwidthEntry], writer: Writer) -> None:
    """What each peak is and rests on, or why there is none, once each."""
    for gbps, link, basis in dict.fromkeys((row["peak_gbps"], row["link"], row["peak_basis"]) for row in rows):
        basis_line = f"peak {units.bandwidth(gbps)}: {link}, {basis}" if gbps is not None else f"no peak: {basis}"
        writer.line(writer.text(basis_line, "dim"), hang=2)


def _fits(entries: Sequence[FitEntry], writer: Writer) -> None:
    found = [entry for entry in entries if not entry["why"]]
    if found:
        writer.heading("Cost by size: fixed cost + bytes / bandwidth")
        titles = ("<operation", ">ranks", ">sizes", ">fixed", ">busbw", ">off by", "~")
        writer.rows(titles, [_fit(entry) for entry in found[:ROWS_SHOWN]])
        writer.more(len(found) - ROWS_SHOWN)


def _fit(entry: FitEntry) -> tuple[str, ...]:
    fixed_error, busbw_error = entry["alpha_error_ns"], entry["busbw_error_gbps"]
    choice = f"{entry['algorithm']}/{entry['protocol']}" if entry["algorithm"] else ""
    words = (entry["tool"] if entry["tool"] != TRACE else "", entry["run"] or "", choice, entry["group"] or "")
    return (
        entry["op"],
        str(entry["group_size"]),
        str(entry["sizes"]),
        units.duration(entry["alpha_ns"]) + (f" ± {units.duration(fixed_error)}" if fixed_error is not None else ""),
        units.bandwidth(entry["busbw_gbps"])
        + (f" ± {units.bandwidth(busbw_error)}" if busbw_error is not None else ""),
        units.share(entry["error_frac"]),
        " ".join(word for word in words if word),
    )


BARS = " ▁▂▃▄▅▆▇█"
COURSE = 25
"""Characters that a counter's course over the recording takes."""


def _counters(heading: str, entries: Sequence[LinkCounterEntry | DeviceCounterEntry], writer: Writer) -> None:
    writer.heading(heading)
    rows: list[tuple[RenderableType, ...]] = []
    for entry in entries[:ROWS_SHOWN]:
        figures = (entry["mean"], entry.get("mean_while_computing"), entry["mean_while_exposed"], entry["peak"])
        cells = [_amount(value, entry["unit"]) for value in figures]  # type: ignore[arg-type]
        rows.append((entry["place"], entry["counter"], *cells, writer.cell(_course(entry["course"]))))
    writer.rows(("<place", "~counter", ">mean", ">computing", ">exposed", ">peak", "<course"), rows)
    writer.line(writer.text("mean while kernels compute, and while communication is exposed", "dim"))
    writer.more(len(entries) - ROWS_SHOWN)


def _amount(value: float | None, unit: str) -> str:
    return units.NONE if value is None else units.amount(value, unit)


def _by_kernel(entries: Sequence[DeviceCounterEntry], writer: Writer) -> None:
    """What the counters show while one kernel runs, where samples are short enough to say."""
    found = [(entry, kernel) for entry in entries if entry["unit"] == "%" for kernel in entry["kernels"]]
    if not found:
        return
    rows = [
        (
            str(entry["rank"]),
            kernel["name"],
            entry["counter"],
            units.amount(kernel["mean"], entry["unit"]),
            units.count(kernel["samples"]),
        )
        for entry, kernel in found[:ROWS_SHOWN]
    ]
    writer.rows((">rank", "~kernel", "~counter", ">mean", ">samples"), rows)
    writer.more(len(found) - ROWS_SHOWN)


def _course(values: Sequence[float]) -> str:
    """A bar per part of the recording, by the largest of them."""
    width = -(-len(values) // COURSE)
    means = [sum(part) / len(part) for start in range(0, len(values), width) if (part := values[start : start + width])]
    most = max(means, default=0.0) or 1.0
    return "".join(BARS[round(max(mean, 0.0) / most * (len(BARS) - 1))] for mean in means)


def _traffic(entries: Sequence[TrafficEntry], writer: Writer) -> None:
    writer.heading("Messages between ranks")
    rows = [
        (
            str(entry["rank"]),
            str(entry["peer"]),
            units.count(entry["count"]),
            units.size(entry["bytes"]),
            units.duration(entry["dur_ns"]),
        )
        for entry in sorted(entries, key=lambda row: -row["dur_ns"])[:COSTLIEST]
    ]
    writer.rows((">from", ">to", ">count", ">bytes", ">time"), rows)
    writer.more(len(entries) - COSTLIEST)


def _topology(entries: Sequence[TopologyEntry], writer: Writer) -> None:
    writer.heading("Links of the host")
    rows = [
        (entry["node"], entry["peer"], entry["link"], _number(entry["width"]), units.bandwidth(entry["rate_gbps"]))
        for entry in entries[:ROWS_SHOWN]
    ]
    writer.rows(("~from", "~to", "<link", ">width", ">rate"), rows)
    writer.more(len(entries) - ROWS_SHOWN)


def _number(value: int | None) -> str:
    return units.NONE if value is None else str(value)
