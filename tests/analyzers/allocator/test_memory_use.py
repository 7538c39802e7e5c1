"""Memory of the caching allocator, on synthetic snapshots worked out by hand and on real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.analyzers.advice.rules.allocator_call_rules import ALLOCATOR_RULE
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.allocator.memory_use import run
from gpuscope.analyzers.base.lanes import MEMORY
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.what_if_changes import Refused
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.memory_section import MemoryEntry
from tests.helpers.allocator import EPOCH_US, MIB, Entry, events, frame, segment, snapshot

A, B, C = 0x1000_0000, 0x2000_0000, 0x4000_0000


def analysed(path: Path) -> tuple[MemoryEntry, list[FindingEntry]]:
    result = run(RunFacts(gpuscope.open_trace(path), ()))
    # Every snapshot without a trace has its peak told, which test_peak_contents.py is about.
    return result.sections[MEMORY][0], [one for one in result.findings if one["code"] != "memory_peak"]


def grown_twice() -> list[Entry]:
    """120 and 120 MiB come and go; then 200 MiB are asked for, which no cached block of 120 can give."""
    return events(
        ("segment_alloc", A, 120 * MIB),
        ("alloc", A, 120 * MIB),
        ("segment_alloc", B, 120 * MIB),
        ("alloc", B, 120 * MIB),
        ("free", A, 120 * MIB),
        ("free", B, 120 * MIB),
        ("segment_alloc", C, 200 * MIB),
        ("alloc", C, 200 * MIB),
    )


CACHED = [
    segment(A, (120 * MIB, "inactive")),
    segment(B, (120 * MIB, "inactive")),
    segment(C, (200 * MIB, "active_allocated")),
]


def test_a_segment_beside_enough_free_bytes_is_fragmentation(tmp_path: Path) -> None:
    entry, findings = analysed(snapshot(tmp_path / "s.pickle", CACHED, grown_twice()))
    # Reserved 120 + 120 + 200; at most 120 + 120 in use at once.
    assert (entry["peak_reserved_bytes"], entry["peak_allocated_bytes"]) == (440 * MIB, 240 * MIB)
    fragmentation = entry["fragmentation"]
    assert fragmentation is not None
    assert (fragmentation["requests"], fragmentation["reserved_bytes"]) == (1, 200 * MIB)
    assert (fragmentation["largest_request_bytes"], fragmentation["free_bytes"]) == (200 * MIB, 240 * MIB)
    assert [(finding["code"], finding["severity"]) for finding in findings] == [("fragmentation", "low")]
    assert "45.5 % of the peak of reserved memory (200 MiB of 440 MiB)" in findings[0]["message"]


def test_segments_that_grow_would_have_needed_less(tmp_path: Path) -> None:
    entry, _ = analysed(snapshot(tmp_path / "s.pickle", CACHED, grown_twice()))
    replay = entry["replay"]
    assert replay is not None
    assert (replay["peak_reserved_bytes"], replay["error_frac"], replay["placed_frac"]) == (440 * MIB, 0.0, 1.0)
    peaks = {f"{change['option']}:{change['value']}": change["peak_reserved_bytes"] for change in replay["changes"]}
    # One segment: 120 MiB are 6 pages of 20, twice; 200 then fit into the 240 that lie side by side.
    assert peaks["expandable_segments:True"] == 240 * MIB
    # Of the steps of 16 MiB between 128 and 256, 200 rounds up to 208; 120 is a multiple of 8.
    assert peaks["roundup_power2_divisions:8"] == 448 * MIB
    assert replay["best"] is not None
    assert replay["best"]["option"] == "expandable_segments"


def test_a_cache_after_a_peak_is_no_fragmentation(tmp_path: Path) -> None:
    """440 MiB reserved and none in use: yet no request ever found free blocks it could not use."""
    told = events(
        ("segment_alloc", A, 120 * MIB),
        ("alloc", A, 120 * MIB),
        ("segment_alloc", C, 200 * MIB),
        ("alloc", C, 200 * MIB),
        ("free", A, 120 * MIB),
        ("free", C, 200 * MIB),
        ("alloc", A, 100 * MIB),
        ("free", A, 100 * MIB),
    )
    cached = [segment(A, (120 * MIB, "inactive")), segment(C, (200 * MIB, "inactive"))]
    entry, findings = analysed(snapshot(tmp_path / "s.pickle", cached, told))
    assert (entry["end_reserved_bytes"], entry["end_allocated_bytes"]) == (320 * MIB, 0)
    assert entry["fragmentation"] is None
    assert findings == []


def in_pieces(free_on_device: int) -> tuple[list[Entry], list[Entry]]:
    """Two segments of 120 MiB, each half in use, and a request of 100 MiB that fails."""
    told = events(
        ("segment_alloc", A, 120 * MIB),
        ("alloc", A, 120 * MIB),
        ("segment_alloc", B, 120 * MIB),
        ("alloc", B, 120 * MIB),
        ("free", A, 120 * MIB),
        ("free", B, 120 * MIB),
        ("alloc", A, 60 * MIB),
        ("alloc", B, 61 * MIB),
        ("oom", free_on_device, 100 * MIB),
    )
    halves = [
        segment(A, (60 * MIB, "active_allocated"), (60 * MIB, "inactive")),
        segment(B, (61 * MIB, "active_allocated"), (59 * MIB, "inactive")),
    ]
    return halves, told


def test_a_failed_request_tells_what_was_free(tmp_path: Path) -> None:
    entry, findings = analysed(snapshot(tmp_path / "s.pickle", *in_pieces(50 * MIB)))
    (failure,) = entry["failures"]
    assert failure["kind"] == "fragmentation"
    assert (failure["requested_bytes"], failure["allocated_bytes"]) == (100 * MIB, 121 * MIB)
    assert (failure["free_bytes"], failure["device_free_bytes"]) == (119 * MIB, 50 * MIB)
    assert failure["free_blocks"] == [60 * MIB, 59 * MIB]
    assert failure["frames"] == ["step (/job/train.py:7)"]
    assert (findings[0]["code"], findings[0]["severity"]) == ("out_of_memory", "high")
    # 240 + 50 MiB were to be had: the replay fails there too, and with one segment 60 + 61 + 100 fit into 240.
    assert entry["replay"] is not None
    assert entry["replay"]["failed"] == 1
    assert entry["replay"]["best"] == {
        "option": "expandable_segments",
        "value": "True",
        "peak_reserved_bytes": 240 * MIB,
        "device_calls": 2,
        "retries": 0,
        "collections": 0,
        "failed": 0,
    }


def test_a_full_device_is_no_fragmentation(tmp_path: Path) -> None:
    told = events(("segment_alloc", A, 120 * MIB), ("alloc", A, 120 * MIB), ("oom", 10 * MIB, 100 * MIB))
    path = snapshot(tmp_path / "s.pickle", [segment(A, (120 * MIB, "active_allocated"))], told)
    entry, findings = analysed(path)
    advised = {one["code"] for one in gpuscope.analyze(path).report["advice"]["unpredicted"]}
    assert "allocator_setting" not in advised
    assert entry["failures"][0]["kind"] == "full"
    assert "no allocator setting helps" in findings[0]["message"]
    assert entry["replay"] is not None
    assert entry["replay"]["best"] is None


def test_what_is_free_here_and_there_may_be_enough(tmp_path: Path) -> None:
    """119 MiB in pieces and 50 on the device are enough for 150, if they lay together."""
    halves, told = in_pieces(50 * MIB)
    told[-1]["size"] = 150 * MIB
    entry, _ = analysed(snapshot(tmp_path / "s.pickle", halves, told))
    assert entry["failures"][0]["kind"] == "scattered"
    # One segment of 240 MiB, of which 60 + 61 are in use: 31 more, in pages of 20, make room.
    assert entry["replay"] is not None
    assert entry["replay"]["best"] is not None
    assert entry["replay"]["best"]["peak_reserved_bytes"] == 280 * MIB


def test_a_limit_of_the_process_is_told(tmp_path: Path) -> None:
    told = events(("segment_alloc", A, 120 * MIB), ("alloc", A, 120 * MIB), ("oom", 900 * MIB, 100 * MIB))
    entry, _ = analysed(snapshot(tmp_path / "s.pickle", [segment(A, (120 * MIB, "active_allocated"))], told))
    assert entry["failures"][0]["kind"] == "limit"


@pytest.mark.parametrize(
    ("stack", "certain"),
    [([frame("step")], [True]), ([], [False]), ([frame("empty_cache"), frame("step")], [])],
    ids=["within a request", "no stacks", "empty_cache"],
)
def test_retries(tmp_path: Path, stack: list[Entry], certain: list[bool]) -> None:
    """A cached segment is given back and a larger one allocated: by a retry, unless the stack says otherwise."""
    told = events(
        ("segment_alloc", A, 120 * MIB),
        ("alloc", A, 120 * MIB),
        ("free", A, 120 * MIB),
        ("segment_free", A, 120 * MIB),
        ("segment_alloc", C, 200 * MIB),
        ("alloc", C, 200 * MIB),
    )
    told[4]["frames"] = stack
    told[5]["time_us"] = EPOCH_US + 1_004  # the device gave its answer a millisecond after the first free
    path = snapshot(tmp_path / "s.pickle", [segment(C, (200 * MIB, "active_allocated"))], told)
    entry, findings = analysed(path)
    assert [retry["certain"] for retry in entry["retries"]] == certain
    assert [retry["dur_ns"] for retry in entry["retries"]] == [1_000_000] * len(certain)
    assert [finding["code"] for finding in findings] == ["allocator_retries"] * len(certain)
    assert entry["replay"] is not None
    assert entry["replay"]["error_frac"] == 0.0


def test_what_is_at_the_peak_by_stack(tmp_path: Path) -> None:
    """50 MiB from before the recording; 120 and 30 MiB by one stack, which are the peak; 10 MiB later."""
    told = events(("alloc", A, 120 * MIB), ("alloc", B, 30 * MIB), ("free", A, 120 * MIB), ("alloc", A, 10 * MIB))
    held = [
        segment(A, (10 * MIB, "active_allocated"), (110 * MIB, "inactive")),
        segment(B, (30 * MIB, "active_allocated"), (50 * MIB, "active_allocated")),
    ]
    entry, _ = analysed(snapshot(tmp_path / "s.pickle", held, told))
    assert entry["peak_allocated_bytes"] == 200 * MIB
    assert entry["peak_time_ns"] == (EPOCH_US + 1) * 1000
    assert [(one["bytes"] // MIB, one["blocks"], one["before_recording"]) for one in entry["at_peak"]] == [
        (150, 2, False),
        (50, 1, True),
    ]
    assert entry["from_start"] is False


def test_contradictions_are_counted_and_forbid_predictions(tmp_path: Path) -> None:
    told = [*grown_twice(), *events(("alloc", 0x7000_0000, 3 * MIB))]  # nowhere in the snapshot
    result = run(RunFacts(gpuscope.open_trace(snapshot(tmp_path / "s.pickle", CACHED, told)), ()))
    assert [(problem.code, problem.count) for problem in result.problems] == [("allocator_history_inconsistent", 1)]
    assert result.sections[MEMORY][0]["replay"] is None


def suggested(entry: MemoryEntry, findings: list[FindingEntry]) -> list[Any]:
    verdict = {"abstained": True, "cause_abstained": False, "bound_by": None, "cause": None}
    report: Any = {
        "memory": [entry],
        "findings": findings,
        "suggestions": [],
        "ranks": [],
        "step_time": None,
        "verdict": verdict,
        "trace": {"program": None},
    }
    return advise(report, lambda _: Refused("no timeline"), [ALLOCATOR_RULE])[0]


def test_the_advice_is_what_the_replay_found(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "s.pickle", CACHED, grown_twice(), PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:4096")
    (suggestion,) = suggested(*analysed(path))
    assert suggestion["setting"] == {
        "kind": "env",
        "name": "PYTORCH_CUDA_ALLOC_CONF",  # nothing says that this PyTorch knows the newer name
        "value": "max_split_size_mb:4096,expandable_segments:True",
    }
    assert "440 MiB → 240 MiB" in suggestion["predicted"]["basis"]
    assert suggestion["predicted"]["step_ns_before"] == suggestion["predicted"]["step_ns_after"]


def test_the_section_is_a_table(tmp_path: Path) -> None:
    table = gpuscope.analyze(snapshot(tmp_path / "s.pickle", CACHED, grown_twice())).tables["memory"]
    assert table["peak_reserved_bytes"].tolist() == [440 * MIB]
    assert table["fragmentation.requests"].tolist() == [1]
    assert table["replay.best.option"].tolist() == ["expandable_segments"]


def test_no_advice_where_a_synthetic_cache_serves_every_request(tmp_path: Path) -> None:
    """300 of 500 MiB reserved are in use at the peak, of which a request of 200 is the largest; nothing is reserved."""
    trace = events(("alloc", B, 200 * MIB), ("free", B, 200 * MIB), ("alloc", B, 200 * MIB))
    left = [
        segment(A, (100 * MIB, "active_allocated")),
        segment(B, (200 * MIB, "active_allocated")),
        segment(C, (200 * MIB, "inactive")),
    ]
    entry, findings = analysed(snapshot(tmp_path / "s.pickle", left, trace))
    assert (entry["end_reserved_bytes"], entry["end_allocated_bytes"]) == (500 * MIB, 300 * MIB)
    assert entry["peak_allocated_bytes"] == 300 * MIB
    assert entry["at_peak"][0]["bytes"] == 200 * MIB
    assert findings == []
    assert entry["replay"] is not None
    assert entry["replay"]["placed_frac"] == 1.0
    assert suggested(entry, findings) == []


def test_no_advice_where_nothing_is_wrong(shared_traces: Path) -> None:
    path = shared_traces / "memory/wedsonlin_medium_1024_training.pickle"
    entry, findings = analysed(path)
    # Computed from the file: 24,012 MiB reserved of which 6,556 are allocated at the end. Nothing was reserved
    # while it was recorded, and 23,091 were in use at the peak: the rest is cache.
    assert entry["end_reserved_bytes"] == 24_012 * MIB
    assert entry["end_allocated_bytes"] // MIB == 6_556
    assert entry["peak_allocated_bytes"] // MIB == 23_091
    assert entry["at_peak"][0]["bytes"] == 6_144 * MIB
    assert entry["at_peak"][0]["frames"][0].startswith("softmax ")
    assert findings == []
    assert entry["replay"] is not None
    assert entry["replay"]["placed_frac"] == 1.0
    assert suggested(entry, findings) == []
