"""The verdict: by the largest class, with a confidence that falls with what is not known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.kineto import Event, call, copy, kernel, op, write

import gpuscope
from gpuscope.analyzers.verdict.cause_findings import Unexplained
from gpuscope.analyzers.verdict.verdict import Evidence, bound, decide
from gpuscope.schema.document import Report, Slowdown

CLEAR = Evidence(
    window=1000,
    causes={"input": 400},
    idle=400,
    ranks=(0,),
    world_size=1,
    launches=100,
    kernels_lost=0,
    events=100,
    launch_missing=0,
    events_lost=0,
    why_whole="",
    thinned="",
    assumed=(),
    why_no_device="",
    hung=False,
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
        {"why_whole": "no steps were found, so the whole window is judged"},
        {"world_assumed": True},
    ],
)
def test_each_doubt_lowers_confidence(change: dict[str, object]) -> None:
    doubtful = decide(dataclasses.replace(CLEAR, **change))  # type: ignore[arg-type]
    assert not doubtful["abstained"]
    assert doubtful["confidence"] < decide(CLEAR)["confidence"]


@pytest.mark.parametrize("stacks", [False, True])
def test_stacks_that_are_recorded_are_not_asked_for(stacks: bool) -> None:
    unexplained = Unexplained(True, stacks=stacks)
    verdict = decide(dataclasses.replace(CLEAR, causes={"unattributed": 400}, unexplained=unexplained))
    assert ("with_stack" in verdict["record"]) != stacks


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"window": 0, "events": 0}, "no device events"),
        ({"hung": True}, "the job hung"),
        ({"timelines_cut": 1}, "the file is cut off, so where the device seems idle"),
        ({"timelines_cut": 2, "events": 0}, "2 files are cut off, and what is left holds no device events"),
        ({"kernels_lost": 60}, "launches have no kernel"),
        ({"causes": {"unattributed": 400}}, "no host events"),
        (
            {"causes": {"unattributed": 400}, "unexplained": Unexplained(True, "hipMemcpyWithStream", 493_000_000)},
            "hipMemcpyWithStream covers 493.0 ms of it, but what that waits for is not recorded",
        ),
        ({"causes": {"unattributed": 400}, "unexplained": Unexplained(True)}, "no call is recorded in it"),
        ({"worked": 90_000, "events": 9, "copies_alone": True}, "is 9 operations, 90.00 µs together, no kernel"),
        ({"worked": 1_500, "events": 1}, "the device's work in all that is judged is 1 operation, 1.500 µs together"),
        (
            {"thinned": "of the ids of operators 1.4 % are there"},
            "of the ids of operators 1.4 % are there, as if the recording were sampled",
        ),
        ({"contradiction": "rank 0: 103 %"}, "a bug of gpuscope: rank 0: 103 %"),
    ],
)
def test_abstains(change: dict[str, object], why: str) -> None:
    verdict = decide(dataclasses.replace(CLEAR, **change))  # type: ignore[arg-type]
    assert verdict["abstained"]
    assert verdict["bound_by"] is None
    assert why in verdict["why"]


def test_why_there_are_no_device_events_is_said_once() -> None:
    told = decide(dataclasses.replace(CLEAR, events=0, why_no_device="CUDA was not traced"))
    assert (told["why"], told["record"]) == ("no device events: CUDA was not traced", "CUDA was not traced")


def test_a_cut_file_is_judged_where_the_device_is_busy() -> None:
    busy = dataclasses.replace(CLEAR, idle=50, causes={"bandwidth": 400, "launch": 50}, timelines_cut=1)
    assert decide(busy)["bound_by"] == "communication"


@pytest.mark.parametrize(
    ("world_size", "unjudged", "why"),
    [
        (8, [], "add the traces of ranks 1-7"),
        (2, [], "add the traces of rank 1"),
        (None, [], "add the traces of all ranks; how many there are is not recorded"),
        (1, [], "record the sizes of collectives"),
        (1, [0], "record more steps: the files of rank 0 hold none of those that are judged"),
    ],
)
def test_the_class_stands_where_only_its_cause_is_open(world_size: int | None, unjudged: list[int], why: str) -> None:
    """40 % of the time is exposed communication, whatever its cause."""
    open_cause = {
        "causes": {"communication:unattributed": 400},
        "world_size": world_size,
        "idle": 0,
        "unjudged": unjudged,
    }
    verdict = decide(dataclasses.replace(CLEAR, **open_cause))  # type: ignore[arg-type]
    assert (verdict["bound_by"], verdict["cause"], verdict["share_frac"]) == ("communication", None, 0.4)
    assert (verdict["abstained"], verdict["cause_abstained"]) == (False, True)
    assert why in verdict["why"]


def test_confidence_of_a_class_without_cause() -> None:
    """Nothing else competes: 0.5 + 0.5 · 1, capped at 0.95 as of any verdict; ranks that are known to be missing take
    a tenth, an unknown number of ranks a fifth."""
    open_cause = dataclasses.replace(CLEAR, causes={"communication:unattributed": 400}, idle=0)
    found = [decide(dataclasses.replace(open_cause, world_size=size))["confidence"] for size in (1, 8, None)]
    assert found == [0.95, 0.9, 0.8]


def test_a_cause_is_named_only_where_it_exceeds_what_is_open() -> None:
    """Of 400 exposed, 250 are known to be waiting: `straggler`, less surely; with 150 it is left open."""
    known, left_open = (
        decide(dataclasses.replace(CLEAR, causes={"communication:unattributed": 400 - ns, "straggler": ns}, idle=0))
        for ns in (250, 150)
    )
    assert (known["cause"], known["cause_abstained"]) == ("straggler", False)
    assert known["confidence"] == pytest.approx(1 - 150 / 400, abs=0.01)
    assert (left_open["cause"], left_open["cause_abstained"], left_open["share_frac"]) == (None, True, 0.4)


def test_an_assumed_world_is_named() -> None:
    verdict = decide(dataclasses.replace(CLEAR, ranks=(0, 1), world_size=2, world_assumed=True))
    assert (verdict["cause"], verdict["confidence"]) == ("input", 0.9)
    assert verdict["why"].endswith("the 2 ranks in these files are assumed to be the whole job")


def test_the_whole_window_is_named() -> None:
    why = "only 1 steady step, so the whole window except set-up is judged"
    verdict = decide(dataclasses.replace(CLEAR, why_whole=why))
    assert (verdict["cause"], verdict["confidence"]) == ("input", 0.8)
    assert verdict["why"].endswith(why)


@pytest.mark.parametrize(
    ("total", "bound_by", "cause", "share"),
    [
        (1.25, "communication", "straggler", 0.2),  # 1 − 1/1.25
        (1.1, "communication", "straggler", 1 - 1 / 1.1),
        (1.09, "compute", None, 1 / 1.09),
        (0.98, "compute", None, 1.0),
    ],
)
def test_operations_alone(total: float, bound_by: str, cause: str | None, share: float) -> None:
    """A job known by its operations: bound by its stragglers from a slowdown of 1.1 on."""
    slowdown: Slowdown = {
        "total": total,
        "provenance": "measured",
        "by_operation": {},
        "by_rank": {},
        "by_stage": {},
    }
    verdict = decide(dataclasses.replace(CLEAR, events=0, window=0, causes={}, idle=0, slowdown=slowdown))
    assert (verdict["bound_by"], verdict["cause"], verdict["abstained"]) == (bound_by, cause, False)
    assert verdict["share_frac"] == pytest.approx(share)


def test_one_input_bound_rank_of_eight_does_not_abstain() -> None:
    assert decide(dataclasses.replace(CLEAR, world_size=8))["cause"] == "input"


@pytest.mark.parametrize(("waited", "cause"), [(0.4, "straggler"), (0.6, "bandwidth"), (0.95, None)])
def test_the_cause_is_that_with_cores(waited: float, cause: str | None) -> None:
    """Of 1000: 120 waiting, 60 transfer. With 60 % of the waiting for cores 48 and 60 are left; with 95 % 6 and 60,
    which is under a tenth."""
    causes = {"straggler": 120, "bandwidth": 60}
    found = decide(dataclasses.replace(CLEAR, causes=causes, idle=0, waits_without_core=waited))
    assert (found["bound_by"], found["cause"], found["cause_abstained"]) == ("communication", cause, cause is None)
    assert any("no core" in limit for limit in found["limits"]) == (waited >= 0.5)


@pytest.mark.parametrize("work", [copy, kernel])
def test_idle_time_around_copies_holds_up_no_kernel(tmp_path: Path, work: Callable[..., Event]) -> None:
    """Start-up: memory is allocated and filled, and nothing is computed yet."""
    events = [
        e
        for n in range(5)
        for e in (
            call(1_000 * n, 800, 2 * n, "cudaMalloc"),
            call(1_000 * n + 810, 10, 2 * n + 1, "cudaMemcpyAsync"),
            work(1_000 * n + 830, 20, 2 * n + 1),
        )
    ]
    verdict = gpuscope.analyze(write(tmp_path / "rank0.json", *events)).report["verdict"]
    told = ("little_work", None) if work is copy else (None, "allocator")
    assert (verdict["abstain_reason"], verdict["cause"]) == told


def test_what_was_dropped_is_said_before_what_to_record(tmp_path: Path) -> None:
    """Kernels with negative durations, and events whose times are times 10¹⁵: none of them can be used."""
    calls = [call(100 * place, 5, place) for place in range(30)]
    told: dict[str, Report] = {}
    for name, scale, lasts in (("negative", 1, -70), ("large", 10**15, 70)):
        kernels = [kernel(100 * place + 20, lasts, place) for place in range(30)]
        events = [{**event, "ts": (event["ts"] + 10) * scale} for event in (*calls, *kernels)]
        told[name] = gpuscope.analyze(write(tmp_path / name / "rank0.json", *events), advice=False).report
    for name, dropped in (("negative", "30 of 60 events"), ("large", "60 of 60 events")):
        verdict = told[name]["verdict"]
        assert (verdict["abstained"], verdict.get("abstain_reason")) == (True, "events_dropped")
        assert verdict["why"].startswith(f"{dropped} had to be left out")
        assert "ProfilerActivity" not in verdict["why"]


def test_a_few_dropped_events_change_no_reason(tmp_path: Path) -> None:
    """One operator in 200 has a negative duration; that nothing of a device was recorded is no matter of it."""
    events = [call(10, 5, 1), *(op(100 * place, -5 if place == 3 else 50) for place in range(200))]
    verdict = gpuscope.analyze(write(tmp_path / "rank0.json", *events), advice=False).report["verdict"]
    assert verdict.get("abstain_reason") != "events_dropped"


def test_half_of_the_kernels_dropped_is_a_limit(tmp_path: Path) -> None:
    """A third of all events: a verdict, but the first limit is what was dropped."""
    events = [call(100 * place, 5, place) for place in range(40)]
    events += [kernel(100 * place + 20, -1 if place % 2 else 95, place) for place in range(40)]
    verdict = gpuscope.analyze(write(tmp_path / "rank0.json", *events), advice=False).report["verdict"]
    if not verdict["abstained"]:
        assert verdict["limits"][0] == "20 events could not be read"
