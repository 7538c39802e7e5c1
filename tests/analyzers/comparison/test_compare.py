"""Two runs in, a verdict out: synthetic ones by hand, recorded ones with known faults."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.nsys import Export
from helpers.reports import report, suggestion

from gpuscope.analyzers.comparison.compare import Side, compare
from gpuscope.analyzers.comparison.comparison import Reading, load, step_time
from gpuscope.errors import InputError, UsageError
from gpuscope.schema.diff_document import Diff
from gpuscope.schema.document import Report

MS = 1_000_000
STEADY = (99.0, 100.0, 101.0, 100.0, 99.0, 101.0)
"""Median 100, variance 0.8: the medians of two such runs differ by at most 2.228 · √(2 · 0.8 / 6 / 0.776) = 1.31 ms
with 95 % confidence; on the scale of ratios nearly so."""


def diff(before: Report, after: Report, threshold: float = 0.02, applied: str | None = None) -> Diff:
    return compare(Side(before, "before"), Side(after, "after"), threshold, applied)


@pytest.mark.parametrize(
    ("added", "result", "conclusive"),
    [
        (0.0, "neutral", True),  # −1.31 … 1.31 %: within 2 %
        (2.0, "neutral", False),  # 0.69 … 3.31 %: across 2 %
        (4.0, "regression", True),  # 2.69 … 5.31 %: beyond
        (-4.0, "improvement", True),
    ],
)
def test_the_rule(added: float, result: str, conclusive: bool) -> None:
    made = diff(report(*STEADY), report(*(ms + added for ms in STEADY)))
    assert (made["verdict"]["result"], made["verdict"]["conclusive"]) == (result, conclusive)
    assert made["step"]["change_ns"] == added * 1_000_000
    half = 2.228 * (1.6 / 6 / 0.776) ** 0.5 / 100
    assert made["step"]["high_frac"] == pytest.approx((1 + added / 100) * math.exp(half) - 1, rel=0.03)


def test_only_steady_steps_are_compared() -> None:
    """A warm-up step of 900 ms, an outlier of 500 and a cut-off one of 40 change nothing."""
    roles = ("warmup", *("steady",) * 3, "outlier", *("steady",) * 3, "partial")
    noisy = report(900.0, *STEADY[:3], 500.0, *STEADY[3:], 40.0)
    for entry in noisy["steps"]:
        entry["role"] = roles[entry["step"] or 0]  # type: ignore[typeddict-item]
    made, clean = diff(noisy, report(*STEADY)), diff(report(*STEADY), report(*STEADY))
    assert (made["step"], made["before"]["steps"]) == (clean["step"], 6)


def test_ranks_of_a_step_are_one_observation() -> None:
    """64 ranks that wait for each other know no more of the step's spread than two."""
    few, many = (diff(report(*STEADY, ranks=n), report(*STEADY, ranks=n)) for n in (2, 64))
    assert few["step"] == many["step"]


def test_a_single_step_tells_no_uncertainty() -> None:
    made = diff(report(100.0), report(200.0))
    assert (made["verdict"]["result"], made["verdict"]["conclusive"]) == ("neutral", False)
    assert made["step"]["low_frac"] is None


def test_a_step_that_a_rank_lacks_is_left_out() -> None:
    whole = report(*STEADY, 500.0)
    whole["steps"] = [entry for entry in whole["steps"] if (entry["step"], entry["rank"]) != (6, 1)]
    assert diff(whole, report(*STEADY))["before"]["steps"] == 6


def test_windows_without_steps_settle_nothing() -> None:
    """Twice the window may be twice the recording."""
    twice = report(ranks=1)
    twice["ranks"][0]["window_ns"] *= 2
    made = diff(report(ranks=1), twice)
    assert made["step"]["basis"] == "window"
    assert (made["verdict"]["result"], made["verdict"]["conclusive"]) == ("neutral", False)
    assert "record" in made["verdict"]["why"]


def test_parts_move_with_their_interval() -> None:
    """Exposed communication of 10 ms per step becomes 5; the rest stays."""

    def exposing(ms: float) -> Report:
        made = report(*STEADY, ranks=1)
        for entries, steps in ((made["steps"], 1), (made["ranks"], len(STEADY))):
            for entry in entries:  # type: ignore[attr-defined]
                entry["breakdown_ns"]["compute"] -= round(ms * steps * 1_000_000)
                entry["breakdown_ns"]["exposed_communication"] += round(ms * steps * 1_000_000)
        return made

    [row] = [r for r in diff(exposing(10), exposing(5))["breakdown"] if r["part"] == "exposed_communication"]
    assert (row["before_ns"], row["after_ns"], row["change_ns"]) == (10_000_000, 5_000_000, -5_000_000)
    assert (row["low_ns"], row["high_ns"]) == (-5_000_000, -5_000_000)  # no spread at all


def test_predicted_against_gained() -> None:
    """100 ms; predicted 80 (75–85) and 95 (93–97) and 60 (50–70); measured 80."""
    offered = [suggestion("a", 100, 80, 75, 85), suggestion("b", 100, 95, 93, 97), suggestion("c", 100, 60, 50, 70)]
    before, after = report(*STEADY, suggestions=offered), report(*(ms - 20 for ms in STEADY))
    proofs = {proof["code"]: proof for proof in diff(before, after)["suggestions"]}
    assert {code: proof["held"] for code, proof in proofs.items()} == {"a": "inside", "b": "faster", "c": "slower"}
    assert (proofs["c"]["predicted_gain_ns"], proofs["c"]["gained_ns"]) == (40_000_000, 20_000_000)
    assert {proof["applied"] for proof in proofs.values()} == {None}
    named = diff(before, after, applied="c")["suggestions"]
    assert [(proof["code"], proof["applied"]) for proof in named] == [("c", True), ("a", False), ("b", False)]
    with pytest.raises(UsageError, match="does not suggest"):
        diff(before, after, applied="d")


def kernels(*names: str) -> list[dict[str, object]]:
    return [{"name": name, "category": "gemm", "count": 1, "dur_ns": MS} for name in names]


def test_runs_of_different_jobs_get_no_verdict_as_if_of_one() -> None:
    """Other kernels, or another number of ranks; a third of the kernels in common may still be one job."""
    own, others = kernels("a", "b", "c"), kernels("d", "e", "f")
    faster = tuple(ms / 2 for ms in STEADY)
    for after in (report(*faster, kernels=others), report(*faster, ranks=4, kernels=own)):
        made = diff(report(*STEADY, kernels=own), after)
        assert (made["verdict"]["result"], made["verdict"]["conclusive"]) == ("different_jobs", False)
        assert (made["step"]["before_ns"], made["step"]["after_ns"]) == (100 * MS, 50 * MS)
        assert step_time(made)["status"] == "skipped"
    made = diff(report(*STEADY, kernels=own), report(*faster, kernels=kernels("a", "b", "f")))
    assert made["verdict"]["result"] == "improvement"


def test_a_large_change_of_noisy_steps_is_decided() -> None:
    """Nineteen steps of each with a few long ones: 54 % less is an improvement, whatever those few are."""
    chance = random.Random(3)
    before = [100 * chance.lognormvariate(0, 0.05) for _ in range(19)]
    before[4], before[9], before[10] = 700.0, 900.0, 650.0
    made = diff(report(*before), report(*(46 * chance.lognormvariate(0, 0.05) for _ in range(19))))
    assert (made["verdict"]["result"], made["verdict"]["conclusive"]) == ("improvement", True)


def test_what_is_missing_is_more_than_there_is() -> None:
    """Steps of 90 to 110 ms, 1 % slower: the number said is above the six at hand, and the noisier run is named."""
    wide = (90.0, 110.0, 95.0, 105.0, 100.0, 101.0)
    made = diff(report(*STEADY), report(*(ms + 4 for ms in wide)))
    assert not made["verdict"]["conclusive"]
    [steps] = re.findall(r"about (\d+) steps of each", made["verdict"]["why"])
    assert int(steps) > 6
    assert "the run after" in made["verdict"]["why"]


def test_times_per_step_stand_beside_the_median() -> None:
    """Steps of 100, 100 and 400 ms, half of each idle: 50 ms of the step, not the mean of 100."""
    made = report(100.0, 100.0, 400.0, ranks=1)
    for entry in (*made["steps"], *made["ranks"]):
        whole = entry["breakdown_ns"]["compute"]  # type: ignore[index]
        entry["breakdown_ns"].update(compute=whole // 2, idle=whole // 2)  # type: ignore[attr-defined]
    made["ranks"][0]["stall_ns"]["cpu"] = {"input": 300 * MS}
    found = diff(made, made)
    assert {row["part"]: row["before_ns"] for row in found["breakdown"]}["idle"] == 50 * MS
    assert [row["before_ns"] for row in found["causes"]] == [50 * MS]


def test_unlike_things_are_told() -> None:
    after = report(*STEADY, ranks=4)
    assert any(caveat.startswith("ranks differ: 0-1 before, 0-3") for caveat in diff(report(*STEADY), after)["caveats"])
    assert diff(report(*STEADY), report(*STEADY))["caveats"] == []


# ---- recorded runs ----


@pytest.fixture(scope="module")
def recorded(samples: Path) -> dict[str, Side]:
    names = ("ddp_healthy", "ddp_slow_rank", "ddp_slow_loader")
    return {name: load(str(samples / name), Reading()) for name in names}


def test_a_slow_rank_is_a_regression_and_its_removal_an_improvement(recorded: dict[str, Side]) -> None:
    healthy, slow = recorded["ddp_healthy"], recorded["ddp_slow_rank"]
    worse, better = compare(healthy, slow), compare(slow, healthy)
    assert (worse["verdict"]["result"], better["verdict"]["result"]) == ("regression", "improvement")
    assert worse["causes"][0]["cause"] == "straggler"
    assert (worse["findings"]["new"], better["findings"]["gone"]) == (["straggler"], ["straggler"])


def test_two_judged_steps_settle_what_is_large(recorded: dict[str, Side]) -> None:
    """Steps of 137.5 and 137.7 ms (the third lacks its successor's loading, 60) against 53.8 and 59.9: 2.42 times as
    long, with t(1) = 12.706 and a relative error of 5.4 % / √2 at least 1.22 times."""
    made = compare(recorded["ddp_healthy"], recorded["ddp_slow_loader"])
    assert (made["verdict"]["result"], made["verdict"]["conclusive"]) == ("regression", True)
    assert (made["before"]["steps"], made["after"]["steps"]) == (2, 2)
    low = made["step"]["low_frac"]
    assert low is not None
    assert low == pytest.approx(2.42 * math.exp(-12.706 * math.log(59.94 / 53.82) / 2) - 1, rel=0.1)
    assert made["causes"][0]["cause"] == "input"


def test_what_was_predicted_for_a_recorded_run_is_held_against_the_next(recorded: dict[str, Side]) -> None:
    """The slow loader's report suggests workers; without the slow loader a step takes 54 ms, of 137 (the lower of two
    steps each)."""
    made = compare(recorded["ddp_slow_loader"], recorded["ddp_healthy"], applied="loader_workers")
    [proof] = [proof for proof in made["suggestions"] if proof["applied"]]
    assert proof["measured_ns"] == pytest.approx(53.82e6, rel=0.01)
    assert proof["gained_ns"] == pytest.approx(83.66e6, rel=0.01)
    assert proof["held"] is not None


def synthetic_pair(folder: Path, kernels: int, exposed_ms: int) -> Path:
    """Two GPUs for a second each: `kernels` of compute, which fill 900 ms, then NCCL's kernel, which nothing hides."""
    export = Export()
    folder.mkdir()
    for pid in (10, 11):
        each = 900 * MS // kernels
        for number in range(kernels):
            export.call(number * each, number * each + 1, number + 1, pid=pid)
            export.kernel(number * each, (number + 1) * each, number + 1, pid=pid, device=pid - 10)
        export.call(901 * MS, 902 * MS, 90, pid=pid)
        export.kernel(910 * MS, (910 + exposed_ms) * MS, 90, "ncclDevKernel_SendRecv(x)", pid=pid, device=pid - 10)
        export.call(990 * MS, 991 * MS, 91, pid=pid)
        export.kernel(999 * MS, 1000 * MS, 91, pid=pid, device=pid - 10)
    return export.write(folder)


def neutral(paths: Sequence[Path]) -> tuple[int, int]:
    """The exposed communication, ns, of a pair that is found to be neutral, its step alike."""
    before, after = (load(str(path), Reading()) for path in paths)
    made = compare(before, after)
    assert made["verdict"]["result"] == "neutral"
    assert abs(made["step"]["change_frac"] or 0) < 0.001
    assert any("compute kernels per window" in caveat for caveat in made["caveats"])
    [row] = [row for row in made["breakdown"] if row["part"] == "exposed_communication"]
    return row["total_before_ns"], row["total_after_ns"]


def test_a_synthetic_pair_of_nsys_is_neutral(tmp_path: Path) -> None:
    """12 and 17 ms per GPU in windows of a second: 24 → 34 ms on both, and no step is slower."""
    pair = [synthetic_pair(tmp_path / "before", 6, 12), synthetic_pair(tmp_path / "after", 9, 17)]
    assert neutral(pair) == (24 * MS, 34 * MS)


def test_published_pair_is_neutral(shared_traces: Path) -> None:
    """nsys-ai calls it neutral: exposed communication of both GPUs 25.400 → 33.740 ms, the windows alike."""
    pair = [shared_traces / "nsys" / "nsys-ai" / f"mfu_2gpu_{word}.sqlite" for word in ("before", "after")]
    assert neutral(pair) == pytest.approx((25.400 * MS, 33.740 * MS), abs=0.005 * MS)


# ---- what may be named ----


def test_reports_and_runs_can_be_named(tmp_path: Path) -> None:
    from gpuscope.report.read_report import dumps
    from gpuscope.store.store import opened

    path, store = tmp_path / "report.json", tmp_path / "runs.db"
    path.write_text(dumps(report(*STEADY)))
    with opened(store, write=True) as open_store:
        number = open_store.add(report(*STEADY), "k", [], {})
    how = Reading(store=store)
    assert load(str(path), how).report == load(f"#{number}", how).report
    assert load(str(number), how).run == number
    with pytest.raises(UsageError, match="no run 77"):
        load("77", how)
    with pytest.raises(UsageError, match="finished report"):
        load(str(path), Reading(steps=(1, 2)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema_version": 2, "gpuscope_version": "0.1.0", "tra', "cut off or damaged"),
        ('{"schema_version": 9, "gpuscope_version": "0.1.0"}', "schema 9"),
        ('{"schema_version": 1, "gpuscope_version": "0.1.0"}', "schema 1\n"),
        ('{"schema_version": 2, "gpuscope_version": "0.1.0"}', "without collectives"),
    ],
)
def test_a_bad_report_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        load(str(path), Reading())
