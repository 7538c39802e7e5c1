"""The parts of tuning: what is tried, the budget, processes that end, losses, what is taken along."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.manifest import RankPart
from gpuscope.instrumented_runtime.tune import measured, running
from gpuscope.instrumented_runtime.tune.budget import Budget
from gpuscope.instrumented_runtime.tune.candidates import of_advice
from gpuscope.instrumented_runtime.tune.measured import Run, step_of, with_output
from gpuscope.instrumented_runtime.tune.rerun import Seen, otherwise, the_one
from gpuscope.instrumented_runtime.tune.running import estimate, with_keywords
from gpuscope.welch import Sample


def entry(code: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "action": f"do {code}", "setting": {"kind": "python", "name": code, "value": "1"}, **more}


def predicted(after: int, high: int) -> dict[str, Any]:
    return {"predicted": {"step_ns_before": 100, "step_ns_after": after, "low_ns": after - 5, "high_ns": high}}


def changes(setting: Mapping[str, Any], code: str, facts: Mapping[str, Any]) -> Sequence[Change] | None:
    del setting, facts
    return None if code == "by_hand" else [Change(code, "1")]


def test_the_most_certain_gain_comes_first_and_bounds_come_last() -> None:
    report = {
        "suggestions": [entry("wide", **predicted(40, 95)), entry("sure", **predicted(70, 75)), entry("by_hand")],
        "advice": {
            "unpredicted": [
                entry("small", bound={"step_ns_before": 100, "step_ns_low": 90}),
                entry("large", bound={"step_ns_before": 100, "step_ns_low": 50}),
                entry("unknown"),
                entry("risky"),
            ],
            "plan": {"steps": [entry("sure"), entry("in_plan_alone")]},
        },
    }
    source = of_advice(changes, lambda change: "precision" if change.name == "risky" else "", [])
    found = source(report)
    assert [one.code for one in found.candidates] == ["sure", "wide", "large", "small", "unknown", "in_plan_alone"]
    assert [row["code"] for row in found.by_hand] == ["by_hand", "risky"]
    assert "--allow precision" in found.by_hand[1]["why"]
    allowed = of_advice(changes, lambda change: "precision" if change.name == "risky" else "", ["precision"])
    assert "risky" in [one.code for one in allowed(report).candidates]


@pytest.mark.parametrize(("text", "runs"), [("3", 3), ("24", 24)])
def test_a_budget_of_runs(text: str, runs: int) -> None:
    budget = Budget(text)
    assert [budget.start(1e9) for _ in range(runs + 1)] == [True] * runs + [False]


def test_a_budget_of_time_starts_no_run_that_would_exceed_it() -> None:
    now = 0.0
    budget = Budget("2m", lambda: now)
    assert budget.start(100)
    now = 100.0
    assert (budget.left_s, budget.start(30), budget.start(10)) == (20.0, False, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("4", "3 changes to try: the budget has room for 2 runs of about 30.00 s, 60.00 s in all"),
        ("240s", "3 changes to try: the budget has room for 3 runs of about 30.00 s, 90.00 s in all"),
    ],
)
def test_what_will_run_is_estimated_by_the_runs_so_far(text: str, told: str) -> None:
    now = 0.0
    budget = Budget(text, lambda: now)
    assert budget.start()
    assert budget.start()
    now = 150.0  # of which something else than runs took 90 s
    assert estimate(3, budget, 60.0) == told


@pytest.mark.parametrize("text", ["", "0", "-3", "2.5", "fast", "3d"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UsageError, match="no budget"):
        Budget(text)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_what_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """Neither SIGTERM nor a session of its own helps a child."""
    child = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(60)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    before = measured.GRACE_S
    measured.GRACE_S = 0.2
    try:
        ended = measured.run([sys.executable, "-c", script], tmp_path / "log", 3.0)
    finally:
        measured.GRACE_S = before
    assert ended.code is None
    deadline = time.monotonic() + 10
    pid = int((tmp_path / "log").read_text())
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def test_what_crashes_says_how(tmp_path: Path) -> None:
    script = "import sys; print('gpuscope: rank 0 failed'); print('loading', flush=True); sys.exit('no such data')"
    ended = measured.run([sys.executable, "-c", script], tmp_path / "log", 60.0)
    assert ended.code == 1
    assert measured.last_lines(tmp_path / "log") == ["loading", "no such data"]


@pytest.mark.parametrize(
    ("command", "argument", "expected"),
    [
        ("python t.py", "", "python t.py"),
        ("python t.py --out mine --lr 1", "--out", "python t.py --out S --lr 1"),
        ("python t.py --out=mine", "--out", "python t.py --out=S"),
        ("python t.py", "--out", "python t.py --out S"),
        ("python t.py", "hydra.run.dir=", "python t.py hydra.run.dir=S"),
    ],
)
def test_each_trial_writes_into_its_own_folder(command: str, argument: str, expected: str) -> None:
    assert with_output(command.split(), argument, Path("S")) == expected.split()


def test_what_the_script_wrote_is_told(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_text("1")
    mine = tmp_path / "gpuscope-tune"
    before = running.files_seen(tmp_path, mine)
    mine.mkdir()
    (mine / "run.json").write_text("ours")
    (tmp_path / "old.pt").write_text("12")
    (tmp_path / "new.pt").write_text("1")
    assert running.files_changed(before, tmp_path, mine) == ["new.pt", "old.pt"]


def of(*values: float) -> Run:
    return Run(Path("run"), losses={0: values})


def test_losses_of_a_script_without_a_seed_are_compared_with_their_own_noise() -> None:
    runs = [of(1.0, 0.5), of(1.1, 0.6)]
    assert measured.compared([runs]) == "within_noise"
    limit = measured.limit([runs], alters=False)
    assert limit == pytest.approx(2 / 6)
    assert measured.moved(runs, of(1.0, 0.7)) == pytest.approx(1 / 7)
    assert measured.limit([[Run(Path("run"))] * 2], alters=False) is None


PATCHED = [
    ("loader = DataLoader(data)\n", 1, "loader = DataLoader(data, num_workers=4)\n"),
    ("loader = DataLoader(data, num_workers=0,)\n", 1, "loader = DataLoader(data, num_workers=4,)\n"),
    (
        "l = d.DataLoader(\n    data,\n    batch_size=f(8),\n)\n",
        1,
        "l = d.DataLoader(\n    data,\n    batch_size=f(8), num_workers=4,\n)\n",
    ),
    ("x = DataLoader((a for a in 'ä'))\n", 1, "x = DataLoader((a for a in 'ä'), num_workers=4)\n"),
    ("DataLoader(**options)\n", 1, None),
    ("a, b = DataLoader(x), DataLoader(y)\n", 1, None),
    ("loader = make(data)\n", 1, None),
]


@pytest.mark.parametrize(("source", "line", "expected"), PATCHED)
def test_a_call_of_the_script_with_another_argument(source: str, line: int, expected: str | None) -> None:
    assert with_keywords(source, line, ["DataLoader"], {"num_workers": "4"}) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="sends signals to a process group")
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """Before a baseline is known there is nothing to write."""
    script = tmp_path / "wait.py"
    script.write_text("import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(100)\n")
    words = [sys.executable, "-c", "from gpuscope.cli import main; main()", "tune", "-o", "t", "--", sys.executable]
    process = subprocess.Popen(
        [*words, str(script)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in told
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_suggestion_followed_with_another_value_is_the_same_one() -> None:
    """Of sixteen workers four; not the other way, nor to the letter."""
    setting = {"kind": "python", "name": "DataLoader.num_workers", "value": "16"}
    report: Any = {"suggestions": [{"code": "loader_workers", "setting": setting, "facts": {"workers": 16}}]}

    def with_workers(count: str) -> Seen:
        return Seen({"dataloader.num_workers": frozenset({count})}, ["python", "train.py"])

    (found,) = otherwise(report, with_workers("0"), with_workers("4"))
    assert str(found) == "loader_workers: followed with dataloader.num_workers=4 instead of 16"
    assert the_one(report, with_workers("0"), with_workers("4")) == "loader_workers"
    assert otherwise(report, with_workers("0"), with_workers("0")) == []
    assert otherwise(report, with_workers("8"), with_workers("4")) == []


@pytest.mark.parametrize(("share", "answered", "listed"), [(0.6, False, 1), (0.02, False, 0), (0.6, True, 0)])
def test_work_of_the_script_that_nothing_answers_is_work_by_hand(share: float, answered: bool, listed: int) -> None:
    finding = {"code": "host_other", "share_frac": share, "message": "Host code", "evidence": []}
    setting = {"kind": "python", "name": "log", "value": "in a thread"}
    entry = {"code": "host_work_aside", "finding": "host_other", "action": "Move it", "setting": setting}
    report = {"findings": [finding], "suggestions": [entry] if answered else []}
    advice = of_advice(lambda *_: None, lambda _: "", ())(report)
    assert sum(row["code"] == "host_other" for row in advice.by_hand) == listed


def test_steps_under_the_profiler_are_no_baseline() -> None:
    facts = {"step_ns": [200] * 11 + [5000] + [100] * 40}
    assert math.exp(known(step_of([RankPart(rank=0, facts=facts)], 12)).median) == pytest.approx(100)
    assert step_of([RankPart(rank=0, facts={"step_ns": [200] * 12})], 12) is None


def known(found: Sample | None) -> Sample:
    assert found is not None
    return found
