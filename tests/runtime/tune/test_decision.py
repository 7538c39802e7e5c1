"""What is kept and what is rolled back: on runs that are drawn, with known gains."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.simulated_tuning import Job, candidate, kept, session

from gpuscope.instrumented_runtime.record.manifest import RankPart
from gpuscope.instrumented_runtime.tune.candidates import together
from gpuscope.instrumented_runtime.tune.measured import Run, step_of

SESSIONS = 100


@pytest.mark.parametrize(("between", "within"), [(0.003, 0.03), (0.01, 0.05), (0.03, 0.1)])
def test_noise_alone_keeps_nothing(between: float, within: float) -> None:
    """Five useless changes a session: at most five sessions of a hundred keep one."""
    jobs = (Job(seed, between=between, within=within) for seed in range(SESSIONS))
    assert sum(bool(kept(session(job, *"abcde"))) for job in jobs) <= 5


@pytest.mark.parametrize("between", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("worse", [{"tails": 3.0}, {"jump": 0.1}, {"tails": 3.0, "jump": 0.1}])
def test_nor_do_outliers_and_a_jump_of_the_machine(between: float, worse: dict[str, float]) -> None:
    jobs = (Job(seed, between=between, **worse) for seed in range(SESSIONS))  # type: ignore[arg-type]
    assert sum(bool(kept(session(job, *"abcde"))) for job in jobs) <= 5


@pytest.mark.parametrize(("between", "within", "often"), [(0.003, 0.03, 90), (0.01, 0.05, 90), (0.03, 0.05, 60)])
def test_a_gain_of_five_per_cent_is_found(between: float, within: float, often: int) -> None:
    jobs = (Job(seed, {"b": 0.05}, between=between, within=within, most=40) for seed in range(SESSIONS))
    assert sum(kept(session(job, "a", "b")) == ["b"] for job in jobs) >= often


def test_what_is_kept_is_what_the_next_change_starts_from() -> None:
    job = Job(gains={"a": 0.3, "b": 0.3, "c": -0.2})
    found = session(job, "a", candidate("c", 0.97), "b")
    assert kept(found) == ["a", "b"]
    assert [change.name for change in found.changes] == ["a", "b"]
    numbers = found.figures()
    assert numbers["best_step_ns"] / numbers["baseline_step_ns"] == pytest.approx(0.49, rel=0.05)
    assert numbers["ratio_low"] < 0.49 < numbers["ratio_high"]
    assert numbers["ratio_high"] < 0.9
    assert found.ended == "done"
    assert job.runs[-1] == ("profile", found.changes)  # all of it together
    assert ("baseline", ()) in job.runs


def test_a_useless_change_costs_one_run_as_does_a_clear_gain() -> None:
    found = session(Job(gains={"a": -0.3, "b": 0.6}), candidate("a", 0.97), "b")
    assert [(row["outcome"], row["runs"]) for row in found.tried] == [("no_gain", 1), ("faster", 1)]


def test_a_fault_that_another_one_hid_is_tried_again() -> None:
    found = session(Job(gains={"a": 0.5, "b": 0.5}, behind={"a": "b"}), candidate("a", 0.6), "b")
    assert [(row["code"], row["outcome"]) for row in found.tried] == [
        ("a", "no_gain"),
        ("b", "faster"),
        ("a", "faster"),
    ]


def test_one_run_without_a_certain_gain_does_not_settle_that_there_is_none() -> None:
    """The machine was slow in the first trial."""
    job = Job(gains={"a": 0.2}, between=0.0, within=0.01, drift=0.0)
    third, rest = iter((1, 1, 1.2)), job.timed
    job.timed = lambda *asked: _longer(rest(*asked), next(third, 1.0))  # type: ignore[method-assign]
    assert kept(session(job, candidate("a", 0.8))) == ["a"]


def test_two_faults_at_once_cost_three_runs() -> None:
    """Profile, the command as it stands, both together; and a profile of both for more advice."""
    job = Job(gains={"a": 0.4, "b": 0.5})
    found = session(job, "a", "b", apart=True)
    assert [name for name, _ in job.runs] == ["profile", "baseline", "trial-1", "profile"]
    assert kept(found) == ["a + b"]
    assert [change.name for change in found.changes] == ["a", "b"]


@pytest.mark.parametrize(
    ("gains", "bounds", "expected"),
    [
        ({"a": 0.5}, "b", ["a"]),  # its bound promised a gain that is none
        ({"a": 0.5, "b": 0.4}, "b", ["a", "b"]),
        ({"a": 0.5, "b": 0.4}, "bcd", ["a", "b"]),
        ({"b": 0.5}, "abc", ["b"]),
        ({"a": 0.5, "b": -0.2}, "b", ["a"]),
        ({"c": 0.5}, "abc", ["c"]),
    ],
)
def test_what_has_a_bound_alone_is_tried_with_all_and_has_to_show_its_gain(
    gains: dict[str, float], bounds: str, expected: list[str]
) -> None:
    found = session(Job(gains=gains), *sorted({"a", *bounds}), apart=True, bounds=bounds)
    assert kept(found) == expected
    assert [change.name for change in found.changes] == expected
    assert len(found.tried) <= 1 + len(bounds)


@pytest.mark.parametrize(("gain", "expected"), [(0.25, "ab"), (0.0, "a")])
def test_where_the_budget_ends_before_parts_are_told_apart_the_faster_stays(gain: float, expected: str) -> None:
    """Profile, the command as it stands, both, the certain one alone: each faster than the command beyond chance."""
    job = Job(gains={"a": 0.6, "b": gain}, between=0.005, most=4)
    found = session(job, "a", "b", apart=True, bounds="b")
    assert "".join(change.name for one in found.kept for change in one.candidate.changes) == expected
    assert all(row["ratio_high"] < 0.99 for row in found.tried if row["kept"])  # type: ignore[operator]


@pytest.mark.parametrize(("predicted", "expected"), [(0.7, ["a"]), (0.97, [])])
def test_where_the_budget_ends_what_is_measured_and_surely_predicted_stays(
    predicted: float, expected: list[str]
) -> None:
    """A fifth faster in one run is not beyond chance on a busy machine, nor is it by itself."""
    found = session(Job(gains={"a": 0.2}, between=0.005, most=3), candidate("a", predicted))
    assert kept(found) == expected


def test_bounds_that_together_hold_nothing_are_not_tried_singly() -> None:
    found = session(Job(), "a", "b", "c", apart=True, bounds="abc")
    assert [row["code"] for row in found.tried] == ["a + b + c"]
    assert found.ended == "done"


@pytest.mark.parametrize("at", range(3, 8))
def test_ctrl_c_while_gains_are_told_apart_leaves_all_of_them(at: int) -> None:
    found = session(Job(gains={"a": 0.5, "b": 0.4}, interrupt_at=at), "a", "b", apart=True, bounds="b")
    assert "".join(change.name for change in found.changes) == ("ab" if at > 3 else "")


def test_a_predicted_range_reaches_from_all_of_the_profilers_time_gone_to_none() -> None:
    """Under the profiler 200 ms of which half goes, without it 50: of the 150 between all or none goes with it."""
    one = replace(candidate("a", 0.5, "input"), profiled_ns=200_000_000)
    found = session(Job(gains={"a": 0.5}, between=0.0, within=0.0, drift=0.0), one)
    row = found.tried[0]
    assert row["before_ns"] == pytest.approx(50e6, rel=0.01)
    assert (row["predicted_ns"], row["low_ns"]) == pytest.approx((25e6, 0), rel=0.01, abs=1)
    assert row["high_ns"] == pytest.approx(25e6 * math.exp(math.hypot(math.log(2), 0.217)), rel=0.01)


@pytest.mark.parametrize("between", [0.003, 0.03, 0.07])
def test_a_predicted_range_holds_what_runs_differ_by(between: float) -> None:
    """The predictions are right to the last ns: all that the measured step is off by is chance."""
    jobs = [Job(seed, {"a": 0.3}, between=between) for seed in range(SESSIONS)]
    rows = [session(job, candidate("a", 0.7)).tried[0] for job in jobs]
    held = sum(row["low_ns"] <= row["measured_ns"] <= row["high_ns"] for row in rows)  # type: ignore[operator]
    assert held >= 0.88 * SESSIONS


def test_what_fails_together_is_tried_alone() -> None:
    found = session(Job(gains={"a": 0.4, "b": 0.5}, fails={"b": "failed"}), "a", "b", apart=True)
    assert [(row["code"], row["outcome"]) for row in found.tried] == [
        ("a + b", "failed"),
        ("a", "faster"),
        ("b", "failed"),
    ]


def test_a_change_that_can_not_be_made_leaves_the_others_together() -> None:
    job = Job(gains={"a": 0.4, "c": 0.3}, fails={"b": "not_applied"})
    found = session(job, "a", "b", "c", apart=True)
    assert [(row["code"], row["outcome"], row["runs"]) for row in found.tried] == [
        ("b", "not_applied", 0),
        ("a + c", "faster", 1),
    ]
    assert kept(found) == ["a + c"]
    assert len(job.runs) == 4  # two for the baseline, one for a and c, a profile of these


def test_what_one_run_can_not_settle_waits_for_the_others() -> None:
    job = Job(gains={"a": 0.03, "c": 0.4}, between=0.03, seed=3, most=4)
    assert kept(session(job, "a", "c")) == ["c"]  # profile, baseline, a, c
    patient = session(Job(gains={"a": 0.1}, between=0.01), "a", candidate("b", 0.97))
    assert [row["code"] for row in patient.tried if row["kept"]] == ["a"]
    assert len({row["code"] for row in patient.tried}) == len(
        patient.tried
    )  # one row each, however often it was resumed


def test_what_touches_one_knob_answers_one_finding_or_alters_training_is_not_tried_together() -> None:
    first, same, other = candidate("a", 0.5, "input"), candidate("b", 0.5, "input"), candidate("c", 0.9, "gc")
    assert together([first, same, other]) == [first, other]
    assert together([first, replace(first, code="c", findings=frozenset({"gc"}))]) == [first]
    assert together([first, other], lambda change: change.name == "a") == [first]
    assert together([first, replace(other, after=None, low=None, high=None)]) == [first]  # nothing is known of it


@pytest.mark.parametrize("long", [(1.7, 1.0), (1.0, 1.7)])
def test_a_gain_that_the_machine_made_up_is_not_kept(long: tuple[float, float]) -> None:
    """One of the first two runs was long by chance, under the profiler or without: the other one counts, too."""
    job = Job()
    first, rest = iter(long), job.timed
    job.timed = lambda *asked: _longer(rest(*asked), next(first, 1.0))  # type: ignore[method-assign]
    assert kept(session(job, "a")) == []


def _longer(run: Run | None, times: float) -> Run | None:
    assert run is not None
    assert run.step is not None
    return replace(run, step=replace(run.step, median=run.step.median + math.log(times)))


def test_what_is_not_clear_is_run_beside_the_best() -> None:
    """Best and change take turns, so that what drifts meets both."""
    job = Job(3, {"a": 0.04}, between=0.01)
    session(job, "a")
    names = [name for name, _ in job.runs if name in ("best", "trial-1")]
    assert names[:3] == ["trial-1", "best", "trial-1"]


@pytest.mark.parametrize("moved", [0.01, -0.01, math.nan])
def test_a_moved_loss_is_rolled_back_however_fast(moved: float) -> None:
    found = session(Job(gains={"a": 0.5}, moves={"a": moved}), "a")
    row = found.tried[0]
    assert (row["kept"], row["outcome"], row["runs"]) == (False, "losses_moved", 2)
    assert "losses of the first steps moved" in row["why"]


def test_the_order_of_sums_moves_losses_by_less() -> None:
    assert kept(session(Job(gains={"a": 0.5}, moves={"a": 1e-5}), "a")) == ["a"]


@pytest.mark.parametrize("how", ["hung", "failed", "no_steps", "not_applied"])
def test_a_trial_that_ends_badly_ends_alone(how: str) -> None:
    found = session(Job(gains={"b": 0.5}, fails={"a": how}), "a", "b")  # type: ignore[dict-item]
    assert [(row["outcome"], row["kept"]) for row in found.tried] == [(how, False), ("faster", True)]
    assert found.tried[0]["measured_ns"] is None


@pytest.mark.parametrize("most", range(2, 12))
def test_the_budget_is_never_exceeded(most: int) -> None:
    job = Job(gains={"a": 0.5, "b": 0.02, "c": 0.3}, most=most)
    found = session(job, "a", "b", "c")
    assert len(job.runs) <= most
    assert found.ended in ("budget", "done")
    assert found.figures()["best_step_ns"] > 0


def test_ctrl_c_leaves_the_best_found() -> None:
    job = Job(gains={"a": 0.5, "b": 0.5}, interrupt_at=4)
    found = session(job, "a", "b")
    assert (found.ended, kept(found)) == ("interrupted", ["a"])
    assert found.figures()["best_step_ns"] < 0.6 * found.figures()["baseline_step_ns"]


def test_the_step_holds_what_comes_round_every_few_steps() -> None:
    """Four loader workers deliver four batches at once: the median of single steps would be the short ones."""
    part = RankPart(rank=0, facts={"step_ns": [10, 10, 10, 170] * 15})
    step = step_of([part])
    assert step is not None
    assert math.exp(step.median) == pytest.approx(50)


def test_batches_that_were_ready_are_no_steady_step() -> None:
    settings = {"dataloader.num_workers": [{"value": "8"}], "dataloader.prefetch_factor": [{"value": "2"}]}
    steps = [100] * 10 + [1] * 16 + [20] * 40
    step = step_of([RankPart(rank=0, facts={"step_ns": steps, "settings": settings})])
    assert step is not None
    assert math.exp(step.median) == pytest.approx(20)


def test_the_slowest_rank_counts() -> None:
    parts = [RankPart(rank=rank, facts={"step_ns": [ns] * 40}) for rank, ns in enumerate((100, 120))]
    step = step_of(parts)
    assert step is not None
    assert math.exp(step.median) == pytest.approx(120)
