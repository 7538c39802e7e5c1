"""The verdict: by the largest class, with a confidence that falls with what is not known."""

from __future__ import annotations

import dataclasses

import pytest

from gpuscope.analyzers.frame.verdict import Evidence, bound, decide

CLEAR = Evidence(
    window=1000,
    causes={"input": 400},
    idle=400,
    ranks_present=1,
    world_size=1,
    launches=100,
    kernels_lost=0,
    events=100,
    launch_missing=0,
    events_lost=0,
    steps=5,
    assumed=(),
    why_no_device="",
    hung=False,
    waits_matched=False,
)


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ({"input": 99}, ("compute", None)),  # just below the line
        ({"input": 100}, ("cpu", "input")),
        ({"input": 60, "sync": 60, "bandwidth": 110}, ("cpu", "input")),  # classes are summed before they compete
        ({"straggler": 150, "copy": 100, "paging": 60}, ("memory", "copy")),
        ({"allocator": 200}, ("memory", "allocator")),  # idle by part, memory by class
        ({"communication:unattributed": 300, "latency": 100}, ("communication", None)),
        ({"unattributed": 900}, ("compute", None)),  # of no class; decide() abstains before it comes to this
    ],
)
def test_bound(causes: dict[str, int], expected: tuple[str, str | None]) -> None:
    assert bound(causes, 1000)[:2] == expected


def test_clear_case_is_near_certain() -> None:
    verdict = decide(CLEAR)
    assert (verdict["bound_by"], verdict["cause"], verdict["share_frac"]) == ("cpu", "input", 0.4)
    assert verdict["confidence"] == 0.95


@pytest.mark.parametrize(
    "change",
    [
        {"kernels_lost": 30},
        {"events_lost": 50},
        {"launch_missing": 60},
        {"causes": {"input": 400, "straggler": 350}},
        {"causes": {"input": 105}},
        {"causes": {"input": 400, "unattributed": 300}},
        {"assumed": ("input",)},
        {"world_size": 8},
        {"steps": 0},
    ],
)
def test_each_doubt_lowers_confidence(change: dict[str, object]) -> None:
    doubtful = decide(dataclasses.replace(CLEAR, **change))  # type: ignore[arg-type]
    assert not doubtful["abstained"]
    assert doubtful["confidence"] < decide(CLEAR)["confidence"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"window": 0, "events": 0}, "no device events"),
        ({"hung": True}, "the job hung"),
        ({"kernels_lost": 60}, "launches have no kernel"),
        ({"causes": {"unattributed": 400}}, "no host events"),
        ({"causes": {"bandwidth": 400}, "world_size": 8, "idle": 0}, "1 of 8 ranks"),
        ({"causes": {"bandwidth": 400}, "world_size": None, "idle": 0}, "rank is here"),
    ],
)
def test_abstains(change: dict[str, object], why: str) -> None:
    verdict = decide(dataclasses.replace(CLEAR, **change))  # type: ignore[arg-type]
    assert verdict["abstained"]
    assert verdict["bound_by"] is None
    assert why in verdict["why"]


def test_why_there_are_no_device_events_is_said_once() -> None:
    told = decide(dataclasses.replace(CLEAR, events=0, why_no_device="no device events: CUDA was not traced"))
    assert told["why"] == "no device events: CUDA was not traced"


def test_one_input_bound_rank_of_eight_does_not_abstain() -> None:
    assert decide(dataclasses.replace(CLEAR, world_size=8))["cause"] == "input"
