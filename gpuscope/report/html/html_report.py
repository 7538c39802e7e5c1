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
from gpuscope.catalogue.cause_table import cause_words, finding_words
from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.catalogue.hang_reasons import DOING, SOURCES
from gpuscope.report.html import counter_drawing, drawing, memory_drawing
from gpuscope.report.html.evidence_drawing import Moment, Moments
from gpuscope.report.html.flame_drawing import flame
from gpuscope.report.terminal import diff_text, platform_text
from gpuscope.report.terminal.sections import (
    compile_text,
    experts_text,
    memory_text,
    pipeline_text,
    roles_text,
    serving_text,
    stragglers_text,
)
from gpuscope.report.view import arrangement, headline, ideal_sentences, memory_sentences, why_verdict
from gpuscope.report.view.first_figures import first_figures, fix_card
from gpuscope.report.view.step_bars import changed, culprits, kinds, seen
from gpuscope.report.view.summary import Summary, summary
from gpuscope.schema.diff_document import Diff
from gpuscope.schema.document import Evidence, KernelEntry, RankEntry, Report, StepEntry
from gpuscope.trace.naming.stack_frames import own_line
from gpuscope.words import palette, units
from gpuscope.words.short_kernels import short_kernel, short_kernels
from gpuscope.words.vocabulary import CLASSES, PARTS

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
    for finding in arrangement.findings(report):
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
        places=why_verdict.largest(report),
        tipping=why_verdict.tipping(report),
        suggestions=report["suggestions"],
        figures=first_figures(report, first.lines),
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
        causes=arrangement.causes(report),
        everyone=sorted({entry["rank"] for entry in report["ranks"]}),
        findings=findings,
        strips=strips,
        marked={mark.number for strip in strips for mark in strip.marks},
        starts=arrangement.starts(report),
        collectives=sorted(report["collectives"], key=lambda row: -row["dur_ns"]),
        stragglers=sorted(report["stragglers"], key=lambda row: -row["caused_wait_ns"]),
        heatmap=stragglers_text.heatmap(report, ROWS_SHOWN, ROWS_SHOWN),
        kernels=_kernels(report),
        flame=flame(report),
        doubts=arrangement.doubts(report),
        plan_sentence=prediction_sentences.plan,
        nothing_gains_sentence=prediction_sentences.nothing_gains,
    )


def moment_svg(moment: Moment, dark: bool) -> str:
    """A small timeline as a picture by itself, on a light or dark page."""
    environment = page_environment()
    style = f":root {{ {palette.page_css(dark)} }}\n" + environment.get_template("moment.css.j2").render()
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
    found = platform_text.platform_of(diff)
    if found is None:
        return None
    pairs = [platform_text.pair_cells(pair) for pair in found["pairs"][: platform_text.SHOWN]]
    tables = [platform_text.explained_table(diff, found), (platform_text.PAIRS, pairs)] if found["comparable"] else []
    return {"lines": [platform_text.heading_line(found), platform_text.basis_line(found)], "tables": tables}


def _kernels(report: Report) -> list[tuple[KernelEntry, str]]:
    """The longest first, each with its short name; names that are not shown need none."""
    rows = sorted(report["kernels"], key=lambda row: -row["dur_ns"])
    names = short_kernels([row["name"] for row in rows[:ROWS_KEPT]], KERNEL)
    return [*zip(rows, names, strict=False), *((row, row["name"]) for row in rows[ROWS_KEPT:])]


def _ranks(report: Report) -> list[dict[str, Any]]:
    """Rows of the table of all ranks."""
    entries = sorted(report["ranks"], key=lambda entry: (entry["rank"], entry["device"] or 0))
    labels = arrangement.rank_labels(entries)
    return [
        _bar(label, entry, arrangement.rank_step_ns(report, entry))
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
        "links": bool(report.get("link_counters") or report.get("device_counters")),
        "kernels": bool(report["kernels"]),
        "places": bool(report.get("call_tree")),
        "memory": bool(report.get("memory")),
        "doubts": bool(arrangement.doubts(report)),
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
        memory_lines=memory_drawing.lines,
        link_courses=counter_drawing.courses,
        ideal_lines=ideal_sentences.ideal_lines,
        memory_words=memory_text,
        memory_sentences=memory_sentences,
        own_line=own_line,
        parts=PARTS,
        classes=CLASSES,
        cause_words=cause_words,
        cell_words=stragglers_text.cell_words,
        place_ns=arrangement.place_ns,
        title=finding_words,
        caused_wait=straggler_sentences.CAUSED_WAIT,
        finding_cost_ns=arrangement.finding_cost_ns,
        slowdown_total=straggler_sentences.slowdown_total,
        slowdown_meaning=straggler_sentences.SLOWDOWN,
        compile_sentences=compile_text.sentences,
        compile_lines=compile_text.lines,
        expert_sentences=experts_text.sentences,
        serving_sentences=serving_text.sentences,
        serving_head=serving_text.HEAD,
        serving_row=serving_text.row,
        role_label=roles_text.label,
        role_sentences=roles_text.sentences,
        pipeline_sentences=pipeline_text.sentences,
        pipeline_stages=pipeline_text.by_stage,
        pipeline_parts=pipeline_text.PARTS,
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
        page_css=palette.page_css,
        zip=zip,
        short_kernel=short_kernel,
    )
    return environment
