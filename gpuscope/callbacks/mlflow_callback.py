"""Measures and verdicts for MLflow: metrics, and the verdict as tags of the run."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow.entities import Metric, RunTag
from mlflow.tracking import MlflowClient

from gpuscope.callbacks.callback import AlertChange, StepMeasures, WindowVerdict

_TAG = 5_000
"""Characters that MLflow keeps of a tag's value."""


class MlflowCallback:
    """Logs into the run `run_id`, or a new run of `experiment`, at `tracking_uri` (default: MLFLOW_TRACKING_URI)."""

    def __init__(
        self, experiment: str = "gpuscope", *, run_id: str | None = None, tracking_uri: str | None = None
    ) -> None:
        self._client = MlflowClient(tracking_uri)
        self._owned = run_id is None
        if run_id is None:
            known = self._client.get_experiment_by_name(experiment)
            number = known.experiment_id if known is not None else self._client.create_experiment(experiment)
            run_id = self._client.create_run(number).info.run_id
        self.run_id = run_id

    def on_step(self, measures: StepMeasures) -> None:
        values = {f"gpuscope/{name}/rank{measures.rank}": value for name, value in measures.values.items()}
        self._log(values, measures.step, measures.end_ns)

    def on_verdict(self, verdict: WindowVerdict) -> None:
        self._log({f"gpuscope/{name}": value for name, value in verdict.values.items()}, verdict.step, verdict.end_ns)
        said = {"verdict": verdict.sentence, "bound_by": verdict.bound_by or "", "cause": verdict.cause or ""}
        tags = [RunTag(f"gpuscope.{name}", text[:_TAG]) for name, text in said.items()]
        self._client.log_batch(self.run_id, tags=tags)

    def on_alert(self, alert: AlertChange) -> None:
        self._log({f"gpuscope/alert/{alert.code}": float(not alert.over)}, alert.step, alert.end_ns)
        tag = RunTag(f"gpuscope.alert.{alert.code}", "" if alert.over else alert.message[:_TAG])
        self._client.log_batch(self.run_id, tags=[tag])

    def close(self) -> None:
        if self._owned:
            self._client.set_terminated(self.run_id)

    def _log(self, values: Mapping[str, float], step: int, ns: int) -> None:
        metrics = [Metric(name, value, ns // 1_000_000, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)
