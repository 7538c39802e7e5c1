"""Serving: an inference server's steps by phase and batch, and what a request waits for its tokens."""

from __future__ import annotations

from collections.abc import Iterator

from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.figures import steps_figure
from gpuscope.dashboards.ui import Page, Shown, step_place
from gpuscope.report.terminal.hang_text import HEAD, SERVERS, row, serving_text_sentences
from gpuscope.report.view.first_figures import Figure
from gpuscope.schema.call_tree_section import ServingInterval, ServingSection
from gpuscope.words import units


def layout(shown: Shown) -> Component:
    """The page."""
    if "serving" not in shown.run.report:
        return ui.empty(
            "No inference server",
            "Steps of vLLM, SGLang or TensorRT-LLM show here where their profiler recorded them (docs/serving.md).",
        )
    serving = shown.run.report["serving"]
    return ui.page(
        ui.tiles(list(_waits(serving))),
        ui.beside(_steps(shown), _batches(serving, shown)),
        _phases(serving, shown),
        ui.card("What bounds them", ui.sentences(serving_text_sentences(serving, waits=False))),
    )


def _waits(serving: ServingSection) -> Iterator[Figure]:
    name = SERVERS.get(serving["server"] or "", "server")
    steps = sum(one["steps"] for one in serving["phases"])
    for label, found in (
        ("Time per token", serving["token_interval"]),
        ("First token, at least", serving["first_token"]),
    ):
        if found is not None:
            yield Figure(label, units.duration(found["median_ns"]), _spread(found))
    if serving["decode_alone_ns"] is not None:
        yield Figure("Per token, decode alone", units.duration(serving["decode_alone_ns"]), "no prompts in between")
    yield Figure("Steps", units.count(steps), f"of {name}, all ranks")


def _spread(found: ServingInterval) -> str:
    return f"90th percentile {units.duration(found['p90_ns'])}, longest {units.duration(found['max_ns'])}"


def _steps(shown: Shown) -> Component:
    numbered = [
        one for one in shown.run.report["steps"] if one["step"] is not None and shown.view.has_rank(one["rank"])
    ]
    rank = min((one["rank"] for one in numbered), default=None)
    own = [one for one in numbered if one["rank"] == rank and shown.view.has_step(one["step"])]
    if not own:
        return ui.empty("No steps to draw", "The filters exclude all steps of this run.")
    fig = steps_figure.steps(own, shown.dark, lambda step: step_place(shown, step))
    return ui.card(
        "Steps by phase",
        ui.figure(fig, "serving-steps", 280, id=ui.lead("serving-steps")),
        note=f"Of rank {rank}. {ui.LEADS}",
        corner=ui.csv_link(shown.run.key, "steps"),
    )


def _batches(serving: ServingSection, shown: Shown) -> Component | None:
    if not serving["batches"]:
        return None
    fig = steps_figure.batches(serving["batches"], shown.dark)
    return ui.card("Decode by batch", ui.figure(fig, "serving-batches", 280), note="The median step of each size.")


def _phases(serving: ServingSection, shown: Shown) -> Component:
    fields = [f"c{place}" for place in range(len(HEAD))]
    rows = [dict(zip(fields, row(one), strict=True)) for one in serving["phases"]]
    columns = [
        ui.column(field, name, **({"type": "rightAligned"} if place else {"minWidth": 140}), sortable=False)
        for place, (field, name) in enumerate(zip(fields, HEAD, strict=True))
    ]
    return ui.card("By phase", ui.grid(rows, columns, "phases", shown.dark), note="Means; the step a median.")


PAGE = Page("/serving", "Serving", 7, layout, has=lambda run: "serving" in run.report)
