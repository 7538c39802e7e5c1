"""Measures and verdicts for Weights & Biases."""

from __future__ import annotations

from typing import Any

import wandb

from gpuscope.callbacks.callback import AlertChange, StepMeasures, WindowVerdict


class WandbCallback:
    """Logs into `run`, or into a new run of `project`; WANDB_MODE=offline keeps it on this machine.

    Charts use `gpuscope/step` as their axis, since W&B's own step only counts upward and a training script may use it.
    """

    def __init__(self, project: str = "gpuscope", *, run: Any = None) -> None:
        self._owned = run is None
        self._run = wandb.init(project=project) if run is None else run
        self._run.define_metric("gpuscope/step")
        self._run.define_metric("gpuscope/*", step_metric="gpuscope/step")

    def on_step(self, measures: StepMeasures) -> None:
        values = {f"gpuscope/{name}/rank{measures.rank}": value for name, value in measures.values.items()}
        self._run.log({"gpuscope/step": measures.step, **values})

    def on_verdict(self, verdict: WindowVerdict) -> None:
        values = {f"gpuscope/{name}": value for name, value in verdict.values.items()}
        self._run.log({"gpuscope/step": verdict.step, **values})
        self._run.summary["gpuscope/verdict"] = verdict.sentence
        self._run.summary["gpuscope/bound_by"] = verdict.bound_by
        self._run.summary["gpuscope/cause"] = verdict.cause

    def on_alert(self, alert: AlertChange) -> None:
        self._run.log({"gpuscope/step": alert.step, f"gpuscope/alert/{alert.code}": int(not alert.over)})
        if not alert.over:
            self._run.alert(title=f"gpuscope: {alert.code}", text=alert.message)

    def close(self) -> None:
        if self._owned:
            self._run.finish()
