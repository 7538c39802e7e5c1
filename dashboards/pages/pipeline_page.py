"""Stages × time with their bubbles, as it was and as it could be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from dash.development.base_component import Component

from gpuscope.catalogue.prediction_sentences import with_basis
from gpuscope.dashboards import ui
from gpuscope.dashboards.figures import of_results as figures
from gpuscope.dashboards.ui import Page, Shown, around
from gpuscope.report.terminal.profile_text import BUBBLE
from gpuscope.schema.provenance import Pipeline, PipelineComputation
from gpuscope.words import units


def layout(shown: Shown) -> Component:
    """The page."""
    pipeline: Pipeline | None = cast("dict[str, Any]", shown.run.report).get("pipeline")
    if pipeline is None:
        return ui.empty(
            "No pipeline",
            "No pipeline stages were found. If the run has some, record all ranks of a pipeline, with ranges that "
            "name stage and micro-batch (gpuscope train and gpuscope.span write them).",
        )
    return ui.page(_facts(pipeline), *_drawn(pipeline, shown), *_bubbles(pipeline, shown))


def _facts(pipeline: Pipeline) -> Component:
    stages = sorted({one["stage"] for one in pipeline["stages"]})
    pairs: list[tuple[str, Any]] = [
        ("stages", ", ".join(f"{stage}: rank {units.ranks(_ranks(pipeline, stage))}" for stage in stages)),
        ("found from", pipeline["basis"]),
    ]
    if "schedule" in pipeline:
        schedule = pipeline["schedule"]
        pairs += [
            ("schedule", f"{schedule['name']}: {schedule['why']}"),
            ("micro-batches", str(schedule["micro_batches"])),
            ("ideal bubble", f"{units.share(schedule['ideal_bubble_frac'])} ({schedule['ideal_basis']})"),
        ]
    if "bubble_frac" in pipeline:
        pairs.append(("bubble", f"{units.share(pipeline['bubble_frac'])} of the pipeline's part of the step, {BUBBLE}"))
    if "more_micro_batches" in pipeline:
        gain = pipeline["more_micro_batches"]
        pairs.append((f"with {gain['micro_batches']} micro-batches", with_basis(gain)))
    if "even_split" in pipeline:
        pairs.append(("with stages of equal cost", with_basis(pipeline["even_split"])))
    if pipeline.get("steps_left_out"):
        pairs.append(("left out", f"{pipeline['steps_left_out']} steps without all computations"))
    return ui.card("The pipeline", ui.facts(pairs))


def _ranks(pipeline: Pipeline, stage: int) -> list[int]:
    return [one["rank"] for one in pipeline["stages"] if one["stage"] == stage]


def _drawn(pipeline: Pipeline, shown: Shown) -> Iterator[Component]:
    if "timeline" not in pipeline or not pipeline["timeline"]["computations"]:
        yield ui.empty(
            "No stages × time to draw", units.clean(pipeline["incomplete"]) or "No step holds all computations."
        )
        return
    timeline = pipeline["timeline"]
    drawings = [("As it was", "pipeline", timeline["computations"])]
    if timeline.get("ideal"):
        drawings.append(("With stages of equal cost", "pipeline-ideal", timeline["ideal"]))
    spans = [_span(computations) for _, _, computations in drawings]
    stages = len({one["stage"] for one in timeline["computations"]})
    for title, name, computations in drawings:
        recorded = computations is timeline["computations"] and shown.run.events is not None
        places = [_place(one, shown) for one in computations] if recorded else []
        yield ui.card(
            title,
            ui.figure(
                figures.schedule(computations, max(spans), shown.dark, places),
                name,
                120 + 44 * stages,
                id=ui.lead(name),
            ),
            note=f"Step {timeline['step']}, the one whose bubble is the median; numbers are micro-batches; "
            "what is empty is bubble."
            + (" Click a computation to see it in the timeline." if recorded else "")
            + (
                " Each forward and each backward takes the mean of its kind."
                if computations is timeline.get("ideal")
                else ""
            ),
            corner=ui.csv_link(shown.run.key, name.replace("-", "_")),
        )


def _place(one: PipelineComputation, shown: Shown) -> str:
    """The address of the timeline at a computation."""
    start, end = one["start_ns"], one["start_ns"] + one["dur_ns"]
    return shown.view.link(
        "/timeline", window=around(start, end), ranks=None, extra={**shown.view.extra, "mark": f"{start}:{end}"}
    )


def _span(computations: Any) -> int:
    first = min(one["start_ns"] for one in computations)
    return int(max(one["start_ns"] + one["dur_ns"] for one in computations) - first)


def _bubbles(pipeline: Pipeline, shown: Shown) -> Iterator[Component]:
    rows = [
        row for row in pipeline.get("rows", []) if shown.view.has_rank(row["rank"]) and shown.view.has_step(row["step"])
    ]
    if not rows:
        return
    stages = len({row["stage"] for row in rows})
    yield ui.card(
        "Bubble by stage",
        ui.figure(figures.bubbles(rows, shown.dark), "bubbles", 130 + 30 * stages),
        note="Mean over steps and pipelines; the four parts sum to the bubble.",
        corner=ui.csv_link(shown.run.key, "pipeline_bubbles"),
    )


PAGE = Page("/pipeline", "Pipeline", 5, layout, has=lambda run: run.report.get("pipeline") is not None)
