"""The HTML report: one file that opens from disk, asks the network for nothing and shows names as text."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gpuscope.catalogue import hang_sentences, prediction_sentences, straggler_sentences
from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.catalogue.hang_sentences import DOING, SOURCES
from gpuscope.catalogue.suggestion import cause_words, finding_words
from gpuscope.report.html import drawing, evidence_drawing
from gpuscope.report.html.drawing import flame
from gpuscope.report.html.evidence_drawing import Moment, Moments
from gpuscope.report.terminal import diff_text, hang_text, nccl_text, profile_text, screen
from gpuscope.report.view import first_figures, headline, job_log_sentences, report_rows
from gpuscope.report.view.first_figures import first_figures as first_figures_first_figures
from gpuscope.report.view.first_figures import fix_card
from gpuscope.report.view.headline import changed, culprits, kinds, seen
from gpuscope.report.view.summary import Summary, summary
from gpuscope.schema.diff_document import Diff
from gpuscope.schema.document import Evidence, KernelEntry, RankEntry, Report, StepEntry
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.schema.plan_document import TuneDocument
from gpuscope.trace.frameworks import own_line
from gpuscope.when_used import dataclass
from gpuscope.words import units, vocabulary
from gpuscope.words.units import short_kernel, short_kernels
from gpuscope.words.vocabulary import CLASSES, PARTS

# Memory over time as lines of a picture: coordinates only, drawn by the HTML template.

WIDTH, HEIGHT = 960, 150
LEFT, TOP, BOTTOM = 90, 12, 130
LINES_SHOWN = 16
MEMORY_DRAWING_NAME = 120


@dataclass(frozen=True)
class Lines:
    """One device: points of what was in use and of what was reserved, and the label of the highest."""

    label: str
    allocated: str
    reserved: str
    most: str


def lines(report: Report) -> list[Lines]:
    """One per entry of the section `memory`, across in order of events."""
    return [_lines(entry) for entry in report.get("memory", [])[:LINES_SHOWN] if len(entry["timeline"]) > 1]


def _lines(entry: MemoryEntry) -> Lines:
    samples = entry["timeline"]
    most = max(max(sample["allocated_bytes"], sample["reserved_bytes"] or 0) for sample in samples) or 1
    allocated = [sample["allocated_bytes"] for sample in samples]
    reserved = [sample["reserved_bytes"] for sample in samples]
    return Lines(
        units.crop(report_rows.label(entry), MEMORY_DRAWING_NAME),
        _points(allocated, most),
        _points(reserved, most),
        units.memory(most),
    )


def _points(values: list[int] | list[int | None], most: int) -> str:
    step = (WIDTH - LEFT) / max(len(values) - 1, 1)
    return " ".join(
        f"{LEFT + at * step:.1f},{BOTTOM - (BOTTOM - TOP) * value / most:.1f}"
        for at, value in enumerate(values)
        if value is not None
    )


EVIDENCE_SHOWN = 12
"""Per finding; all of it is in the JSON."""
ROWS_SHOWN, ROWS_KEPT = 16, 64
"""Of a long table so many rows are open, and so many are in the file at all."""
STEPS_KEPT, LEAST_STEPS, RANKS_KEPT = 1200, 8, 64
"""Rows of the tables of steps: so many over all ranks, at least so many of each, of so many ranks."""
MOMENTS_SHOWN = 3
"""Places of a finding that have a small timeline."""
CAUSES_SHOWN = 8
"""Of a comparison in a notebook."""
NAME = 160
KERNEL = 90
"""Cells of a kernel's short name."""


def render(report: Report) -> str:
    """`report` as one HTML document; write it as UTF-8."""
    environment = page_environment()
    css, script = (environment.get_template(name).render().strip("\n") for name in ("report.css.j2", "report.js.j2"))
    evidence: list[Evidence] = []
    findings = []
    for finding in report_rows.findings(report):
        shown = finding["evidence"][:EVIDENCE_SHOWN]
        findings.append((finding, list(enumerate(shown, len(evidence))), len(finding["evidence"]) - len(shown)))
        evidence += shown
    strips = drawing.strips(report, evidence)
    return environment.get_template("report.html.j2").render(
        report=report,
        css=css,
        script=script,
        policy=policy(css, script),
        first=(first := summary(report)),
        places=headline.largest(report),
        tipping=headline.tipping(report),
        suggestions=report["suggestions"],
        figures=first_figures_first_figures(report, first.lines),
        fix=fix_card(first.lines),
        change=changed(first.lines.told),
        kinds=(drawn := kinds(report["ranks"])),
        kind_fills=[(f"of-{kind.code}", kind.label) for kind in drawn if kind.code in seen(report["ranks"])],
        culprits=culprits(report),
        part_fills=[(part.key, part.label) for part in PARTS],
        first_ranks=[
            {**_bar(one.label, one.entry, one.step_ns), "note": one.note, "late": one.late} for one in first.ranks
        ],
        linked={rank for rank, _, _ in _steps_by_rank(report)},
        moments=Moments(report, evidence),
        steps_by_number=_steps_by_number(report),
        steps_by_rank=_steps_by_rank(report),
        contents=_contents(report, first),
        context_line=headline.context_line(report),
        abstained=report["verdict"]["abstained"] or report["verdict"]["bound_by"] is None,
        ranks=_ranks(report),
        causes=report_rows.causes(report),
        everyone=sorted({entry["rank"] for entry in report["ranks"]}),
        findings=findings,
        strips=strips,
        marked={mark.number for strip in strips for mark in strip.marks},
        starts=report_rows.starts(report),
        collectives=sorted(report["collectives"], key=lambda row: -row["dur_ns"]),
        stragglers=sorted(report["stragglers"], key=lambda row: -row["caused_wait_ns"]),
        heatmap=profile_text.heatmap(report, ROWS_SHOWN, ROWS_SHOWN),
        kernels=_kernels(report),
        flame=flame(report),
        doubts=report_rows.doubts(report),
        plan_sentence=prediction_sentences.plan,
        nothing_gains_sentence=prediction_sentences.nothing_gains,
    )


def moment_svg(moment: Moment, dark: bool) -> str:
    """A small timeline as a picture by itself, on a light or dark page."""
    environment = page_environment()
    style = f":root {{ {vocabulary.page_css(dark)} }}\n" + environment.get_template("moment.css.j2").render()
    drawn = str(environment.get_template("macros.html.j2").module.moment(moment))  # type: ignore[attr-defined]
    return drawn.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).replace(
        ">", f"><style>{style}</style>", 1
    )


def render_cell(report: Report) -> str:
    """The first screen of `report` as a fragment for a notebook's cell: no script, no style sheet, names as text."""
    return (
        page_environment()
        .get_template("notebook.html.j2")
        .render(report=report, first=summary(report), context_line=headline.context_line(report))
    )


def render_comparison_cell(diff: Diff) -> str:
    """A comparison as a fragment for a notebook's cell: the verdict, and what moved of the parts and the causes."""
    labels: dict[str, str] = {part.key: part.label for part in PARTS}
    parts = [(labels.get(row["part"], row["part"]), row["before_ns"], row["after_ns"]) for row in diff["breakdown"]]
    causes = [
        (cause_words(row["cause"]), row["before_ns"], row["after_ns"]) for row in diff["causes"] if row["change_ns"]
    ]
    moved = [(title, rows[:CAUSES_SHOWN]) for title, rows in (("part", parts), ("cause", causes)) if rows]
    return (
        page_environment()
        .get_template("notebook_diff.html.j2")
        .render(
            diff=diff,
            sentence=diff_text.verdict_line(diff),
            before=diff_text.side_line(diff["before"]),
            after=diff_text.side_line(diff["after"]),
            moved=moved,
            platform=_platform(diff),
        )
    )


def _platform(diff: Diff) -> dict[str, Any] | None:
    """The comparison by operator, where the platform changed."""
    found = diff_text.platform_of(diff)
    if found is None:
        return None
    pairs = [diff_text.pair_cells(pair) for pair in found["pairs"][: diff_text.PLATFORM_TEXT_SHOWN]]
    tables = [diff_text.explained_table(diff, found), (diff_text.PAIRS, pairs)] if found["comparable"] else []
    return {"lines": [diff_text.heading_line(found), diff_text.basis_line(found)], "tables": tables}


def _kernels(report: Report) -> list[tuple[KernelEntry, str]]:
    """The longest first, each with its short name; names that are not shown need none."""
    rows = sorted(report["kernels"], key=lambda row: -row["dur_ns"])
    names = short_kernels([row["name"] for row in rows[:ROWS_KEPT]], KERNEL)
    return [*zip(rows, names, strict=False), *((row, row["name"]) for row in rows[ROWS_KEPT:])]


def _ranks(report: Report) -> list[dict[str, Any]]:
    """Rows of the table of all ranks."""
    entries = sorted(report["ranks"], key=lambda entry: (entry["rank"], entry["device"] or 0))
    labels = report_rows.rank_labels(entries)
    return [
        _bar(label, entry, report_rows.rank_step_ns(report, entry))
        for entry, label in zip(entries, labels, strict=True)
    ]


def _bar(label: str, entry: RankEntry, step_ns: int | None) -> dict[str, Any]:
    return {
        "label": label,
        "entry": entry,
        "step_ns": step_ns,
        "bar": drawing.segments(entry),
        "words": drawing.shares_of(entry["breakdown_ns"]),
    }


def _steps_by_number(report: Report) -> list[dict[str, Any]]:
    """Each step of the run on the rank where it took longest."""
    found: dict[int, list[StepEntry]] = {}
    for step in report["steps"]:
        if step["step"] is not None:
            found.setdefault(step["step"], []).append(step)
    return [
        {
            "slowest": max(found[number], key=lambda step: step["dur_ns"]),
            "shortest_ns": min(step["dur_ns"] for step in found[number]),
        }
        for number in sorted(found)[:STEPS_KEPT]
    ]


def _steps_by_rank(report: Report) -> list[tuple[int, list[StepEntry], int]]:
    """(rank, its first steps, how many more it has)."""
    found: dict[int, list[StepEntry]] = {}
    for step in report["steps"]:
        found.setdefault(step["rank"], []).append(step)
    kept = max(STEPS_KEPT // max(len(found), 1), LEAST_STEPS)
    return [(rank, found[rank][:kept], max(len(found[rank]) - kept, 0)) for rank in sorted(found)[:RANKS_KEPT]]


def _contents(report: Report, first: Summary) -> list[tuple[str, str]]:
    """(anchor, words) of the sections below the first screen that this report has."""
    present = {
        "suggestions": bool(report["suggestions"] or report["advice"]["unpredicted"] or report["advice"]["why"]),
        "findings": bool(report["findings"]),
        "causes": bool(first.causes),
        "all-ranks": first.folded > 0,
        "steps": bool(report["ranks"]),
        "by-step": bool(report["steps"]),
        "collectives": bool(report["collectives"]),
        "compilation": "compilation" in report,
        "experts": "experts" in report,
        "serving": "serving" in report,
        "roles": "roles" in report,
        "job-log": "job_log" in report,
        "links": bool(report.get("link_counters") or report.get("device_counters")),
        "kernels": bool(report["kernels"]),
        "places": bool(report.get("call_tree")),
        "memory": bool(report.get("memory")),
        "doubts": bool(report_rows.doubts(report)),
    }
    words = {
        "suggestions": "every change",
        "findings": "findings and evidence",
        "causes": "causes",
        "all-ranks": "all ranks",
        "steps": "steps over time",
        "by-step": "step by step, rank by rank",
        "collectives": "collectives",
        "compilation": "torch.compile",
        "experts": "experts",
        "serving": "serving by phase",
        "roles": "roles",
        "job-log": "the job's log",
        "links": "links and GPUs over time",
        "kernels": "kernels",
        "memory": "memory",
        "places": "where in the program",
        "doubts": "what is uncertain",
    }
    return [(key, words[key]) for key, there in present.items() if there]


def policy(css: str, script: str) -> str:
    """A content security policy under which only this very style and script count, and nothing is fetched."""
    return (
        f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _unbroken(text: str) -> Markup:
    """A sentence whose numbers keep their units on their line."""
    return Markup(units.unbroken(str(escape(units.clean(text)))))


def _prose(text: str) -> Markup:
    """A sentence, what stands between backticks as code."""
    # A plain `str` first: a substitution in `Markup` escapes what it puts in.
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(_unbroken(text))))


def _shown(value: Any) -> Any:
    # Only plain strings: what is markup already has been through here.
    return units.clean(value) if type(value) is str else value


@cache
def page_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gpuscope.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals.update(
        units=units,
        hang_causes=hang_sentences.same_causes,
        not_hung=hang_sentences.not_hung,
        rank_list=rank_list,
        hang_doing=DOING,
        hang_sources=SOURCES,
        prose=_prose,
        drawing=drawing,
        memory_lines=lines,
        link_courses=evidence_drawing.courses,
        ideal_lines=first_figures.ideal_lines,
        memory_words=nccl_text,
        memory_sentences=report_rows,
        own_line=own_line,
        parts=PARTS,
        classes=CLASSES,
        cause_words=cause_words,
        cell_words=profile_text.cell_words,
        place_ns=report_rows.place_ns,
        title=finding_words,
        caused_wait=straggler_sentences.CAUSED_WAIT,
        finding_cost_ns=report_rows.finding_cost_ns,
        slowdown_total=straggler_sentences.slowdown_total,
        slowdown_meaning=straggler_sentences.SLOWDOWN,
        compile_sentences=nccl_text.sentences,
        compile_lines=nccl_text.lines,
        expert_sentences=profile_text.sentences,
        serving_sentences=hang_text.serving_text_sentences,
        serving_head=hang_text.HEAD,
        serving_row=hang_text.row,
        role_label=hang_text.label,
        role_sentences=hang_text.sentences,
        log_table=job_log_sentences.table,
        log_sentences=job_log_sentences.sentences,
        pipeline_sentences=profile_text.pipeline_text_sentences,
        pipeline_stages=profile_text.by_stage,
        pipeline_parts=profile_text.PARTS,
        step_word=headline.whole,
        rows_shown=ROWS_SHOWN,
        rows_kept=ROWS_KEPT,
        ranks_kept=RANKS_KEPT,
        moments_shown=MOMENTS_SHOWN,
        setting_words=prediction_sentences.setting_words,
        gain_cell=prediction_sentences.gain_cell,
        besides=prediction_sentences.besides,
        doubt=prediction_sentences.doubt,
        bound_share=prediction_sentences.bound_share,
        bound_change=prediction_sentences.bound_change,
        name_width=NAME,
        is_copied=prediction_sentences.is_copied,
        page_css=vocabulary.page_css,
        zip=zip,
        short_kernel=short_kernel,
    )
    return environment


# What `gpuscope tune` found as one HTML page: no script, nothing fetched, names as text.


def tune_page_render(found: TuneDocument) -> str:
    """The page; write it as UTF-8."""
    environment = page_environment()
    css = environment.get_template("report.css.j2").render().strip("\n")
    return environment.get_template("tune.html.j2").render(
        found=found,
        css=css,
        policy=policy(css, ""),
        headline=screen.headline(found),
        facts=screen.facts(found),
        mark=screen.mark,
    )
