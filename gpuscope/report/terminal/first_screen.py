"""The terminal report on one screen: at most 40 lines of 80 columns, the verdict and its remedy first."""

from __future__ import annotations

from collections.abc import Iterable

from rich.style import Style
from rich.text import Text

from gpuscope.catalogue.prediction_sentences import gain_cell
from gpuscope.catalogue.straggler_sentences import slowest_ranks
from gpuscope.report.terminal.screen import Bar, Writer
from gpuscope.report.view import headline as why_verdict
from gpuscope.report.view.headline import context_line, whole
from gpuscope.report.view.summary import SHOWN, ChangeLine, Summary, summary
from gpuscope.schema.document import RankEntry, Report
from gpuscope.words import units
from gpuscope.words.vocabulary import PARTS

LABEL = 6
"""Cells of the labels of the first lines."""
RECORDS_LINES = 26
"""Of sections on records without a timeline (NCCL logs, snapshots, dumps), so many lines."""


def render(report: Report, writer: Writer, top: int = SHOWN) -> None:
    """Print the first screen of `report`, with at most `top` causes and changes."""
    found = summary(report, top)
    headline(report, found, writer)
    writer.line("")
    writer.line(writer.text(context_line(report), "dim"))
    if not found.ranks:
        _records(report, writer)
    rank_bars(found, writer)
    _slowdown(report, writer)
    _causes(report, found, writer)
    _changes(report, found, writer)
    if found.limits:
        writer.line("")
        writer.line(writer.text("Caveats  ", "bold"), found.limits, hang=9)
    writer.line("")
    writer.line(writer.text("More: --full. In a browser: --html FILE, or gpuscope dashboard PATH.", "dim"))


def headline(report: Report, found: Summary, writer: Writer) -> None:
    """The first lines, and what adds up to the verdict's class."""
    bound_by = None if report["verdict"]["abstained"] else report["verdict"]["bound_by"]
    style = "bold yellow" if bound_by is None else "bold green" if bound_by == "compute" else "bold red"
    writer.line(writer.text(found.lines.what, style))
    for label, text in found.lines.below():
        writer.line(writer.text(f"{label:{LABEL}}", "bold"), text, hang=LABEL)
    if bound_by is not None:
        writer.line("")
        writer.line(found.verdict)


def why(report: Report, writer: Writer, shown: int | None) -> None:
    """Print the first lines, the largest places that they rest on, and what would tip the verdict."""
    found = summary(report)
    headline(report, found, writer)
    places(report, writer, shown or why_verdict.SHOWN)
    if tipping := why_verdict.tipping(report):
        writer.line("")
        writer.line(writer.text("Else  ", "bold"), f"it would be {tipping}", hang=LABEL)
    if found.limits:
        writer.line("")
        writer.line(writer.text("Caveats  ", "bold"), found.limits, hang=9)


def places(report: Report, writer: Writer, shown: int) -> None:
    """The largest places that the first lines rest on, one line each."""
    found = why_verdict.largest(report, shown)
    if not found:
        return
    writer.line("")
    stepped = ["<step"] if any(place.step for place in found) else []
    rows = [(place.rank, *([place.step] if stepped else []), place.at, place.lasts, place.said) for place in found]
    writer.rows(("<rank", *stepped, ">at", ">lasts", "<what the trace shows there"), rows)


def rank_bars(found: Summary, writer: Writer) -> None:
    """A bar per rank."""
    rows = []
    for line in found.ranks:
        late = ["late"] if line.late and found.folded else []
        label = f"{line.label} {', '.join([*filter(None, [line.note]), *late])}".rstrip()
        rows.append((label, line.entry, line.step_ns))
    if rows:
        rank_table(rows, found.step_title, writer)
    if found.folded:
        writer.line(writer.text(f"{units.plural(found.folded, 'other rank')} between these: --full", "dim"))


def rank_table(rows: Iterable[tuple[str, RankEntry, int | None]], step_title: str, writer: Writer) -> None:
    """A bar and its shares per rank (label, entry, ns of the step), under what the colours mean."""
    writer.line("")
    legend = Text()
    for part in PARTS:
        fill = part.plain_fill if writer.plain else part.fill
        legend.append(fill * 2, Style(color=part.colour)).append(f" {part.label}   ")
    legend.rstrip()
    writer.line(legend)
    table = writer.table("<rank", "~", *(f">{part.short}" for part in PARTS), f">{step_title}")
    for label, entry, step_ns in rows:
        window, values = entry["window_ns"], [entry["breakdown_ns"][part.key] for part in PARTS]
        cells = [*(units.share(value / window if window else None) for value in values), units.duration(step_ns)]
        table.add_row(writer.text(label), Bar(values, writer.plain), *map(writer.text, cells))
    writer.show(table)


def _slowdown(report: Report, writer: Writer) -> None:
    """Of a job known by its operations alone: the ranks that slow it most, in place of bars."""
    if report["ranks"] or "slowdown" not in report:
        return
    worst = slowest_ranks(report["slowdown"])[:SHOWN]
    if len(report["slowdown"]["by_rank"]) > 1 and worst:
        each = ", ".join(f"rank {name} {units.share(share)}" for name, share in worst)
        writer.line("")
        writer.line(writer.text("What each rank's slowness alone costs of the step: ", "bold"), each, hang=2)


def _causes(report: Report, found: Summary, writer: Writer) -> None:
    if found.compute:
        writer.line("")
        writer.line(writer.text(f"{found.compute_title}: ", "bold"), found.compute, hang=2)
    for below in found.below_roof:
        writer.line("")
        writer.line(writer.text("Below its roof: ", "bold"), below, hang=2)
    if not found.causes:
        return
    writer.line("")
    unit = whole(report)
    title = "Non-compute, rank mean" if len(report["ranks"]) > 1 else "Non-compute time"
    table = writer.table(f"<{title}", "<part", f">per {unit}", ">share", "~")
    for line in found.causes:
        cells = (line.label, line.part, units.duration(line.cost_ns), units.share(line.share_frac))
        where = writer.cell(line.where) if line.is_name else writer.text(line.where)
        table.add_row(*(writer.text(cell) for cell in cells), where)
    writer.show(table)
    if found.more_causes:
        writer.line(writer.text(f"{units.plural(found.more_causes, 'smaller cause')}: --full", "dim"))


def _changes(report: Report, found: Summary, writer: Writer) -> None:
    if not found.changes:
        _beside_changes(found, writer)
        return
    writer.line("")
    if any(line.saves for line in found.changes):
        _savings(found, writer)
        return
    if all(line.predicted is None for line in found.changes):
        tried = writer.table(f"<{'Also' if found.first_row > 1 else 'What'} to try", ">gain")
        for line in found.changes:
            tried.add_row(writer.words(line.setting), writer.text(line.bound or "unknown"))
        writer.show(tried)
        if found.more_changes:
            writer.line(writer.text(f"{units.plural(found.more_changes, 'more change')}: --full", "dim"))
        return
    numbered = [">"] if found.together or found.order else []
    title = "Other changes" if found.first_row > 1 else "What to change"
    table = writer.table(*numbered, f"<{title}", f">new {whole(report)}", ">gain", ">90 % range")
    for i, line in enumerate(found.changes, found.first_row):
        table.add_row(
            *(writer.text(cell) for cell in ([str(i)] * len(numbered))),
            writer.words(line.setting),
            *map(writer.text, _gain(line)),
        )
    writer.show(table)
    if found.more_changes:
        writer.line(writer.text(f"{units.plural(found.more_changes, 'more change')}: --full", "dim"))
    if found.order:
        writer.line(writer.text(found.order, "dim"))
    if found.together:
        writer.line(writer.text("Together  ", "bold"), found.together, hang=10)


def _beside_changes(found: Summary, writer: Writer) -> None:
    """Where no other change has a row: the best combination, and how many there are."""
    if found.together or found.more_changes:
        writer.line("")
    if found.together:
        writer.line(writer.text("Together  ", "bold"), found.together, hang=10)
    if found.more_changes:
        writer.line(writer.text(f"{units.plural(found.more_changes, 'more change')}: --full", "dim"))


def _savings(found: Summary, writer: Writer) -> None:
    """What shrinks the peak of memory, and by how much at most."""
    whose, more = found.changes[0].whose, "else " if found.first_row > 1 else ""
    title = f"<What {more}would shrink the peak" + (f" of {whose}" if whose else "")
    table = writer.table(title, ">saves at most")
    for line in found.changes:
        table.add_row(writer.words(line.setting), writer.text(line.saves or "time"))
    writer.show(table)
    if found.more_changes:
        writer.line(writer.text(f"{units.plural(found.more_changes, 'more change')}: --full", "dim"))


def _gain(line: ChangeLine) -> tuple[str, str, str]:
    predicted = line.predicted
    if predicted is None:
        return units.NONE, line.bound or "unknown", units.NONE
    if not predicted["step_ns_before"]:
        return units.NONE, "memory", units.NONE
    return (
        units.duration(predicted["step_ns_after"]),
        gain_cell(predicted, line.certain),
        units.span(predicted["low_ns"], predicted["high_ns"], "–"),
    )


def _records(report: Report, writer: Writer) -> None:
    """What is known of a run without a timeline, down to a screenful."""
    from gpuscope.report.terminal import hang_text, job_log_text, nccl_text

    limited = writer.limited(RECORDS_LINES)
    if "hang" in report:
        hang_text.section(report["hang"], limited)
    hang_text.roles_text_section(report, limited)
    job_log_text.section(report, limited)
    nccl_text.compile_text_section(report, limited)
    nccl_text.sections(report, limited)
    nccl_text.section(report, limited, brief=True)
    limited.end("more lines: --full")
