"""Job log: how long steps took in the course of a job, and what the job lost beside them."""

from __future__ import annotations

from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.figures import job_log_figure
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.report.view.job_log_sentences import sentences, table


def layout(shown: Shown) -> Component:
    """The page."""
    if "job_log" not in shown.run.report:
        return ui.empty(
            "No log of a job",
            "The log of a training job or an inference server shows here where it is opened, alone or beside its "
            "traces: Megatron-LM, torchtitan, NeMo, DeepSpeed, Hugging Face, Lightning, MLPerf, vLLM, SGLang and"
            " others.",
        )
    log = shown.run.report["job_log"]
    shares = [
        f"{name}: {whole} ({share}){f', {times} times' if times and name != 'steps' else ''}"
        for name, whole, share, times in table(log)
    ]
    cards = [
        ui.card("Where the job's time goes", ui.sentences(shares)),
        ui.card("In short", ui.sentences(sentences(log))),
    ]
    if log.get("step_times"):
        fig = job_log_figure.course(log, shown.dark)
        cards.insert(0, ui.card("Step times", ui.figure(fig, "job-log", 320)))
    return ui.page(*cards)


PAGE = Page("/job-log", "Job log", 9, layout, has=lambda run: "job_log" in run.report)
