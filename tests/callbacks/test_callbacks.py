"""Measures and verdicts arrive in each library, read back with the library's own reader; nothing is sent anywhere."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpuscope.callbacks.callback import MEASURES, Callback, StepMeasures, WindowVerdict, step_measures
from gpuscope.callbacks.named_callbacks import BY_NAME, USES, callback_named
from gpuscope.errors import UsageError

SENTENCE = "Communication-bound, 29 % of the step: waiting for a late rank - confidence 0.94"
VERDICT = WindowVerdict(2, 7, 9_000_000_000, SENTENCE, "communication", "straggler", 0.286, 0.94, 119_600_000)
LINE = {
    "step": 7,
    "rank": 1,
    "end_ns": 8_000_000_000,
    "step_ns": 120_000_000,
    "tokens_per_s": 5000.0,
    "mfu": None,
    "data_wait_ns": 2_000_000,
    "loss": 2.5,
    "peak_host_bytes": 1 << 30,
    "gradient_norm": float("nan"),
    "first": True,
}
VALUES = {
    "step_seconds": 0.12,
    "tokens_per_second": 5000.0,
    "data_wait_seconds": 0.002,
    "loss": 2.5,
    "peak_host_bytes": float(1 << 30),
}


def told(callback: Callback) -> None:
    """Two steps of two ranks, and a verdict."""
    callback.on_step(step_measures({**LINE, "rank": 0, "step": 6}))
    callback.on_step(step_measures(LINE))
    callback.on_verdict(VERDICT)
    callback.close()


def test_a_line_in_base_units() -> None:
    assert step_measures(LINE) == StepMeasures(7, 1, 8_000_000_000, VALUES)
    with pytest.raises(KeyError):
        step_measures({"rank": 0})


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra callbacks is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told(callback_named(f"tensorboard={tmp_path}"))
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    values = {tag: read.Tensors(tag)[0] for tag in read.Tags()["tensors"]}
    step = values["gpuscope/step_seconds/rank1"]
    assert (step.step, step.wall_time, step.tensor_proto.float_val[0]) == (7, 8.0, pytest.approx(0.12))
    assert values["gpuscope/verdict_confidence_ratio"].tensor_proto.float_val[0] == pytest.approx(0.94)
    assert values["gpuscope/verdict"].tensor_proto.string_val[0].decode() == SENTENCE
    assert "gpuscope/mfu_ratio/rank1" not in values


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="the extra callbacks is not installed")
    from gpuscope.callbacks.wandb_callback import WandbCallback

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    with wandb.init(mode="offline", dir=tmp_path, project="p") as run:
        told(WandbCallback(run=run))
        summary = dict(run.summary)
        assert summary["gpuscope/verdict"] == SENTENCE
        assert summary["gpuscope/step_seconds/rank1"] == pytest.approx(0.12)
        assert summary["gpuscope/step_seconds/rank0"] == pytest.approx(0.12)
        assert summary["gpuscope/verdict_share_ratio"] == pytest.approx(0.286)
        assert summary["gpuscope/cause"] == "straggler"
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow_in_a_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra callbacks is not installed")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from gpuscope.callbacks.mlflow_callback import MlflowCallback

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions want a database, which mlflow-skinny has not
    callback = MlflowCallback("jobs", tracking_uri=tmp_path.as_uri())
    told(callback)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tmp_path.as_uri())
    run = client.get_run(callback.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["gpuscope.verdict"] == SENTENCE
    assert run.data.metrics["gpuscope/verdict_step_seconds"] == pytest.approx(0.1196)
    [point] = client.get_metric_history(callback.run_id, "gpuscope/step_seconds/rank1")
    assert (point.step, point.timestamp, point.value) == (7, 8_000, pytest.approx(0.12))
    again = MlflowCallback("jobs", run_id=callback.run_id, tracking_uri=tmp_path.as_uri())
    again.on_step(step_measures({**LINE, "step": 8}))
    assert len(client.get_metric_history(callback.run_id, "gpuscope/step_seconds/rank1")) == 2


def test_prometheus_served_and_as_a_text_file(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra callbacks is not installed")
    from gpuscope.callbacks.prometheus_callback import PrometheusCallback

    served = PrometheusCallback(port=0)
    served.on_step(step_measures(LINE))
    served.on_verdict(VERDICT)
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as page:
        text = page.read().decode()
    served.close()
    assert 'gpuscope_step_seconds{rank="1"} 0.12' in text
    assert 'gpuscope_step{rank="1"} 7.0' in text
    assert 'gpuscope_bound_by{bound_by="communication"} 1.0' in text
    assert 'gpuscope_bound_by{bound_by="cpu"} 0.0' in text
    assert "gpuscope_verdict_confidence_ratio 0.94" in text
    told(callback_named(f"prometheus={tmp_path / 'gpuscope.prom'}"))
    assert 'gpuscope_step_seconds{rank="0"} 0.12' in (tmp_path / "gpuscope.prom").read_text()


def test_opentelemetry_read_from_memory() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra callbacks is not installed")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from gpuscope.callbacks.opentelemetry_callback import OpenTelemetryCallback

    reader = InMemoryMetricReader()
    told(OpenTelemetryCallback(MeterProvider([reader])))
    found: dict[str, Any] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "gpuscope"
            found |= {metric.name: metric for metric in scope.metrics}
    points = {
        point.attributes["gpuscope.rank"]: point.value for point in found["gpuscope.step_seconds"].data.data_points
    }
    assert points == {0: 0.12, 1: 0.12}
    assert found["gpuscope.step_seconds"].unit == "s"
    [share] = found["gpuscope.verdict_share_ratio"].data.data_points
    assert (share.value, share.attributes["gpuscope.cause"]) == (0.286, "straggler")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("grafana", "no such target"),
        ("tensorboard", "needs a folder"),
        ("prometheus=here", "neither HOST:PORT nor"),
        ("prometheus=:99999", "neither HOST:PORT nor"),
        ("opentelemetry=x", "takes no target"),
    ],
)
def test_wrong_targets(asked: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        callback_named(asked)


def test_every_target_is_named_in_the_uses() -> None:
    assert {use.partition("=")[0].partition("[")[0] for use in USES} == set(BY_NAME)
    assert len(set(MEASURES)) == len(MEASURES)


class Told:
    """A callback that keeps what it is given, and fails when told to."""

    def __init__(self, fails: bool = False) -> None:
        self.steps: list[StepMeasures] = []
        self.verdicts: list[WindowVerdict] = []
        self.closed, self.fails = 0, fails

    def on_step(self, measures: StepMeasures) -> None:
        if self.fails:
            raise OSError("the server is gone")
        self.steps.append(measures)

    def on_verdict(self, verdict: WindowVerdict) -> None:
        self.verdicts.append(verdict)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorded(samples: Path, tmp_path: Path) -> Path:
    """The folder of a run that has ended, with its windows and measures."""
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(samples / "ddp_slow_rank", folder)
    (folder / "measures").mkdir(exist_ok=True)
    for rank in (0, 1):
        lines = [{**LINE, "rank": rank, "step": step} for step in range(3)]
        (folder / "measures" / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_following_a_run_hands_on_every_step_once_and_its_verdict(recorded: Path) -> None:
    import gpuscope

    one, broken, other = Told(), Told(fails=True), Told()
    wrong = gpuscope.follow(recorded, one, broken, other, every=0.01)
    for callback in (one, other):
        assert sorted((step.rank, step.step) for step in callback.steps) == [(r, s) for r in (0, 1) for s in range(3)]
        [verdict] = callback.verdicts
        assert (verdict.bound_by, verdict.cause, verdict.step, verdict.windows) == ("communication", "straggler", 2, 2)
        assert verdict.values["verdict_step_seconds"] == pytest.approx(0.1196, rel=0.01)
        assert callback.closed == 1
    assert wrong == ["Told: OSError: the server is gone"]
    assert (broken.verdicts, broken.closed) == ([], 0)


def test_watch_waits_for_a_run_to_begin(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from threading import Timer

    from helpers.cli import call

    assert call(capsys, "watch", tmp_path / "later", "--once").returncode == 3
    timer = Timer(0.5, recorded.rename, [tmp_path / "later"])
    timer.start()
    done = call(capsys, "watch", tmp_path / "later", "--once", "--wait", "60")
    timer.join()
    assert "finished windows (2 files)" in done.stdout


def test_watch_sends_to_the_targets_named(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client", reason="the extra callbacks is not installed")
    from helpers.cli import call

    done = call(capsys, "watch", recorded, "--once", "--to", f"prometheus={tmp_path / 'job.prom'}")
    text = (tmp_path / "job.prom").read_text()
    assert 'gpuscope_step{rank="1"} 2.0' in text
    assert 'gpuscope_bound_by{bound_by="communication"} 1.0' in text
    assert "finished windows (2 files)" in done.stdout
    assert call(capsys, "watch", recorded, "--to", "nowhere").returncode == 2
