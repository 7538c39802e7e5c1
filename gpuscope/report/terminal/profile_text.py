"""Terminal sections of the profile tables: operators, ranges, phases, calls, copies, launches, streams, gaps.

Tables that have a row per rank show one rank, the first: the others are a `--ranks` or a `--csv` away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from rich.console import RenderableType

from gpuscope.catalogue.prediction_sentences import step_change, with_basis
from gpuscope.catalogue.straggler_sentences import CAUSED_WAIT
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import report_rows
from gpuscope.schema.document import RankStepEntry, Report
from gpuscope.schema.nccl_sections import BandwidthEntry, KernelRankEntry, QueueEntry
from gpuscope.schema.provenance import ExpertGain, ExpertPassEntry, ExpertsSection, Pipeline
from gpuscope.welch import fmean, median
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import short_kernel, short_kernels

# The section `experts` in words: how unevenly tokens go to ranks, what that costs, and what another routing gives.

PASSES_SHOWN = 12
RANKS_SHOWN = 8
EXPERTS_SHOWN = 3


def section(report: Report, writer: Writer) -> None:
    """Nothing without all-to-alls of known sizes."""
    if "experts" not in report:
        return
    experts = report["experts"]
    writer.heading("Experts")
    for sentence in sentences(experts, report.get("bandwidth", [])):
        writer.line(sentence, hang=2)
    passes = sorted(experts["passes"], key=lambda one: -one["imbalance_ns"])
    rows = [
        (
            str(one["number"]),
            units.memory(one["bytes"]),
            f"{one['imbalance']:.2f}×",
            str(one["busiest"]),
            units.duration(one["experts_ns"]),
            units.duration(one["imbalance_ns"]),
            units.duration(one["straggler_ns"]),
            units.duration(one["dispatch_ns"] + one["combine_ns"]),
        )
        for one in passes[:PASSES_SHOWN]
    ]
    writer.rows((">pass", ">bytes", ">busiest", ">rank", ">experts", ">imbalance", ">straggler", ">transfers"), rows)
    if len(passes) > PASSES_SHOWN:
        more = units.plural(len(passes) - PASSES_SHOWN, "more pass", "more passes")
        writer.line(writer.text(f"and {more} (--html, --json)", "dim"))


def sentences(experts: ExpertsSection, bandwidth: Sequence[BandwidthEntry] = ()) -> list[str]:
    """Load by rank and of the busiest experts, cost, what of transfers lies open, gains, and what could not be
    divided."""
    cost = experts["cost"]
    heaviest = sorted(experts["ranks"], key=lambda one: -one["load"])
    shown = ", ".join(f"rank {one['rank']} {one['load']:.2f}" for one in heaviest[:RANKS_SHOWN])
    more = f" and {len(heaviest) - RANKS_SHOWN} more" if len(heaviest) > RANKS_SHOWN else ""
    told = [
        f"load, times the mean: {shown}{more}",
        *_busiest_experts(experts["passes"]),
        f"per step, passes added up: uneven routing {units.duration(cost['imbalance_ns'])}, slow ranks "
        f"{units.duration(cost['straggler_ns'])}, transfers with even loads {units.duration(cost['network_ns'])}",
        "dispatch and combine with nothing else running beside them, waiting included: "
        f"{units.duration(sum(one['exposed_ns'] for one in experts['passes']))} per step and rank",
        *_rates(experts["passes"], bandwidth),
        *(f"{routing(one)}: {outcome(one)}" for one in experts["gains"]),
    ]
    if experts["overlapping"]:
        told.append(
            f"{units.plural(experts['overlapping'], 'pass', 'passes')} beside another: micro-batches overlap "
            "(DualPipe, two-batch overlap)"
        )
    if experts["left_out"]:
        all_to_alls = units.plural(experts["left_out"], "all-to-all")
        told.append(f"{all_to_alls} left out: no dispatch with its combine (weights of tokens, cut steps)")
    return told + ([experts["not_separable"]] if "not_separable" in experts else [])


def _busiest_experts(passes: Sequence[ExpertPassEntry]) -> Iterator[str]:
    """`expert 3 of pass 0 has 2.10 times the mean of its layer's tokens`, of the three with most."""
    ratios = [
        (tokens / fmean(chain(*one["tokens"])), one["number"], place * len(own) + expert)
        for one in passes
        if "tokens" in one and any(map(any, one["tokens"]))
        for place, own in enumerate(one["tokens"])
        for expert, tokens in enumerate(own)
    ]
    if ratios:
        most = sorted(ratios, key=lambda one: -one[0])[:EXPERTS_SHOWN]
        shown = ", ".join(f"{ratio:.2f} (expert {expert}, pass {number})" for ratio, number, expert in most)
        yield f"busiest experts, times the mean: {shown}"


def _rates(passes: Sequence[ExpertPassEntry], bandwidth: Sequence[BandwidthEntry]) -> Iterator[str]:
    """Bus bandwidth of the all-to-alls of experts' groups, and the link's peak where one is known."""
    groups = {one["group"] for one in passes}
    own = [one for one in bandwidth if one["tool"] == "trace" and one["op"] == "all_to_all" and one["group"] in groups]
    rates = [(one["busbw_gbps"], one["bytes"], one["peak_gbps"]) for one in own if one["busbw_gbps"] is not None]
    if rates:
        rate, nbytes, peak = max(rates, key=lambda one: one[1])
        of = f", {units.share(rate / peak)} of the link's {peak:.4g} GB/s" if peak else ""
        yield f"all-to-alls of {units.memory(nbytes)}: {rate:.3g} GB/s on the bus{of}"


def routing(gain: ExpertGain) -> str:
    """`even routing`, or `capacity factor 1.25, which drops 3.2 % of the tokens`."""
    if gain["kind"] == "capacity":
        dropped = units.share(gain["dropped_frac"])
        return f"capacity factor {gain['capacity_factor']:g}, which drops {dropped} of the tokens"
    return _KINDS[gain["kind"]]


_KINDS = {
    "even": "even routing",
    "placement": "experts placed by their tokens",
    "redundant": "so, and a copy of a busy expert on each rank",
}


def outcome(gain: ExpertGain) -> str:
    """What is predicted, or why nothing is."""
    told = gain["predicted"]
    return gain["why_not"] if told is None else f"{step_change(told)}; {told['basis']}"


# The section `pipeline` in the terminal: schedule, bubble by stage, and what would make it smaller.

STAGES_SHOWN = 16
PARTS: tuple[Literal["warm_up", "steady", "drain", "imbalance"], ...] = ("warm_up", "steady", "drain", "imbalance")
"""Parts of a bubble, as labelled."""
BUBBLE = "whatever keeps a stage from computing: neighbours, messages, its host"
"""What the bubble holds beyond the cause `pipeline_bubble`, which is exposed waiting for a neighbour alone."""
_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved 1F1B",
    "looped_bfs": "looped breadth-first",
    "interleaved_zero_bubble": "interleaved zero-bubble",
    "zbv": "ZB-V",
    "unknown": "unknown",
}


@dataclass(frozen=True)
class StageRow:
    """A stage over all pipelines and steps: shares of the pipeline's time."""

    stage: int
    ranks: list[int]
    compute_frac: float
    part_fracs: list[float]
    """In the order of `PARTS`."""


def pipeline_text_section(report: Report, writer: Writer) -> None:
    """Nothing for a job without a pipeline."""
    if "pipeline" not in report:
        return
    pipeline = report["pipeline"]
    writer.heading("Pipeline")
    for line in pipeline_text_sentences(pipeline):
        writer.line(line, hang=2)
    rows = by_stage(pipeline)
    if not rows:
        return
    cells: list[tuple[RenderableType, ...]] = [
        (str(row.stage), writer.cell(units.ranks(row.ranks)), *map(units.share, (row.compute_frac, *row.part_fracs)))
        for row in rows[:STAGES_SHOWN]
    ]
    writer.rows((">stage", "<ranks", ">compute", *(f">{part.replace('_', '-')}" for part in PARTS)), cells)
    if len(rows) > STAGES_SHOWN:
        writer.line(writer.text(f"and {units.plural(len(rows) - STAGES_SHOWN, 'more stage')} (--html, --json)", "dim"))


def pipeline_text_sentences(pipeline: Pipeline) -> list[str]:
    """What the section says in words."""
    count = len({entry["pipeline"] for entry in pipeline["stages"]})
    stages = max((entry["stage"] for entry in pipeline["stages"]), default=-1) + 1
    said = [f"{units.plural(count, 'pipeline')} of {units.plural(stages, 'stage')}, from {pipeline['basis']}"]
    if "schedule" in pipeline:
        schedule = pipeline["schedule"]
        chunks = schedule["chunks_per_stage"]
        each = f", {chunks} model chunks per stage" if chunks > 1 else ""
        batches = units.plural(schedule["micro_batches"], "micro-batch", "micro-batches")
        said.append(f"schedule: {_NAMES[schedule['name']]} with {batches}{each}; {schedule['why']}")
        best = schedule["ideal_bubble_frac"]
        ideal = f"; ideal for this schedule {units.share(best)}: {schedule['ideal_basis']}" if best is not None else ""
        share = units.share(pipeline.get("bubble_frac"))
        said.append(f"bubble: {share} of the pipeline's time, {BUBBLE}{ideal}")
    for words, gain in (
        ("an even split of the stages", pipeline.get("even_split")),
        ("twice the micro-batches, same batch", pipeline.get("more_micro_batches")),
    ):
        if gain is not None:
            said.append(f"{words}: {with_basis(gain)}")
    if pipeline["incomplete"]:
        said.append(f"incomplete: {pipeline['incomplete']}")
    return said


def by_stage(pipeline: Pipeline) -> list[StageRow]:
    """The rows of the section added up by stage."""
    rows = pipeline.get("rows", [])
    found = []
    for stage in sorted({row["stage"] for row in rows}):
        own = [row for row in rows if row["stage"] == stage]
        whole = max(sum(row["dur_ns"] for row in own), 1)
        parts = [sum(row["bubble_ns"][part] for row in own) / whole for part in PARTS]
        ranks = sorted({row["rank"] for row in own})
        found.append(StageRow(stage, ranks, sum(row["compute_ns"] for row in own) / whole, parts))
    return found


# Terminal sections on waiting: the ranks that others waited for, and who made whom wait in which step.

STRAGGLERS_TEXT_RANKS_SHOWN, STEPS_SHOWN = 8, 6
"""Of the rank × step table: the ranks that make others wait most, in the steps with most waiting."""
STRAGGLERS_SHOWN = 16


@dataclass(frozen=True)
class Heatmap:
    """The part of the rank × step table that is worth looking at."""

    steps: list[int]
    rows: list[tuple[int, list[RankStepEntry | None]]]
    """Per rank, its cell in each of `steps`."""
    left_out: str
    """What is not shown, in words; empty where nothing is."""


def heatmap(report: Report, ranks: int = STRAGGLERS_TEXT_RANKS_SHOWN, steps: int = STEPS_SHOWN) -> Heatmap | None:
    """The ranks and steps with most waiting, in order; None where nobody waited."""
    entries = report["rank_steps"]
    caused: dict[int, int] = {}
    suffered: dict[int, int] = {}
    waited: dict[int, int] = {}
    for entry in entries:
        caused[entry["rank"]] = caused.get(entry["rank"], 0) + entry["wait_caused_ns"]
        suffered[entry["rank"]] = suffered.get(entry["rank"], 0) + entry["wait_suffered_ns"]
        waited[entry["step"]] = waited.get(entry["step"], 0) + entry["wait_suffered_ns"]
    if not any(suffered.values()):
        return None
    shown = sorted(sorted(caused, key=lambda rank: (-caused[rank], -suffered[rank], rank))[:ranks])
    at = sorted(sorted(waited, key=lambda step: (-waited[step], step))[:steps])
    cells = {(entry["rank"], entry["step"]): entry for entry in entries}
    rows = [(rank, [cells.get((rank, step)) for step in at]) for rank in shown]
    parts = [f"{len(caused)} ranks"] * (len(shown) < len(caused)) + [f"{len(waited)} steps"] * (len(at) < len(waited))
    return Heatmap(at, rows, f"Of {' and '.join(parts)}, those with most waiting (all: --json)." if parts else "")


def stragglers_text_section(report: Report, writer: Writer) -> None:
    """Print both."""
    _stragglers(report, writer)
    _heatmap(report, writer)


def _stragglers(report: Report, writer: Writer) -> None:
    rows = sorted(report["stragglers"], key=lambda row: -row["caused_wait_ns"])
    if not rows:
        return
    writer.heading("Ranks that others waited for")
    stepped = any(row["per_step_ns"] is not None for row in rows)
    each = [">per step"] if stepped else []
    cells = []
    for row in rows[:STRAGGLERS_SHOWN]:
        waits = [row["caused_wait_ns"], *([row["per_step_ns"]] if stepped else []), row["root_wait_ns"]]
        cells.append(
            (
                str(row["rank"]),
                *map(units.duration, waits),
                "yes" if row["recurrent"] else "no",
                row["phase"] or units.NONE,
                row["operation"] or units.NONE,
            )
        )
    writer.rows((">rank", ">caused wait", *each, ">traced to it", "<recurrent", "~late in", "~doing"), cells)
    writer.more(len(rows) - STRAGGLERS_SHOWN)
    writer.line(writer.text(CAUSED_WAIT, "dim"))


def _heatmap(report: Report, writer: Writer) -> None:
    found = heatmap(report)
    if found is None:
        return
    writer.heading("Wait caused / suffered, by rank and step")
    rows = [(str(rank), *map(cell_words, cells)) for rank, cells in found.rows]
    writer.rows((">rank", *(f">step {step}" for step in found.steps)), rows)
    if found.left_out:
        writer.line(writer.text(found.left_out, "dim"))


def cell_words(cell: RankStepEntry | None) -> str:
    """A cell as `60.48 ms / -`: the wait it caused and the one it suffered."""
    if cell is None:
        return units.NONE
    return " / ".join(units.duration(cell[key] or None) for key in ("wait_caused_ns", "wait_suffered_ns"))


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
    starts = report_rows.starts(report)
    writer.heading(f"Longest idle gaps{where}")
    cells = []
    for row in rows[:shown]:
        at = report_rows.place_ns(row, starts)
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
