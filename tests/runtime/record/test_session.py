"""`gpuscope_session` inside a script: three lines, and nothing of the script at risk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gpuscope.instrumented_runtime.record.session as sessions
from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.environment import TorchProfiler
from gpuscope.instrumented_runtime.record.run_folder import read_manifest
from gpuscope.instrumented_runtime.record.session import gpuscope_session


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "GPUSCOPE_RUN_FOLDER", "GPUSCOPE_RECORD"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert sessions.active_session() is None


def test_three_lines(tmp_path: Path) -> None:
    with gpuscope_session(tmp_path / "run", wait=0, active=1) as session:
        for _ in range(4):
            session.step()
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.status, manifest.world_size) == ("completed", 1)
    assert [entry.path for entry in manifest.files if entry.kind == "torch_profiler"] == ["rank0.json.gz"]
    assert manifest.versions["torch"] == torch.__version__


def test_optimizer_steps_count_as_steps_and_the_first_optimizer_leads(tmp_path: Path) -> None:
    generator, critic = (torch.optim.SGD([torch.ones(1, requires_grad=True)]) for _ in range(2))
    with gpuscope_session(tmp_path / "run", auto_step=True, profiler="none") as session:
        for _ in range(3):
            generator.step()
            critic.step()
    generator.step()  # after the session nobody counts
    assert session.steps == 3


def test_the_scripts_own_word_on_steps_counts(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    with gpuscope_session(tmp_path / "run", auto_step=True, profiler="none") as session:
        for _ in range(3):
            optimizer.step()
            session.step()
    assert session.steps == 3


@pytest.mark.parametrize(("error", "status"), [(ValueError("oops"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_an_exception_goes_its_way_and_is_noted(tmp_path: Path, error: BaseException, status: str) -> None:
    def script() -> None:
        with gpuscope_session(tmp_path / "run", wait=0, warmup=1) as session:
            session.step()
            session.step()
            raise error

    with pytest.raises(type(error)):
        script()
    (rank,) = read_manifest(tmp_path / "run").ranks
    assert rank.status == status
    assert rank.error is not None
    assert rank.error.startswith(type(error).__name__)
    assert (tmp_path / "run/rank0.json.gz").exists()  # the step before it is not lost


def test_a_capture_that_fails_is_noted_and_the_script_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr(TorchProfiler, "start", fail)
    with gpuscope_session(tmp_path / "run") as session:
        session.step()
    (problem,) = read_manifest(tmp_path / "run").problems
    assert (problem.code, problem.severity) == ("torch_profiler_failed", "data_loss")
    assert "no CUPTI" in capsys.readouterr().err


def test_wrong_use_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"activ(.|\n)*the options are"):
        gpuscope_session(tmp_path / "run", activ=3)
    with pytest.raises(UsageError, match="active=0 records nothing"):
        gpuscope_session(tmp_path / "run", active=0)
    with pytest.raises(UsageError, match="needs a folder"):
        gpuscope_session()
    with gpuscope_session(tmp_path / "run", profiler="none"), pytest.raises(UsageError, match="already records"):
        gpuscope_session(tmp_path / "other").open()
    assert not (tmp_path / "other").exists()
