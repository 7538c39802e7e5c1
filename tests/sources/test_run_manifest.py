"""How a run ended, from the manifest of its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.kineto import kernel, note, write

import gpuscope
from gpuscope.errors import InputError
from gpuscope.report.view.first_lines import first_lines
from gpuscope.sources.run_manifest import ended


def manifest(folder: Path, **told: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"run_id": "x", "status": "completed", **told}))
    return folder


def test_the_culprit_comes_before_those_whose_connection_it_cut(tmp_path: Path) -> None:
    ranks = [
        {"rank": 0, "status": "failed", "error": "RuntimeError: Connection reset by peer", "ended_ns": 1},
        {"rank": 1, "status": "failed", "error": "ValueError: my own bug\nsecond line", "ended_ns": 2},
        {"rank": 2, "status": "killed", "error": None, "ended_ns": 3},
        {"rank": 3, "status": "completed", "error": None},
    ]
    told = ended(manifest(tmp_path, status="failed", ranks=ranks))
    assert told is not None
    assert told.badly
    assert told.failures == (
        "rank 2 killed",
        "rank 1 failed: ValueError: my own bug",
        "rank 0 then lost the connection",
    )


def test_a_rank_that_left_is_the_culprit_where_others_only_lost_their_connection(tmp_path: Path) -> None:
    lost = {"status": "failed", "error": "RuntimeError: Connection closed by peer"}
    ranks = [
        {"rank": 0, **lost, "ended_ns": 2},
        {"rank": 1, "status": "completed", "ended_ns": 1},
        {"rank": 2, "status": "completed", "ended_ns": 3},
    ]
    told = ended(manifest(tmp_path, status="failed", ranks=ranks))
    assert told is not None
    assert told.failures == (
        "rank 1 ended before the others, without an error",
        "rank 0 failed: RuntimeError: Connection closed by peer",
    )


def test_a_healthy_run_and_other_manifests_say_nothing(tmp_path: Path) -> None:
    told = ended(manifest(tmp_path))
    assert told is not None
    assert not told.badly
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    assert ended(tmp_path) is None
    (tmp_path / "manifest.json").write_text("{")
    assert ended(tmp_path) is None


def test_a_run_that_goes_on_has_not_ended_badly(tmp_path: Path) -> None:
    manifest(tmp_path, status="running")
    write(tmp_path / "rank0.json", kernel(0, 5))
    problems = gpuscope.analyze(tmp_path).report["problems"]
    told = {p["code"]: p["severity"] for p in problems if p["code"].startswith("run_")}
    assert told == {"run_going_on": "info"}


@pytest.mark.parametrize("error", ["ValueError: bad", None])
def test_a_run_that_ended_early_is_told_with_what_its_ranks_say(tmp_path: Path, error: str | None) -> None:
    ranks = [{"rank": 0, "status": "failed" if error else "completed", "error": error}]
    manifest(tmp_path, status="interrupted", ranks=ranks)
    write(tmp_path / "rank0.json", kernel(0, 5))
    problems = gpuscope.analyze(tmp_path).report["problems"]
    (told,) = (problem for problem in problems if problem["code"] == "run_ended_early")
    assert (told["severity"], "interrupted" in told["message"]) == ("error", True)
    assert (f"rank 0 failed: {error}" in told["message"]) == bool(error)


def test_what_the_recorder_lost_is_told_with_what_to_set(tmp_path: Path) -> None:
    """Where there is a trace, among its problems; where there is none, as the reason."""
    why = "no trace: the script ended after 1 step; record it from start to end with --whole"
    manifest(tmp_path, problems=[{"severity": "data_loss", "code": "no_active_steps", "message": why, "rank": 1}])
    with pytest.raises(InputError, match=r"recorded no trace.*rank 1: no trace: the script ended after 1 step"):
        gpuscope.analyze(tmp_path)
    write(tmp_path / "rank0.json", kernel(0, 5))
    told = {p["code"]: p["message"] for p in gpuscope.analyze(tmp_path).report["problems"]}
    assert told["recording_lost"] == f"rank 1: {why}"


def test_the_report_says_that_the_run_failed(tmp_path: Path) -> None:
    problems = [{"severity": "error", "code": "hang", "message": "rank 1 has not joined"}]
    manifest(tmp_path, status="failed", ranks=[{"rank": 1, "status": "killed"}], problems=problems)
    write(tmp_path / "rank0.json", kernel(0, 5))
    report = gpuscope.analyze(tmp_path).report
    told = {p["code"]: p["message"] for p in report["problems"]}
    assert told["run_failed"].endswith("the run failed: rank 1 killed")
    assert told["run_trouble"].endswith("rank 1 has not joined")
    lines = first_lines(report)
    assert lines.what.startswith(told["run_failed"])
    assert told["run_failed"] not in lines.limits


def test_ranks_that_ended_alike_have_one_sentence(tmp_path: Path) -> None:
    by_signal = {"status": "interrupted", "error": "terminated by SIGTERM"}
    ranks = [{"rank": rank, **by_signal} for rank in (0, 1, 3)] + [{"rank": 2, "status": "killed"}]
    manifest(tmp_path, status="interrupted", ranks=ranks)
    end = ended(tmp_path)
    assert end is not None
    assert end.failures == ("rank 2 killed", "ranks 0-1,3 interrupted: terminated by SIGTERM")
    assert end.killed == (2,)


def test_a_trace_without_work_is_explained_by_what_the_recorder_lost(tmp_path: Path) -> None:
    why = "recorded 0 whole steps of 8: the script ended; record it with --wait 0 --warmup 1 --active 2"
    manifest(tmp_path, problems=[{"severity": "data_loss", "code": "fewer_steps", "message": why, "rank": 0}])
    write(tmp_path / "rank0.json", note(0, 5, "a range"))
    assert why in gpuscope.analyze(tmp_path).report["verdict"]["why"]


@pytest.mark.parametrize("name", ["manifest.json", "manifest.d/rank0.json"])
def test_a_manifest_that_is_no_plain_file_is_not_read_and_told(tmp_path: Path, name: str) -> None:
    """A device without an end, in a process that would be ended before it took the machine's memory."""
    write(tmp_path / "rank0.json", note(0, 100, "ProfilerStep#0"), kernel(10, 50))
    manifest(tmp_path)
    (tmp_path / "manifest.d").mkdir()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/zero")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)); "
    call = "from gpuscope.cli import main; import sys; main(sys.argv[1:])"
    command = [sys.executable, "-c", limit + call, "analyze", "--json", "--no-store"]

    def ran(path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, path], capture_output=True, text=True, timeout=60, check=False)

    done = ran(tmp_path / "rank0.json")
    assert done.returncode == 0, done.stderr[-500:]
    told = [problem for problem in json.loads(done.stdout)["problems"] if problem["code"] == "record_unreadable"]
    assert [(problem["severity"], name in problem["message"]) for problem in told] == [("data_loss", True)]
    done = ran(tmp_path)  # of a folder each file that may be a trace is asked for
    assert (done.returncode, name in done.stderr) == (3, True)
