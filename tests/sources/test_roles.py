"""Folders of jobs by role, as trainers for reinforcement learning leave them: each job is judged by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.kineto import call, kernel, note, write

import gpuscope
from gpuscope.errors import SeveralRoles, UsageError
from gpuscope.plugins import COMMANDS, load


def recorded(path: Path, rank: int, kernel_us: int) -> None:
    events = []
    for step in range(4):
        at = 1000 * step
        events += [note(at, 990, f"ProfilerStep#{step}"), call(at + 5, 5, step + 1)]
        events += [kernel(at + 20, kernel_us, step + 1)]
    write(path, *events, rank=rank, world_size=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """As verl leaves them: `actor_update/prof_rank-0_031904.json` …; the actor's kernels are the longer ones."""
    for role, kernel_us in (("actor_update", 960), ("rollout_generate", 100)):
        for rank in (0, 1):
            recorded(tmp_path / f"run/{role}/prof_rank-{rank}_031904.json", rank, kernel_us)
    return tmp_path / "run"


def analyze(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(load(COMMANDS, "analyze"), ["--no-store", *map(str, arguments)], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.stdout, done.stderr


def test_each_role_is_judged(run: Path) -> None:
    code, out, _ = analyze(run, "--json")
    document = json.loads(out)
    assert (code, document["schema_version"]) == (0, 3)
    jobs = {job["role"]: job for job in document["jobs"]}
    assert {role: job["trace"]["ranks_present"] for role, job in jobs.items()} == {
        "actor_update": [0, 1],
        "rollout_generate": [0, 1],
    }
    assert jobs["actor_update"]["verdict"]["bound_by"] == "compute"
    assert jobs["rollout_generate"]["verdict"]["bound_by"] == "cpu"
    _, out, _ = analyze(run)
    assert out.index("== actor_update ==") < out.index("== rollout_generate ==")


def test_one_role_can_be_chosen_and_the_others_are_named(run: Path) -> None:
    report = gpuscope.analyze(run, role="rollout_generate").report
    assert report["verdict"]["bound_by"] == "cpu"
    [told] = [problem["message"] for problem in report["problems"] if problem["code"] == "other_roles"]
    assert "this is rollout_generate" in told
    assert "actor_update" in told


def test_pages_are_written_for_each_role(run: Path, tmp_path: Path) -> None:
    analyze(run, "--html", tmp_path / "page.html", "--csv", tmp_path / "tables")
    made = sorted(path.name for path in tmp_path.iterdir() if path.name != "run")
    assert made == [
        "page-actor_update.html",
        "page-rollout_generate.html",
        "tables-actor_update",
        "tables-rollout_generate",
    ]


def test_a_job_that_cannot_be_read_hides_no_other(run: Path) -> None:
    (run / "actor_update/prof_rank-0_031904.json").write_text('{"traceEvents": [{"ph": "X"')
    code, out, err = analyze(run)
    assert code == 3
    assert "actor_update" in err
    assert "== rollout_generate ==" in out


def test_elsewhere_the_role_must_be_chosen(run: Path) -> None:
    with pytest.raises(SeveralRoles, match="actor_update, rollout_generate"):
        gpuscope.open_trace(run)
    with pytest.raises(UsageError, match="no role 'critic'"):
        gpuscope.analyze(run, role="critic")
    with pytest.raises(UsageError, match="no jobs of several roles"):
        gpuscope.analyze(run / "actor_update", role="actor_update")


def test_folders_that_name_no_role_stay_two_runs(run: Path) -> None:
    (run / "actor_update").rename(run / "monday")
    (run / "rollout_generate").rename(run / "tuesday")
    with pytest.raises(UsageError, match="both hold rank 0"):
        gpuscope.analyze(run)


def test_the_number_of_ranks_can_be_given(run: Path) -> None:
    trace = gpuscope.analyze(run, role="actor_update", world_size=16).report["trace"]
    assert (trace["world_size"], trace["world_basis"]) == (16, "asked")
    with pytest.raises(UsageError, match="--world-size 1: 2 ranks are at hand"):
        gpuscope.analyze(run, role="actor_update", world_size=1)
