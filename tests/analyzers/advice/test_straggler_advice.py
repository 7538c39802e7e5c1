"""Advice on late ranks follows the reason that the trace shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers.advice import blocking, finding, host_calls, report

from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import Change, EvenStages, Predicted, ReplacedRank, Schedule, SharedWork
from gpuscope.schema.document import LateGroupEntry, Report


def gains(changes: Sequence[Change]) -> Predicted:
    assert changes in ((ReplacedRank(1),), (SharedWork(1),))
    return Predicted(100, 40, 30, 50, "a test")


def late(reason: str | None, recurrent: bool = True, ranks: int = 2, cause: str = "gc") -> Report:
    """Rank 1 of so many is late, with the reason `host` for a cause."""
    case = report(finding("straggler", ranks=(1,)), bound_by="communication", cause="straggler")
    case["stragglers"] = [
        {
            "rank": 1,
            "caused_wait_ns": 9,
            "phase": None,
            "recurrent": recurrent,
            "reason": reason,
            "root_wait_ns": 9,
            "reason_why": "so it is",
        }
    ]  # type: ignore[list-item]
    first = case["ranks"][0]
    case["ranks"] = [
        {**first, "rank": rank, "stall_ns": {**first["stall_ns"], "cpu": {"launch": 5}}} for rank in range(ranks)
    ]
    if reason == "host":
        case["stragglers"][0]["host_cause"] = cause
    return case


def test_a_slow_device_is_checked_and_drained() -> None:
    [one], _ = advise(late("device"), gains)
    assert (one["code"], one["setting"]) == (
        "slow_rank",
        {"kind": "config", "name": "node of rank 1", "value": "drained until it is checked"},
    )
    assert one["predicted"]["step_ns_after"] == 40


@pytest.mark.parametrize("device", [0, None])
def test_slow_devices_that_hide_each_other_are_blamed_on_devices_alone(device: int | None) -> None:
    """Ranks on CPU take turns where they share cores: the pace of a rank that is not late each time is no fault."""
    case = late("device", recurrent=False)
    case["findings"][0]["ranks"] = [0, 1]
    for rank in case["ranks"]:
        rank["device"] = device
    assert [one["code"] for one in advise(case, gains)[0]] == ([] if device is None else ["slow_rank"])


def test_more_data_is_shared_by_all_ranks() -> None:
    asked: list[Change] = []

    def shared(changes: Sequence[Change]) -> Predicted:
        asked.extend(changes)
        return gains(changes)

    [one], _ = advise(late("data"), shared)
    assert (one["code"], asked) == ("even_data", [SharedWork(1)])
    assert "replace" not in one["action"]


@pytest.mark.parametrize(
    ("phase", "code"), [("before forward", "own_work"), (None, "even_data"), ("in forward", "even_data")]
)
def test_code_of_one_rank_is_no_data(phase: str | None, code: str) -> None:
    """What no other rank runs is code of its own, but not where a model may run it for some inputs alone."""
    case = late("data")
    case["stragglers"][0] |= {"phase": phase, "own_operation": "aten::mm"}  # type: ignore[typeddict-item]
    [one], _ = advise(case, gains)
    assert one["code"] == code
    if code == "own_work":
        assert one["setting"]["value"].startswith("removed")
        assert "aten::mm" in one["action"]
    assert advise(late("data"), gains)[0][0]["code"] == "even_data"


@pytest.mark.parametrize(("cause", "begins"), [("input", "Find out why batches"), ("gc", "Collect garbage")])
def test_a_late_host_gets_the_advice_of_its_own_cause(cause: str, begins: str) -> None:
    [one], _ = advise(late("host", cause=cause), gains)
    assert one["code"] == "late_host"
    assert one["action"].startswith(begins)
    assert one["action"].endswith("on rank 1")


@pytest.mark.parametrize(
    ("trouble", "both", "told"),
    [
        ("sync", 30, ["remove_syncs"]),
        ("sync", 20, ["late_host", "remove_syncs"]),
        ("straggler", 30, ["late_host", "remove_syncs"]),
    ],
)
def test_a_late_host_goes_without_saying_where_its_cause_is_mended_on_all(
    trouble: str, both: int, told: list[str]
) -> None:
    """Not where it gains beside that, nor where it is the trouble."""
    case = late("host", cause="sync")
    case["findings"].append(finding("sync"))
    case["host_calls"] = [host_calls(blocking_calls=[blocking("cudaStreamSynchronize")])]
    case["verdict"] |= {"bound_by": "cpu" if trouble == "sync" else "communication", "cause": trouble}

    def predict(changes: Sequence[Change]) -> Predicted:
        after = both if len(changes) > 1 else 40 if ReplacedRank(1) in changes else 30
        return Predicted(100, after, after, after, "a test")

    assert sorted(one["code"] for one in advise(case, predict)[0]) == told


def test_without_a_reason_it_says_what_to_record() -> None:
    [one], _ = advise(late(None), gains)
    assert "before replacing anything" in one["action"]
    assert one["setting"]["name"] == "torch.profiler.profile.record_shapes"


@pytest.mark.parametrize("reason", ["device", "cores", None])
def test_no_pace_is_to_blame_where_threads_wait_for_cores(reason: str | None) -> None:
    case = late(reason)
    case["findings"].append(finding("waits_for_core"))
    suggestions, advice = advise(case, gains)
    assert (suggestions, advice["unpredicted"]) == ([], [])


def test_more_data_is_more_data_also_where_threads_wait_for_cores() -> None:
    case = late("data")
    case["findings"].append(finding("waits_for_core"))
    [one], _ = advise(case, gains)
    assert one["code"] == "even_data"


def test_a_rank_that_waits_for_a_core_is_never_replaced() -> None:
    suggestions, advice = advise(late("cores"), gains)
    assert (suggestions, advice["unpredicted"]) == ([], [])


def test_the_first_stage_that_ends_a_pipeline_last_is_not_to_blame() -> None:
    """It is last in every step, no wait goes back to it, and nothing sets it apart."""
    case = late(None)
    case["stragglers"][0]["root_wait_ns"] = 0
    suggestions, advice = advise(case, gains)
    assert (suggestions, advice["unpredicted"]) == ([], [])


def test_a_stage_with_more_layers_is_no_rank_with_more_data() -> None:
    case = late("data")
    case["stragglers"][0]["root_wait_ns"] = 0
    case["pipeline"] = {"stages": []}  # type: ignore[typeddict-item]
    assert advise(case, gains)[0] == []


def test_work_besides_a_pipeline_is_taken_off_its_rank() -> None:
    case = report(finding("work_outside_pipeline", ranks=(1,)), bound_by="communication", cause="pipeline_bubble")
    assert not advise(case, gains)[0]  # what waits for the rank is not seen
    case["collectives"] = [
        {
            "op": "send",
            "group": "pp",
            "count": 2,
            "bytes": 8,
            "size_basis": None,
            "dur_ns": 2,
            "wait_ns": 1,
            "transfer_ns": 1,
            "algbw_gbps": None,
            "busbw_gbps": None,
            "lower_bound": False,
        }
    ]
    [one], _ = advise(case, gains)
    assert one["code"] == "outside_work"
    assert "replace" not in one["action"]


def test_what_answers_a_late_stage_comes_before_what_gains_more_elsewhere() -> None:

    def of_trace(changes: Sequence[Change]) -> Predicted:
        if changes == (EvenStages(),):
            return Predicted(100, 60, 50, 70, "a test")
        if changes == (Schedule("1f1b"),):
            return Predicted(100, best, best - 5, best + 5, "a test")
        return Predicted(100, 100, 100, 100, "a test")

    def codes() -> list[str]:
        case = report(
            finding("slow_stage", ranks=(1,)), finding("few_micro_batches"), bound_by="communication", cause="straggler"
        )
        return [one["code"] for one in advise(case, of_trace)[0]]

    best = 55
    assert codes()[:2] == ["even_stages", "pipeline_schedule"]
    best = 20
    assert codes()[:2] == ["even_stages", "pipeline_schedule"]


def test_who_is_late_no_more_often_than_by_chance_is_not_to_blame() -> None:
    suggestions, advice = advise(late("data", recurrent=False), gains)
    assert (suggestions, advice["unpredicted"]) == ([], [])


def test_ranks_that_take_turns_get_even_batches_and_a_bound_where_they_may_share_cores() -> None:
    case = late(None, recurrent=False)
    case["stragglers"].append({**case["stragglers"][0], "rank": 0})
    case["findings"][0]["ranks"] = [0, 1]
    asked: list[Change] = []

    def even(changes: Sequence[Change]) -> Predicted:
        asked.extend(changes)
        return Predicted(100, 40, 30, 50, "a test")

    [one], _ = advise(case, even)
    assert (one["code"], set(asked)) == ("even_data", {SharedWork()})
    for rank in case["ranks"]:
        rank["device"] = None
    case["trace"]["parallelism"] = {"dp": 2}
    suggestions, advice = advise(case, even)
    assert suggestions == []
    (bounded,) = advice["unpredicted"]
    assert bounded["code"] == "even_data"
    assert "on a CPU" in bounded["why_not"]
    case["trace"] = {**case["trace"], "parallelism": {"tp": 2}, "frameworks": []}  # these share their batch
    assert advise(case, even)[1]["unpredicted"] == []


def test_a_group_is_mended_as_one() -> None:
    """Ranks 1 and 3, of which 1 makes others wait and 3 is hidden behind it."""
    asked: list[Change] = []

    def both(changes: Sequence[Change]) -> Predicted:
        asked.extend(changes)
        return Predicted(100, 40, 30, 50, "a test")

    case = late("device", ranks=4)
    group: LateGroupEntry = {"ranks": [1, 3], "by": "host", "name": "node1"}
    case["stragglers"][0]["group"] = group
    case["stragglers"].append({**case["stragglers"][0], "rank": 3, "caused_wait_ns": 0, "root_wait_ns": 0})
    case["findings"][0]["ranks"] = [1, 3]
    [one], _ = advise(case, both)
    assert one["action"] == "Check the device of ranks 1,3 (host node1), and drain or replace the node"
    assert set(asked) == {ReplacedRank(1), ReplacedRank(3)}
    assert one["facts"]["ranks"] == [1, 3]
