"""Page 5: stages × time with their bubbles, as it was and as it could be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from dash import html
from dash.development.base_component import Component

from gpuscope.dashboards import parts
from gpuscope.dashboards.figures import pipeline_figure as figures
from gpuscope.dashboards.page import Page, Shown
from gpuscope.report.schema.pipeline_section import Pipeline
from gpuscope.report.terminal.pipeline_text import BUBBLE
from gpuscope.report.view import units
from gpuscope.report.view.prediction_sentences import with_basis


def layout(shown: Shown) -> Component:
    """The page."""
    told: Pipeline | None = cast("dict[str, Any]", shown.run.report).get("pipeline")
    if told is None:
        return parts.empty(
            "No pipeline",
            "This run shows no pipeline stages. Where it has them, record all ranks of a pipeline, with ranges that "
            "name stage and micro-batch (gpuscope train and gpuscope.span write them).",
        )
    return html.Div([_facts(told), *_drawn(told, shown), *_bubbles(told, shown)])


def _facts(told: Pipeline) -> Component:
    stages = sorted({one["stage"] for one in told["stages"]})
    pairs: list[tuple[str, Any]] = [
        ("stages", ", ".join(f"{stage}: rank {units.ranks(_ranks(told, stage))}" for stage in stages)),
        ("told by", told["basis"]),
    ]
    if "schedule" in told:
        schedule = told["schedule"]
        pairs += [
            ("schedule", f"{schedule['name']}: {schedule['why']}"),
            ("micro-batches", str(schedule["micro_batches"])),
            ("ideal bubble", f"{units.share(schedule['ideal_bubble_frac'])} ({schedule['ideal_basis']})"),
        ]
    if "bubble_frac" in told:
        pairs.append(("bubble", f"{units.share(told['bubble_frac'])} of the pipeline's part of the step, {BUBBLE}"))
    if "more_micro_batches" in told:
        gain = told["more_micro_batches"]
        pairs.append((f"with {gain['micro_batches']} micro-batches", with_basis(gain)))
    if "even_split" in told:
        pairs.append(("with stages of equal cost", with_basis(told["even_split"])))
    if told.get("steps_left_out"):
        pairs.append(("left out", f"{told['steps_left_out']} steps without all computations"))
    return parts.card("The pipeline", parts.facts(pairs))


def _ranks(told: Pipeline, stage: int) -> list[int]:
    return [one["rank"] for one in told["stages"] if one["stage"] == stage]


def _drawn(told: Pipeline, shown: Shown) -> Iterator[Component]:
    if "timeline" not in told or not told["timeline"]["computations"]:
        yield parts.empty("No stages × time to draw", units.clean(told["untold"]) or "No step holds all computations.")
        return
    timeline = told["timeline"]
    drawings = [("As it was", "pipeline", timeline["computations"])]
    if timeline.get("ideal"):
        drawings.append(("As it would be with stages of equal cost, replayed", "pipeline-ideal", timeline["ideal"]))
    spans = [_span(computations) for _, _, computations in drawings]
    stages = len({one["stage"] for one in timeline["computations"]})
    for title, name, computations in drawings:
        yield parts.card(
            title,
            parts.figure(figures.schedule(computations, max(spans), shown.dark), name, 120 + 44 * stages),
            note=f"Step {timeline['step']}, the one whose bubble is the median; numbers are micro-batches; "
            "what is empty is bubble.",
        )


def _span(computations: Any) -> int:
    first = min(one["start_ns"] for one in computations)
    return int(max(one["start_ns"] + one["dur_ns"] for one in computations) - first)


def _bubbles(told: Pipeline, shown: Shown) -> Iterator[Component]:
    rows = [
        row for row in told.get("rows", [])
        if shown.view.has_rank(row["rank"]) and shown.view.has_step(row["step"])
    ]  # fmt: skip
    if not rows:
        return
    stages = len({row["stage"] for row in rows})
    yield parts.card(
        "Bubble by stage",
        parts.figure(figures.bubbles(rows, shown.dark), "bubbles", 130 + 30 * stages),
        note="Mean over steps and pipelines; the four parts sum to the bubble.",
    )


PAGE = Page("/pipeline", "Pipeline", 5, layout)
