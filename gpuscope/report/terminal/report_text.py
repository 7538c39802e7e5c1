"""The whole terminal report (`--full`): the verdict first, what is uncertain last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from gpuscope.catalogue import prediction_sentences
from gpuscope.catalogue.prediction_sentences import bound_change, bound_share, setting_words
from gpuscope.catalogue.straggler_sentences import SLOWDOWN, slowdown_total
from gpuscope.catalogue.suggestion import cause_label
from gpuscope.report.terminal import first_screen, hang_text, job_log_text, nccl_text, profile_text
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import report_rows
from gpuscope.report.view.first_figures import ideal_lines
from gpuscope.report.view.headline import NAME, context_line, whole
from gpuscope.report.view.summary import mfu_words, summary
from gpuscope.schema.document import FindingEntry, Report, SuggestionEntry, UnpredictedEntry
from gpuscope.words import units
from gpuscope.words.units import crop, short_kernel, short_kernels
from gpuscope.words.vocabulary import CLASSES

# The terminal report's part on what to change.


def section(report: Report, writer: Writer) -> None:
    """The suggestions with their predicted gain, or why there are none."""
    suggestions, advice = report["suggestions"], report["advice"]
    if not (suggestions or advice["unpredicted"] or advice["why"]):
        return
    writer.heading("What to change")
    if advice["why"]:
        writer.line(f"Nothing: {advice['why']}.")
    for suggestion in suggestions:
        _suggestion(suggestion, writer)
    _plan(report, writer)
    for cause in advice.get("nothing_gains", []):
        writer.line(prediction_sentences.nothing_gains(cause))
    for one in advice["unpredicted"]:
        _unpredicted(one, writer)


def _plan(report: Report, writer: Writer) -> None:
    """The changes that are best made together; else that gains do not add up."""
    plan = report["advice"].get("plan")
    if plan is not None:
        writer.line(writer.text("Together", "bold"), f"  {prediction_sentences.plan(plan)}", hang=10)
    elif why := report["advice"].get("no_plan"):
        writer.line(writer.text("Together", "bold"), f"  not predicted: {why}", hang=10)
    elif len(report["suggestions"]) > 1:
        writer.line(writer.text("Gains do not add up: findings overlap.", "dim"))


def _suggestion(suggestion: SuggestionEntry, writer: Writer) -> None:
    predicted = suggestion["predicted"]
    writer.line(writer.text(suggestion["action"], "bold"), writer.text(f"  [for {suggestion['finding']}]", "dim"))
    # Without a timeline only memory is known; the basis says how much.
    step = f"{prediction_sentences.gain(suggestion)}; " if predicted["step_ns_before"] else ""
    for word, sentence in (
        ("set", setting_words(suggestion, brief=False)),
        ("gain", step + predicted["basis"]),
        ("why", suggestion["why"]),
        ("risk", suggestion["risk"]),
        ("verify", suggestion["verify"]),
    ):
        if sentence:
            writer.line(f"{word:<8}", sentence, indent=2, hang=8)


def _unpredicted(one: UnpredictedEntry, writer: Writer) -> None:
    saves = report_rows.saving(one) if "memory_bound" in one else ""
    whose = f", {one['path'].rpartition('/')[2]}" if "path" in one else ""
    known = saves or "bound" in one
    title = writer.text(one["action"] if known else f"Gain not estimated: {one['action']}", "bold")
    writer.line(title, writer.text(f"  [for {one['finding']}{whose}]", "dim"))
    writer.line(f"{'set':<8}", setting_words(one, brief=False), indent=2, hang=8)
    if saves:
        writer.line(f"{'saves':<8}", f"at most {saves}: {one['memory_bound']['basis']}", indent=2, hang=8)
    if "bound" in one:
        gain = f"{bound_share(one['bound'])}: {bound_change(one['bound'])}"
        writer.line(f"{'gain':<8}", gain, indent=2, hang=8)
    writer.line(f"{'why not' if not saves else 'time':<8}", one["why_not"], indent=2, hang=8)
    if one.get("verify"):
        writer.line(f"{'verify':<8}", one["verify"], indent=2, hang=8)


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
    hang_text.serving_text_section(report, writer)
    section(report, writer)
    _collectives(report, writer, rows)
    nccl_text.sections(report, writer)
    nccl_text.section(report, writer)
    profile_text.stragglers_text_section(report, writer)
    _slowdown(report, writer)
    _replay(report, writer)
    profile_text.pipeline_text_section(report, writer)
    nccl_text.compile_text_section(report, writer)
    profile_text.section(report, writer)
    hang_text.roles_text_section(report, writer)
    job_log_text.section(report, writer)
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
    entries, folded = report_rows.shown_ranks(report)
    if not entries:
        return
    times = [report_rows.rank_step_ns(report, entry) for entry in entries]
    rows = zip(report_rows.rank_labels(entries), entries, times, strict=True)
    first_screen.rank_table(rows, report_rows.step_title(report), writer)
    if folded:
        writer.line(
            writer.text(
                f"{folded} of {len(report['ranks'])} ranks are folded; shown are the {report_rows.LEAST} "
                f"with the least compute, the median and the {report_rows.MOST} with the most.",
                "dim",
            )
        )


def _causes(report: Report, writer: Writer) -> None:
    rows = report_rows.causes(report)
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
    found = report_rows.findings(report)
    if not found:
        return
    writer.heading("Findings")
    starts = report_rows.starts(report)
    for finding in found:
        _finding(finding, report_rows.finding_cost_ns(report, finding), whole(report), starts, writer)


_SEVERITY_STYLE = {"high": "bold red", "medium": "bold yellow", "low": "bold"}


def _finding(finding: FindingEntry, lost: int | None, unit: str, starts: report_rows.Starts, writer: Writer) -> None:
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
        place = report_rows.place_ns(evidence, starts)
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
    found = report_rows.doubts(report)
    if not found:
        return
    writer.heading("What is uncertain")
    for heading, sentence in found:
        writer.line(writer.text(f"{heading}: ", "bold"), sentence, hang=2)
