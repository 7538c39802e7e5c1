"""A run folder of a job that was started again, and one of a job that was stopped before anything was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuscope.errors import InputError
from gpuscope.sources.opening import inputs
from gpuscope.sources.run_manifest import mesh
from gpuscope.sources.source import last_attempt, left_out

ATTEMPTS = ["rank0.json.gz", "rank1.json.gz", "restart1/rank0.json.gz", "restart2/measures/rank0.jsonl"]


def run_folder(folder: Path, **facts: object) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "completed", **facts}))
    return folder


def traces(*paths: str) -> list[dict[str, str]]:
    return [{"path": path, "kind": "measures" if "measures" in path else "torch_profiler"} for path in paths]


def test_the_last_attempt_that_left_a_trace(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", files=traces(*ATTEMPTS))
    found = [folder / path for path in ATTEMPTS[:3]]
    assert last_attempt(folder, found) == [folder / "restart1/rank0.json.gz"]
    assert last_attempt(tmp_path, found) == found  # no run folder: names of folders mean nothing


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ("restart1/rank0.json.gz", "this is restart 1. Left out: the first attempt; name its traces (run/rank*)"),
        ("rank1.json.gz", "this is the first attempt. Left out: restart 1; name its traces (run/restart1)"),
    ],
)
def test_the_other_lives_are_named(tmp_path: Path, read: str, said: str) -> None:
    folder = run_folder(tmp_path / "run", files=traces(*ATTEMPTS))
    found = left_out(folder, [folder / read])
    assert found is not None
    assert said in found.message


def test_an_earlier_window_of_the_same_job_is_named(tmp_path: Path) -> None:
    """Nobody started it again: that is not said of it."""
    files = ["window1/rank0.json.gz", "window2/rank0.json.gz"]
    folder = run_folder(tmp_path / "run", files=traces(*files))
    found = left_out(folder, [folder / files[1]])
    assert found is not None
    assert (found.code, "run/window1" in found.message, "again" in found.message) == ("restarts_left_out", True, False)


def test_a_job_of_one_life(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", files=traces(*ATTEMPTS[:2]))
    assert left_out(folder, [folder / ATTEMPTS[0]]) is None


def test_a_run_stopped_before_it_recorded_a_trace(tmp_path: Path) -> None:
    rank = {"rank": 0, "status": "failed", "error": "ValueError: bad"}
    folder = run_folder(tmp_path / "run", status="interrupted", ranks=[rank])
    with pytest.raises(InputError, match="recorded no trace; its status is «interrupted»: rank 0 failed: ValueError"):
        inputs([folder])


def test_degrees_of_the_mesh(tmp_path: Path) -> None:
    sizes = {"pp": 1, "replicate": 2, "shard": 2, "cp": 1, "ep": 1, "tp": 2}
    assert mesh(run_folder(tmp_path / "run", parallelism={"mesh": sizes})) == {"tp": 2, "dp": 4}
    assert mesh(tmp_path) == {}
