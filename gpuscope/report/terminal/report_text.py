"""The whole terminal report (`--full`): the verdict first, what is uncertain last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from gpuscope.catalogue.cause_table import cause_label
from gpuscope.catalogue.straggler_sentences import SLOWDOWN, slowdown_total
from gpuscope.report.terminal import first_screen
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.terminal.sections import (
    advice_text,
    compile_text,
    experts_text,
    hang_text,
    memory_text,
    nccl_text,
    pipeline_text,
    profile_text,
    roles_text,
    serving_text,
    stragglers_text,
)
from gpuscope.report.view import arrangement
from gpuscope.report.view.headline import NAME, context_line, whole
from gpuscope.report.view.ideal_sentences import ideal_lines
from gpuscope.report.view.summary import mfu_words, summary
from gpuscope.schema.document import FindingEntry, Report
from gpuscope.words import units
from gpuscope.words.short_kernels import short_kernel, short_kernels
from gpuscope.words.units import crop
from gpuscope.words.vocabulary import CLASSES

EVIDENCE_SHOWN = {"high": 3, "medium": 1, "low": 1}
"""Places per finding: what costs little need not fill the screen."""
ROWS_SHOWN = 10
FAINT_FRAC = 0.001
LEAST_NAME = 24
"""Cells of the narrowest column of names."""
OPERATOR = 16
"""Cells that the operators have at least."""
ELSEWHERE = "--html, --json"
"""What shows the rows that a table leaves out."""


def render(report: Report, console: Console, rows: int = ROWS_SHOWN) -> None:
    """Print all of `report` to `console`, at its width, in its encoding, with or without colour; of long tables the
    first `rows`."""
    writer = Writer(console)
    found = summary(report)
    first_screen.headline(report, found, writer)
    if found.limits:
        writer.line(writer.text("Caveats  ", "bold"), found.limits, hang=9)
    _context(report, writer)
    _ranks(report, writer)
    _causes(report, writer)
    _findings(report, writer)
    if "hang" in report:
        hang_text.section(report["hang"], writer)
    serving_text.section(report, writer)
    advice_text.section(report, writer)
    _collectives(report, writer, rows)
    nccl_text.sections(report, writer)
    memory_text.section(report, writer)
    stragglers_text.section(report, writer)
    _slowdown(report, writer)
    _replay(report, writer)
    pipeline_text.section(report, writer)
    compile_text.section(report, writer)
    experts_text.section(report, writer)
    roles_text.section(report, writer)
    _kernels(report, writer, rows)
    if mfu := mfu_words(report):
        writer.line(mfu[:1].upper() + mfu[1:])
    _ideal(report, writer)
    profile_text.sections(report, writer, rows)
    _doubts(report, writer)


def _context(report: Report, writer: Writer) -> None:
    writer.line("")
    writer.line(writer.text(context_line(report), "dim"))


def _ranks(report: Report, writer: Writer) -> None:
    entries, folded = arrangement.shown_ranks(report)
    if not entries:
        return
    times = [arrangement.rank_step_ns(report, entry) for entry in entries]
    rows = zip(arrangement.rank_labels(entries), entries, times, strict=True)
    first_screen.rank_table(rows, arrangement.step_title(report), writer)
    if folded:
        writer.line(
            writer.text(
                f"{folded} of {len(report['ranks'])} ranks are folded; shown are the {arrangement.LEAST} "
                f"with the least compute, the median and the {arrangement.MOST} with the most.",
                "dim",
            )
        )


def _causes(report: Report, writer: Writer) -> None:
    rows = arrangement.causes(report)
    if not rows:
        return
    writer.heading("Non-compute time by cause")
    stepped = any(row.per_step_ns is not None for row in rows)
    when = "per step" if stepped else "in all"
    everyone = sorted({entry["rank"] for entry in report["ranks"]})
    cells = [
        (
            CLASSES[row.class_name] if row.class_name else units.NONE,
            cause_label(row.cause),
            units.duration(row.per_step_ns if stepped else row.total_ns),
            units.share(row.share_frac),
            "all" if row.ranks == everyone and len(everyone) > 1 else units.ranks(row.ranks),
        )
        for row in rows
        if row.share_frac >= FAINT_FRAC
    ]
    if cells:
        writer.rows(("<class", "<cause", f">{when}", ">share", "~affected ranks"), cells)
    if any(row.cause == "straggler" and row.share_frac >= FAINT_FRAC for row in rows):
        writer.line(writer.text("Straggler rows list the waiting ranks; the findings name the late ranks.", "dim"))
    faint = [row.cause for row in rows if row.share_frac < FAINT_FRAC]
    if faint:
        writer.line(writer.text(f"Below 0.1 % each: {', '.join(faint)}.", "dim"))


def _findings(report: Report, writer: Writer) -> None:
    found = arrangement.findings(report)
    if not found:
        return
    writer.heading("Findings")
    starts = arrangement.starts(report)
    for finding in found:
        _finding(finding, arrangement.finding_cost_ns(report, finding), whole(report), starts, writer)


_SEVERITY_STYLE = {"high": "bold red", "medium": "bold yellow", "low": "bold"}


def _finding(finding: FindingEntry, lost: int | None, unit: str, starts: arrangement.Starts, writer: Writer) -> None:
    costs = [
        f"{units.duration(lost)} per {unit}" if lost else "",
        units.share(finding["share_frac"]) if finding["share_frac"] else "",
    ]
    cost = "  " + ", ".join(cost for cost in costs if cost)
    ranks = finding["ranks"]
    made_by = "made by " if finding["code"] == "straggler" else ""
    where = f" ({made_by}{'rank' if len(ranks) == 1 else 'ranks'} {units.ranks(ranks)})" if ranks else ""
    writer.line(
        writer.text(finding["severity"].upper(), _SEVERITY_STYLE.get(finding["severity"], "bold")),
        " ",
        writer.text(finding["code"], "bold"),
        cost,
        where,
    )
    writer.line(finding["message"], indent=2)
    shown = EVIDENCE_SHOWN[finding["severity"]]
    for evidence in finding["evidence"][:shown]:
        place = arrangement.place_ns(evidence, starts)
        at = "" if place is None else f"at {units.offset(place)} "
        before = f"rank {evidence['rank']} {at}for {units.duration(evidence['dur_ns'])}: "
        writer.line(before, short_kernel(evidence["name"], max(writer.console.width - 4 - len(before), 20)), indent=4)
        if evidence["note"]:
            writer.line(writer.text(crop(evidence["note"], 3 * NAME), "dim"), indent=6)
    more = len(finding["evidence"]) - shown
    if more > 0:
        writer.line(writer.text(f"and {units.plural(more, 'more place')} (--html, --json)", "dim"), indent=4)


def _collectives(report: Report, writer: Writer, shown: int) -> None:
    rows = sorted(report["collectives"], key=lambda row: -row["dur_ns"])
    if not rows:
        return
    writer.heading("Collectives")
    cells = [
        (
            row["op"],
            row["group"] or units.NONE,
            units.count(row["count"]),
            units.size(row["bytes"]),
            units.duration(row["wait_ns"]),
            units.duration(row["transfer_ns"]),
            units.bandwidth(row["busbw_gbps"]),
        )
        for row in rows[:shown]
    ]
    writer.rows(("~operation", "~group", ">count", ">bytes", ">wait", ">transfer", ">busbw"), cells)
    writer.more(len(rows) - shown, ELSEWHERE)


def _slowdown(report: Report, writer: Writer) -> None:
    if "slowdown" not in report:
        return
    slowdown = report["slowdown"]
    writer.heading("Slowdown by stragglers")
    writer.line(slowdown_total(slowdown))
    for word, by in (
        ("operation", slowdown["by_operation"]),
        ("rank", slowdown["by_rank"]),
        ("stage", slowdown["by_stage"]),
    ):
        worst = sorted(by.items(), key=lambda item: -item[1])[:3]
        if worst:
            writer.line(f"by {word}: " + ", ".join(f"{name} {value:.3f}" for name, value in worst), indent=2)
    writer.line(writer.text(SLOWDOWN, "dim"))


def _replay(report: Report, writer: Writer) -> None:
    """How far predictions can be trusted."""
    replay = report.get("replay")
    if replay is None or replay["measured_step_ns"] is None or replay["error_frac"] is None:
        return
    writer.heading("Replay")
    measured, replayed = (units.duration(replay[key]) for key in ("measured_step_ns", "replayed_step_ns"))
    steps = units.plural(replay["steps"], "step")
    error = f"{100 * replay['error_frac']:.1f} %"
    writer.line(f"baseline replay error {error}: {replayed} replayed, {measured} measured ({steps})")
    if replay["why"]:
        writer.line(f"No predictions: {replay['why']}", indent=2)


def _kernels(report: Report, writer: Writer, shown: int) -> None:
    rows = sorted(report["kernels"], key=lambda row: -row["dur_ns"])
    if not rows:
        return
    writer.heading("Longest kernels")
    first = rows[:shown]
    columns = {
        "share": [units.share(row["share_frac"]) for row in first],
        "time": [units.duration(row["dur_ns"]) for row in first],
        "count": [units.count(row["count"]) for row in first],
        "mean": [units.duration(row["mean_ns"]) for row in first],
        "rate": [_teraflops(row["flops_per_s"]) for row in first],
    }
    if not any(row["flops_per_s"] for row in first):
        del columns["rate"]
    operators = [row.get("operator") or units.NONE for row in first]
    operator = max(map(len, operators)) if any(row.get("operator") for row in first) else 0
    if operator and _room(columns, writer) < LEAST_NAME + OPERATOR + 2:
        del columns["mean"]  # time by count; what launched a kernel can't be worked out
    room = _room(columns, writer)
    operator = min(operator, max(room // 3, OPERATOR)) if operator else 0
    names = short_kernels([row["name"] for row in first], max(room - operator - 2, LEAST_NAME))
    launched = [operators] if operator else []
    titles = [*(f">{title}" for title in columns), "~kernel", *(["~launched by"] if operator else [])]
    writer.rows(titles, zip(*columns.values(), names, *launched, strict=True))
    writer.more(len(rows) - shown, ELSEWHERE)


def _room(columns: Mapping[str, Sequence[str]], writer: Writer) -> int:
    """Cells that these columns leave."""
    return writer.console.width - sum(max(map(len, [title, *cells])) + 2 for title, cells in columns.items())


def _teraflops(flops_per_s: float | None) -> str:
    return units.NONE if flops_per_s is None else f"{flops_per_s / 1e12:.3g} TFLOP/s"


def _ideal(report: Report, writer: Writer) -> None:
    """What an ideal step would take, and where this one is furthest from it."""
    for sentence in ideal_lines(report):
        writer.line(writer.text(sentence))


def _doubts(report: Report, writer: Writer) -> None:
    found = arrangement.doubts(report)
    if not found:
        return
    writer.heading("What is uncertain")
    for heading, sentence in found:
        writer.line(writer.text(f"{heading}: ", "bold"), sentence, hang=2)
