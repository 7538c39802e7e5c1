"""The search for settings: rounds judged, tuner rows, targets of a trace. Processes are stood in for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from click.testing import CliRunner

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.instrumented_runtime.bench import tuning_bench
from gpuscope.instrumented_runtime.bench.collectives_bench import CollectiveOptions
from gpuscope.instrumented_runtime.bench.tuning_bench import Target, TuningOptions, tune, tuner_text
from gpuscope.instrumented_runtime.bench.tuning_targets import of_trace
from gpuscope.instrumented_runtime.commands.bench import command

KIB = 1 << 10
Run = Callable[..., Any]


def machine(times: dict[str, dict[int, list[float]]], calls: list[str], broken: str = "") -> Run:
    """In place of processes: µs of each round by candidate and size."""

    def run(_: object, ranks: int, backend: str, options: CollectiveOptions, _pieces: int) -> list[tuple[int, int]]:
        assert (ranks, backend) == (2, "nccl")
        if "NCCL_DEBUG_FILE" in os.environ:
            lines = ["n:1:1 [0] NCCL INFO comm 0xa rank 0 nRanks 2 nNodes 1",
                     "n:1:1 [0] NCCL INFO 8 coll channels, 0 collnet channels, 8 p2p channels"]  # fmt: skip
            lines += [f"n:1:1 [0] NCCL INFO AllReduce: {size} Bytes -> Algo TREE proto LL128" for size in options.sizes]
            Path(os.environ["NCCL_DEBUG_FILE"].replace("%h.%p", "n.1")).write_text("\n".join(lines))
            return [(1, 0)]
        name = f"{os.environ.get('NCCL_ALGO', '')}/{os.environ.get('NCCL_PROTO', '')}".strip("/").lower() or "default"
        if name == broken:
            raise GpuscopeError("rank 1 failed")
        calls.append(name)
        return [(round(times.get(name, times["default"])[size][calls.count(name) - 1] * 1000), 0)
                for size in options.sizes]  # fmt: skip

    return run


TIMES = {
    "default": {64 * KIB: [100, 110, 104], 1024 * KIB: [200, 210, 205]},
    "ring/ll": {64 * KIB: [60, 70, 65], 1024 * KIB: [400, 390, 410]},
    "ring/simple": {64 * KIB: [105, 90, 95], 1024 * KIB: [198, 150, 150]},
}


def test_a_gain_is_certain_where_its_slowest_round_beats_the_default_s_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """ring/simple is faster at 1 MiB in two rounds of three: its slowest, 198 µs, still beats 200 µs. At 64 KiB its
    slowest is 105 µs against 100."""
    calls: list[str] = []
    monkeypatch.setattr(tuning_bench, "run_processes", machine(TIMES, calls, broken="tree/ll"))
    report = tune([Target("all_reduce", 2, (64 * KIB, 1024 * KIB))], TuningOptions(backend="nccl"))
    assert calls[:4] == ["default", "ring/ll", "ring/simple", "tree/simple"]  # in turn
    assert report.failed == {"tree/ll": "rank 1 failed"}
    assert {row.nbytes: row.candidate for row in report.best()} == {64 * KIB: "ring/ll", 1024 * KIB: "ring/simple"}
    (simple,) = [row for row in report.rows if (row.candidate, row.nbytes) == ("ring/simple", 64 * KIB)]
    assert not simple.certain
    lines = [line for line in tuner_text(report).splitlines() if not line.startswith("#")]
    assert lines[:2] == ["allreduce,0,262143,ring,ll,8,1,2", "allreduce,262144,18446744073709551615,ring,simple,8,1,2"]
    assert "NCCL_ALGO" not in os.environ


def test_where_nothing_gains_nccl_s_own_choice_is_written_without_ll128(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_bench, "run_processes", machine({"default": TIMES["default"]}, []))
    report = tune([Target("all_reduce", 2, (64 * KIB,))], TuningOptions(backend="nccl"))
    assert [row.candidate for row in report.best()] == ["default"]
    assert "allreduce,0,18446744073709551615,tree,simple,8,1,2" in tuner_text(report)


def test_an_all_reduce_in_pieces_sums_right() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ns, wrong = tuning_bench._cut(64 * KIB, CollectiveOptions(iterations=2, warmup=1), 4)
    finally:
        dist.destroy_process_group()
    assert wrong == 0
    assert ns > 0


def test_the_sizes_and_groups_of_a_trace(samples: Path) -> None:
    (target, *_) = of_trace([str(samples / "ddp_healthy")], (), None)
    assert (target.op, target.ranks) == ("all_reduce", 2)
    assert list(target.sizes) == sorted(target.sizes)
    assert 0 < len(target.sizes) <= 8
    with pytest.raises(UsageError, match="no collective of known size"):
        of_trace([str(samples / "ddp_healthy")], ("broadcast",), None)


def test_a_launcher_s_processes_are_refused_and_one_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="processes of its own"):
        tune([Target("all_reduce", 2, (8,))], TuningOptions())
    with pytest.raises(UsageError, match="--rounds"):
        TuningOptions(rounds=1)


def test_the_command_prints_and_writes_its_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuning_bench, "run_processes", machine(TIMES, []))
    out, proof = tmp_path / "tuner.csv", tmp_path / "proof.json"
    arguments = ["tune", "--size", "64K", "--backend", "nccl", "--nccl-tuner", str(out), "--proof", str(proof)]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.exception is None
    assert "take" in done.output
    assert out.read_text().startswith("# For NCCL's example tuner plugin")
    rows = json.loads(proof.read_text())["rows"]
    assert {row["candidate"]: row["rounds_ns"] for row in rows}["ring/ll"] == [60_000, 70_000, 65_000]
