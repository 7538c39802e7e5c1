"""The HTML report: one file that opens from disk, asks the network for nothing and shows names as text."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpuscope.report.html import drawing, memory_drawing
from gpuscope.report.schema.document import Evidence, Report
from gpuscope.report.terminal.sections import memory_text, pipeline_text, stragglers_text
from gpuscope.report.view import arrangement, headline, prediction_sentences, straggler_sentences, units
from gpuscope.report.view.causes import cause_label
from gpuscope.report.view.vocabulary import CLASSES, PARTS

EVIDENCE_SHOWN = 12
"""Per finding; all of it is in the JSON."""
ROWS_SHOWN, ROWS_KEPT = 16, 64
"""Of a long table so many rows are open, and so many are in the file at all."""
NAME = 160


def render(report: Report) -> str:
    """`report` as one HTML document; write it as UTF-8."""
    environment = _environment()
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
        policy=_policy(css, script),
        verdict_line=headline.verdict_line(report),
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
        kernels=sorted(report["kernels"], key=lambda row: -row["dur_ns"]),
        doubts=arrangement.doubts(report),
        plan_sentence=prediction_sentences.plan,
        nothing_gains_sentence=prediction_sentences.nothing_gains,
    )


def _ranks(report: Report) -> list[dict[str, Any]]:
    """Rows of the table of ranks: those shown first where there are many, then the others."""
    shown, _ = arrangement.shown_ranks(report)
    others = [entry for entry in report["ranks"] if not any(entry is one for one in shown)]
    entries = [*shown, *others]
    return [
        {
            "label": label,
            "entry": entry,
            "bar": drawing.segments(entry),
            "words": drawing.shares_of(entry["breakdown_ns"]),
            "step_ns": arrangement.rank_step_ns(report, entry),
            "open": i < len(shown),
        }
        for i, (entry, label) in enumerate(zip(entries, arrangement.rank_labels(entries), strict=True))
    ]


def _policy(css: str, script: str) -> str:
    """A content security policy under which only this very style and script count, and nothing is fetched."""
    return (
        f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown(value: Any) -> Any:
    # Only plain strings: what is markup already has been through here.
    return units.clean(value) if type(value) is str else value


@cache
def _environment() -> Environment:
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
        drawing=drawing,
        memory_lines=memory_drawing.lines,
        memory_words=memory_text,
        parts=PARTS,
        classes=CLASSES,
        cause_label=cause_label,
        cell_words=stragglers_text.cell_words,
        place_ns=arrangement.place_ns,
        caused_wait=straggler_sentences.CAUSED_WAIT,
        slowdown_total=straggler_sentences.slowdown_total,
        slowdown_meaning=straggler_sentences.SLOWDOWN,
        pipeline_sentences=pipeline_text.sentences,
        pipeline_stages=pipeline_text.by_stage,
        pipeline_parts=pipeline_text.PARTS,
        step_word=headline.whole,
        rows_shown=ROWS_SHOWN,
        rows_kept=ROWS_KEPT,
        name_width=NAME,
    )
    return environment
