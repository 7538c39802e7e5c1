"""Steps of jobs for reinforcement learning by role: what bounds them, and what changes of schedule and GPUs give."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random
from statistics import median

import pytest
from simulator import rl_jobs

import gpuscope
from benchmarks.roles.drawn import judged
from gpuscope.analyzers.roles.role_gains import Lengths, fitted
from gpuscope.analyzers.roles.role_replay import Schedule, bounding, durations, times_of
from gpuscope.dashboards.figures.gains_figure import timeline
from gpuscope.report.view.first_lines import first_lines
from gpuscope.schema.document import Report
from gpuscope.sources.opening import open_trace

SEEDS = range(5000, 5024)
"""None of these was looked at while the analysis was made."""


def test_drawn_jobs_are_judged_right_and_predicted_well(tmp_path: Path) -> None:
    found = [judged(seed, tmp_path) for seed in SEEDS]
    assert sum(right for _, right, _ in found) >= 0.95 * len(found)
    outcomes = [one for _, _, own in found for one in own]
    figures = [one for one in outcomes if one.predicted is not None]
    assert len(figures) > 2 * len(found)
    assert median(abs((one.predicted or 0) / one.true - 1) for one in figures) <= 0.05
    assert sum(one.low <= one.true <= one.high for one in figures) >= 0.9 * len(figures)
    assert all(one.true >= 0.95 * one.low for one in outcomes if one.predicted is None)


S = 1_000_000_000
STEPS = [{"rollout": 6 * S, "reward": 4 * S, "log_probs": 2 * S, "update_actor": 5 * S, "weight_sync": S}] * 4


def test_steps_replayed_by_hand() -> None:
    cases = {
        Schedule(): [18 * S] * 4,
        # the log-probs run beside the reward, which takes 2 s more
        Schedule(reward_beside=True): [16 * S] * 4,
        # 1 s of weights, then 11 s of training beside 6 s of rollout
        Schedule(beside=True): [12 * S] * 3,
    }
    for schedule, expected in cases.items():
        assert durations(STEPS, schedule) == expected
    assert durations(STEPS[:1], Schedule(beside=True)) == [12 * S]  # a step recorded alone is like the one before it
    gains = bounding(STEPS, Schedule(beside=True))
    assert next(iter(gains)) == "update_actor"
    assert gains["rollout"] == 0
    assert gains["update_actor"] == 2_500_000_000


def test_the_rollouts_parts_are_found_from_the_lengths_alone() -> None:
    random = Random(3)
    lengths = [Lengths(random.uniform(800, 1600), random.uniform(4000, 9000)) for _ in range(40)]
    took = [round((0.01 * one.longest + 0.03 * one.mean) * S * random.gauss(1, 0.005)) for one in lengths]
    model = fitted(took, lengths)
    assert model is not None
    true = median(0.03 * one.mean * S / ns for one, ns in zip(lengths, took, strict=True))
    assert model.shares.tokens == pytest.approx(true, abs=0.05)
    low, high = (end(case.tokens for case in model.cases) for end in (min, max))
    assert low - 0.01 <= true <= high + 0.01
    assert high - low < 0.2
    assert fitted(took[:5], lengths[:5]) is None
    assert fitted([S * random.randint(1, 99) for _ in lengths], lengths) is None


def test_a_mean_below_a_limit_is_that_of_the_distribution() -> None:
    random = Random(5)
    drawn = sorted(round(random.lognormvariate(7, 0.8)) for _ in range(4000))
    told = Lengths(sum(drawn) / len(drawn), drawn[-1], samples=len(drawn))
    for limit in (1000, 3000):
        assert told.capped(limit) == pytest.approx(sum(min(one, limit) for one in drawn) / len(drawn), rel=0.1)
    assert told.capped(10**6) == told.mean


def reports(tmp_path: Path, kind: str, fault: str, most: int) -> list[Report]:
    """Of the first jobs of that kind and fault in which the fault's role is the one that bounds the step."""
    roles = {"slow_reward": "reward", "slow_sync": "weight_sync", "slow_update": "update_actor"}
    drawn = (rl_jobs.drawn(seed) for seed in range(400))
    fitting = (job for job in drawn if (job.kind, job.fault) == (kind, fault))
    bound = (job for job in fitting if next(iter(rl_jobs.bounding(job))) == roles.get(fault, "rollout"))
    found = []
    for job in islice(bound, most):
        log = tmp_path / "job.log"
        log.write_text(rl_jobs.logged(job))
        found.append(gpuscope.analyze(log).report)
    return found


@pytest.mark.parametrize(
    ("kind", "fault", "bound_by", "codes", "others"),
    [
        ("colocated", "slow_rollout", "rollout", {"split_roles"}, {"reward_beside", "weight_transfer", "move_gpus"}),
        ("colocated", "long_tail", "rollout", {"cap_response", "asynchronous_rollouts"}, {"overlap_rollout"}),
        ("colocated", "slow_reward", "reward", {"reward_beside"}, {"move_gpus"}),
        ("colocated", "slow_sync", "weight_sync", {"weight_transfer"}, {"reward_beside"}),
        ("separate", "slow_update", "update_actor", {"overlap_rollout"}, {"split_roles"}),
        ("one_step_off", "few_rollout_gpus", "rollout", {"move_gpus"}, {"overlap_rollout", "split_roles"}),
    ],
)
def test_each_fault_is_named_and_answered(
    tmp_path: Path, kind: str, fault: str, bound_by: str, codes: set[str], others: set[str]
) -> None:
    answered = set()
    for found in reports(tmp_path, kind, fault, 4):
        section = found["roles"]
        assert section["bound_by"] == bound_by
        assert section["asynchronous"] == (kind == "one_step_off")
        assert section["replay_error_frac"] is not None
        assert section["replay_error_frac"] < 0.05
        answered |= {one["code"] for one in (*found["suggestions"], *found["advice"]["unpredicted"])}
        assert found["step_time"] is not None
        for one in found["suggestions"]:
            predicted = one["predicted"]
            assert predicted["low_ns"] <= predicted["step_ns_after"] <= predicted["high_ns"]
            assert predicted["step_ns_before"] == found["step_time"]["median_ns"]
    assert codes <= answered
    assert not others & answered


def test_idle_gpus_are_those_of_the_side_that_waits(tmp_path: Path) -> None:
    section = reports(tmp_path, "separate", "slow_rollout", 1)[0]["roles"]
    step = median(one["dur_ns"] for one in section["steps"])
    rollout = next(one["per_step_ns"] for one in section["roles"] if one["role"] == "rollout")
    idle = {pool["pool"]: pool["idle_frac"] for pool in section["pools"]}
    assert idle["trainer"] > 0.3
    assert idle["rollout"] == pytest.approx(1 - rollout / step, abs=0.15)


def test_nothing_is_said_of_gpus_and_lengths_that_no_line_tells(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    rows = (f'{{"step": {n}, "timing/train/generation": 5.0, "timing/train/total_step_time": 9.0}}' for n in range(9))
    log.write_text("\n".join(rows))
    section = gpuscope.analyze(log).report["roles"]
    [pool] = section["pools"]
    assert (pool["pool"], pool["gpus"]) == ("all", None)
    assert pool["idle_frac"] == pytest.approx(4 / 9)
    assert all(gain["predicted"] is None for gain in section["gains"])
    report = gpuscope.analyze(log).report
    told = {one["code"] for one in (*report["suggestions"], *report["advice"]["unpredicted"])}
    assert not told & {"cap_response", "asynchronous_rollouts"}  # no lengths of responses


def test_the_timeline_holds_every_part(tmp_path: Path) -> None:
    steps = reports(tmp_path, "colocated", "slow_rollout", 1)[0]["roles"]["steps"]
    drawn = timeline(steps, dark=False)
    assert {bar.name for bar in drawn.data} >= {"rollout", "actor update", "weight sync"}
    assert sum(len(bar.x) for bar in drawn.data) == sum(len(step["by_role_ns"]) for step in steps[-40:])


def test_unlogged_rollouts_take_what_the_training_and_the_wait_do(tmp_path: Path) -> None:
    times = {"gen": 4.0, "sync_rollout_weights": 1.0, "update_actor": 10.0, "step": 15.0}
    line = " - ".join(f"timing_s/{name}:{took}" for name, took in times.items())
    log = tmp_path / "a.log"
    log.write_text("\n".join(f"step:{number} - {line}" for number in range(1, 6)))
    from gpuscope.analyzers.facts.steady_state import role_steps

    found = times_of(role_steps(open_trace(log)).steps, beside=True)
    assert [step["rollout"] for step in found] == [14 * S] * 5
    assert durations(found, Schedule(beside=True)) == [15 * S] * 4


def grown(tmp_path: Path, update: list[float], lengths: list[float] | None, line: str = "") -> Report:
    """A log with these times of the update, a rollout of 4 s, and these lengths of responses."""
    lines = []
    for n, (took, length) in enumerate(zip(update, lengths or update, strict=True), 1):
        told = f" - response_length/mean:{length:.1f}" if lengths else ""
        plain = f"step:{n} - timing_s/gen:4.0 - timing_s/update_actor:{took:.3f} - timing_s/step:{took + 5:.3f}{told}"
        lines.append(line.format(n=n, took=took, whole=took + 5, length=length) if line else plain)
    (tmp_path / "job.log").write_text("\n".join(lines))
    return gpuscope.analyze(tmp_path / "job.log").report


def noisy(values: list[float], spread: float = 0.03, seed: int = 1) -> list[float]:
    random = Random(seed)
    return [value * random.gauss(1, spread) for value in values]


OPENRLHF = (
    "Global step {n}: {{'response_length': {length}, 'timing/generation': 4.0, 'timing/ppo_train': {took}, "
    "'timing/step_total': {whole}}}"
)
SLIME = (
    "perf {n}: {{'rollout/response_len/mean': {length}, 'perf/rollout_time': 4.0, 'perf/actor_train_time': {took}, "
    "'perf/step_time': {whole}}}"
)


@pytest.mark.parametrize("line", ["", OPENRLHF, SLIME], ids=["verl", "openrlhf", "slime"])
@pytest.mark.parametrize("steps", [10, 40, 200])
def test_growth_with_the_responses_is_more_work(tmp_path: Path, line: str, steps: int) -> None:
    lengths = [400 + 800 * n / steps for n in range(steps)]
    report = grown(tmp_path, noisy([length / 40 for length in lengths]), lengths, line)
    (finding,) = (one for one in report["findings"] if one["code"] == "role_growth")
    assert finding["severity"] == "low"
    assert "more work at the same tokens/s, not a leak" in finding["message"]
    (entry,) = report["roles"]["growth"]
    assert entry["role"] == "update_actor"
    assert entry["last_ns"] / entry["first_ns"] == pytest.approx(3, rel=0.15)
    assert entry["figure"] == "response_length_mean"
    assert first_lines(report).why.startswith("actor update grows")


def test_growth_at_the_same_lengths_is_slower_work(tmp_path: Path) -> None:
    report = grown(tmp_path, noisy([10.0 + n for n in range(30)]), noisy([500.0] * 30, seed=2))
    (finding,) = (one for one in report["findings"] if one["code"] == "role_growth")
    assert finding["severity"] == "medium"
    assert "the same work takes longer" in finding["message"]


def test_growth_beyond_the_responses_tells_both(tmp_path: Path) -> None:
    lengths = [500 * (1 + n / 60) for n in range(30)]
    report = grown(tmp_path, noisy([length * (1 + n / 15) / 50 for n, length in enumerate(lengths)]), lengths)
    (entry,) = report["roles"]["growth"]
    assert entry["slower_times"] == pytest.approx(3, rel=0.15)
    (message,) = (one["message"] for one in report["findings"] if one["code"] == "role_growth")
    assert "times as long per token" in message


def test_growth_without_lengths_says_what_the_log_lacks(tmp_path: Path) -> None:
    report = grown(tmp_path, noisy([10.0 + n for n in range(30)]), None)
    (message,) = (one["message"] for one in report["findings"] if one["code"] == "role_growth")
    assert "neither tokens nor lengths" in message


@pytest.mark.parametrize(
    "update",
    [
        noisy([10.0] * 40, 0.2),
        [10.0 + n for n in range(6)],
        noisy([20 - n / 4 for n in range(40)]),
        [0.1 + n / 100 for n in range(30)],
        [10.0] * 29 + [40.0],
    ],
    ids=["noise", "few steps", "shorter", "a small role", "a single long step"],
)
def test_what_does_not_grow_is_no_finding(tmp_path: Path, update: list[float]) -> None:
    assert grown(tmp_path, update, [500.0] * len(update))["roles"]["growth"] == []
