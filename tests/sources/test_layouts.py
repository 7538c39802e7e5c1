"""What frameworks leave on a disk, by the names that their sources write: the table of docs/formats.md, tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.kineto import call, kernel, note, write

import gpuscope

STAMP = 1762540000000000000


@dataclass(frozen=True)
class Layout:
    """The name of a rank's file in a window (0, 1 …), or of a role."""

    framework: str
    name: Callable[[int, int], str]
    windows: int = 1
    roles: tuple[str, ...] = ()


LAYOUTS = [
    Layout("torchtitan 0.3", lambda rank, at: f"profiling/traces/iteration_{10 * at + 10}/rank{rank}_trace.json", 2),
    Layout("torchtitan 0.1", lambda rank, at: f"profile_traces/iteration_{10 * at + 10}/rank{rank}_trace.json", 2),
    Layout("tensorboard_trace_handler", lambda rank, at: f"vm_{70 + rank}.{STAMP + 9 * at + rank}.pt.trace.json", 2),
    Layout("Accelerate", lambda rank, _: f"profile_{rank}.json"),
    Layout("Megatron-LM", lambda rank, _: f"torch_profile/rank-{rank}.json"),
    Layout("SGLang", lambda rank, _: f"1722.5-TP-{rank}-DP-0.trace.json"),
    Layout("vLLM", lambda rank, _: f"dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}.{STAMP}.pt.trace.json"),
    Layout("verl", lambda rank, _: f"prof_rank-{rank}_031847.json", roles=("actor_update", "ref_compute_log_prob")),
    Layout("OpenRLHF", lambda rank, _: f"rank_{rank}.json", roles=("actor", "critic")),
]


def made(path: Path, rank: int, window: int, told: bool) -> None:
    """Three steps; those of the second window go on from the first, and its kernels are twice as long."""
    events = []
    for step in range(3):
        at, number = 1000 * step + 100_000 * window, 3 * window + step
        events += [note(at, 990, f"ProfilerStep#{number}"), call(at + 5, 5, step + 1)]
        events += [kernel(at + 20, 400 * (window + 1), step + 1)]
    write(path, *events, rank=rank if told else None, world_size=2)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.framework)
def test_ranks_windows_and_roles_are_told(layout: Layout, tmp_path: Path) -> None:
    told = layout.framework == "tensorboard_trace_handler"  # whose names hold no rank: distributedInfo does
    for role in layout.roles or (".",):
        for rank in (0, 1):
            for window in range(layout.windows):
                made(tmp_path / "run" / role / layout.name(rank, window), rank, window, told)
    report = gpuscope.analyze(tmp_path / "run", role=layout.roles[0] if layout.roles else None).report
    assert report["trace"]["ranks_present"] == [0, 1]
    compute = [rank["recorded_breakdown_ns"]["compute"] for rank in report["ranks"]]
    assert compute == [1_200_000 * layout.windows] * 2, "the latest window"
    codes = {problem["code"] for problem in report["problems"]}
    assert ("restarts_left_out" in codes, "other_roles" in codes) == (layout.windows > 1, bool(layout.roles))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.framework)
def test_some_ranks_alone_stay_those_ranks(layout: Layout, tmp_path: Path) -> None:
    told = layout.framework in ("tensorboard_trace_handler", "Accelerate", "SGLang")  # bare numbers, or parallel ranks
    for rank in (3, 7):
        made(tmp_path / layout.name(rank, 0), rank, 0, told)
    assert gpuscope.analyze(tmp_path).report["trace"]["ranks_present"] == [3, 7]
