"""One nsys report of a host whose NCCL payloads tell communicators, but not how many ranks are in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import coll, run
from simulator.catalogue import CASES
from simulator.judged import Case
from simulator.nsys_rows import Payloads, write_nsys

import gpuscope
from gpuscope.analyzers.facts.call_order import against_whole_job
from gpuscope.analyzers.facts.matching import match
from gpuscope.analyzers.facts.process_groups import with_members
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.schema.document import Verdict
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

CASE = {case.name: case for case in CASES}
TOLD = (
    "bandwidth_strong",
    "latency_strong",
    "bubble_strong",
    "slow_device_strong",
    "late_host_logging",
    "long_batches",
    "fsdp_no_prefetch",
    "tensor_parallel",
)


def judged(folder: Path, case: Case, **payloads: object) -> Verdict:
    path = write_nsys(folder, case.run, Payloads(**payloads))  # type: ignore[arg-type]
    return gpuscope.analyze(path).report["verdict"]


@pytest.mark.parametrize("name", TOLD)
def test_the_cause_is_named(tmp_path: Path, name: str) -> None:
    found = judged(tmp_path, CASE[name])
    assert (found["bound_by"], found["cause"]) == CASE[name].expected


@pytest.mark.parametrize("name", ["bandwidth_strong", "late_host_logging", "fsdp_no_prefetch", "tensor_parallel"])
def test_ids_of_each_ranks_own(tmp_path: Path, name: str) -> None:
    """NCCL before 2.25. Of the pairs of tensor parallelism, which do the same, those that end together are one."""
    found = judged(tmp_path, CASE[name], common_ids=False)
    assert (found["bound_by"], found["cause"]) == CASE[name].expected


def test_a_share_becomes_the_whole_arrays_size(tmp_path: Path) -> None:
    case = CASE["fsdp_no_prefetch"]
    trace = with_members(gpuscope.open_trace(write_nsys(tmp_path, case.run, Payloads())))
    true = {o.collective.bytes for own in case.run.ranks.values() for o in own.operations if o.collective is not None}
    assert set(trace["collectives"]["bytes"].tolist()) == {size // 2 * 2 for size in true}
    assert "group_size_unknown" not in {problem.code for problem in trace.problems}


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ((("SLURM_NNODES", "2"),), None),
        ((("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "2")), None),
        ((("MASTER_ADDR", "node17"),), None),
        ((("MASTER_ADDR", "127.0.0.1"),), "bandwidth"),
        ((("MASTER_ADDR", "node17"), ("SLURM_NNODES", "1")), "bandwidth"),
    ],
)
def test_an_environment_of_more_nodes_leaves_the_cause_open(
    tmp_path: Path, environment: tuple[tuple[str, str], ...], cause: str | None
) -> None:
    found = judged(tmp_path, CASE["bandwidth_strong"], environment=environment)
    assert (found["bound_by"], found["cause"]) == ("communication", cause)


def network_log(builder: TraceBuilder) -> None:
    values = {"communicator": "c", "transport": "NET/IB/0"}
    coded = {name: builder.names.code(text) for name, text in values.items()}
    builder.add("connections", 1, {"rank": 0, "peer": 1, "count": 1, **coded})


def internode_kernel(builder: TraceBuilder) -> None:
    name = builder.names.code("void deep_ep::internode::dispatch<8>(int4*)")
    values = {"rank": 0, "device": 0, "stream": 3, "start": 1, "end": 2, "kind": Kind.COMMUNICATION, "name": name}
    builder.add("device_events", 1, values)


def ports(sent: int) -> Callable[[TraceBuilder], None]:
    def add(builder: TraceBuilder) -> None:
        code = builder.names.code
        builder.add(
            "counters",
            1,
            {
                "source": 0,
                "place": code("mlx5_0"),
                "counter": code("Bytes sent"),
                "unit": code("bytes"),
                "start": 0,
                "end": 10,
                "value": sent,
            },
        )

    return add


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (network_log, "over the network"),
        (internode_kernel, "other nodes"),
        (ports(9_000), "network ports"),
        (ports(3), ""),  # a heartbeat
        (lambda _: None, ""),
    ],
)
def test_what_shows_a_network(seen: Callable[[TraceBuilder], None], why: str) -> None:
    builder = TraceBuilder()
    code = builder.names.code
    source = builder.source(Path("x"), "hand", "", 0, {})
    for rank in (0, 1):
        builder.add("ranks", 1, {"rank": rank, "source": source, "device": rank, "host": code("n0")})
        event = builder.add(
            "device_events",
            1,
            {
                "rank": rank,
                "device": rank,
                "stream": 3,
                "start": 1,
                "end": 2,
                "kind": Kind.COMMUNICATION,
                "name": code("nccl"),
            },
        )
        builder.add("collectives", 1, {"rank": rank, "event": event, "op": code("all_reduce"), "bytes": 10_000})
    seen(builder)
    found = against_whole_job(builder.finish())
    assert why in found if why else not found


def shared(transfers: list[int], listed: str | None = "GPU-0,GPU-1") -> Trace:
    """Two ranks of one host, a communicator without a size, and transfers so long, 10 µs after each other."""
    builder = TraceBuilder()
    code = builder.names.code
    source = builder.source(Path("x"), "hand", "", 0, {})
    ends = np.cumsum([10_000 + took for took in transfers]).tolist()
    for rank in (0, 1):
        builder.add(
            "ranks",
            1,
            {
                "rank": rank,
                "source": source,
                "device": rank,
                "host": code("n0"),
                "device_id": code(f"GPU-{rank}"),
                "host_devices": code(listed) if listed else None,
            },
        )
        for end, took in zip(ends, transfers, strict=True):
            values = {"rank": rank, "device": rank, "stream": 3, "start": end - took, "end": end, "name": code("nccl")}
            event = builder.add("device_events", 1, {**values, "kind": Kind.COMMUNICATION})
            builder.add(
                "collectives",
                1,
                {"rank": rank, "event": event, "op": code("all_reduce"), "bytes": 64, "group": code("0xabc")},
            )
    return builder.finish()


@pytest.mark.parametrize(("listed", "matched"), [("GPU-0,GPU-1", 5), ("GPU-0,GPU-1,GPU-2", 0), (None, 0)])
def test_all_devices_of_the_host_must_be_there(listed: str | None, matched: int) -> None:
    """Where they are not listed, nobody knows."""
    assert len(match(shared([10_000] * 5, listed)).instances) == matched


@pytest.mark.parametrize(("high", "told"), [(19_000, True), (21_000, False)])
def test_equal_transfers_that_vary_widely_wait_for_somebody_absent(high: int, told: bool) -> None:
    """Eight of 10 µs and two of twice as much, or of more than that."""
    trace = shared([10_000] * 8 + [high] * 3)
    found = match(trace)
    assert found.varying is not told
    assert (len(found.instances) == 11) is told
    assert (RunFacts(trace, ()).world.size == 2) is told


def test_a_recorded_size_stands() -> None:
    trace = run([coll(rank, 0, 10, "g:0,1,2,3") for rank in (0, 1)], hosts=["n0"] * 2)
    assert len(match(trace).instances) == 0
    assert with_members(trace) is trace
    assert trace["collectives"]["share"].tolist() == [NA, NA]
