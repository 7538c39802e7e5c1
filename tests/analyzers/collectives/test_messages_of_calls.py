"""Sends and receives: part of a collective's call, an exchange among equals, or messages between stages; in µs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import Event, call, kernel, note, op, span, write

import gpuscope
from gpuscope.schema.document import Report

STEP = 10_000
STEPS = 5


def gloo(ts: int, dur: int, kind: str, dims: list[int], dtype: str = "float", tid: int = 1) -> Event:
    """gloo's range of an operation, as torch.profiler writes it."""
    return span("user_annotation", f"gloo:{kind}", ts, dur, tid, **{"Input Dims": [dims], "Input type": [dtype]})


def job(folder: Path, *programs: Callable[[int], list[Event]], backend: str = "gloo", **header: Any) -> Report:
    """The report of a job whose ranks do this in each step, told by where it begins."""
    world = len(programs)
    for rank, program in enumerate(programs):
        events = [one for step in range(STEPS) for one in program(step * STEP)]
        events += [note(step * STEP, STEP, f"ProfilerStep#{step}") for step in range(STEPS)]
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}
        info = {"backend": backend, "rank": rank, "world_size": world, "pg_config": [group]}
        write(folder / f"rank{rank}.json", *events, rank=None, distributedInfo=info, **header)
    return gpuscope.analyze(folder, replay=False).report


def communication(report: Report) -> dict[str, int]:
    """ns by cause over the ranks."""
    sums: dict[str, int] = {}
    for rank in report["ranks"]:
        for cause, ns in rank["stall_ns"]["communication"].items():
            sums[cause] = sums.get(cause, 0) + ns
    return sums


def codes(report: Report) -> set[str]:
    """Findings."""
    return {one["code"] for one in report["findings"]}


def advised(report: Report) -> set[str]:
    """Names of what is set, with a figure or without."""
    return {one["setting"]["name"] for one in (*report["suggestions"], *report["advice"]["unpredicted"])}


def checked(ts: int, until: int, ranks: int, rank: int, name: str = "c10d::allreduce_") -> list[Event]:
    """A collective under TORCH_DISTRIBUTED_DEBUG=DETAIL: a monitored barrier from `ts` to `until`, two gathers of
    400 µs on gloo's threads, then the operation itself, 200 µs."""
    peers = ranks - 1 if rank == 0 else 1
    kinds = ["recv", "send"] if rank == 0 else ["send", "recv"]
    waits = [gloo(ts + 10 + place, until - ts - 20, kind, [1], "long int") for kind in kinds for place in range(peers)]
    gathers = [
        gloo(until + 10 + 400 * place, 380, "all_gather", [1 + 7 * place], "long int", tid=20 + place)
        for place in range(2)
    ]
    return [op(ts, until - ts + 820, name), *waits, *gathers, gloo(until + 830, 200, "all_reduce", [4096], tid=22)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_checks_of_detail_are_no_pipeline(tmp_path: Path, ranks: int) -> None:
    """The last rank computes 4 ms longer: 4 of every 10 ms all others wait in the check; 0.92 ms go into it."""

    def program(rank: int) -> Callable[[int], list[Event]]:
        busy = 6000 if rank == ranks - 1 else 2000
        return lambda at: [op(at + 10, busy), *checked(at + busy + 20, at + 6120, ranks, rank), op(at + 7200, 2700)]

    report = job(tmp_path, *map(program, range(ranks)))
    assert "pipeline_bubble" not in codes(report)
    assert report["verdict"]["cause"] == "straggler"
    assert [one["rank"] for one in report["stragglers"] if one["recurrent"]] == [ranks - 1]
    (found,) = (one for one in report["findings"] if one["code"] == "debug_checks")
    assert found["facts"]["count"] == 1
    assert found["share_frac"] == pytest.approx(0.092, abs=0.001)
    (advice,) = (one for one in report["advice"]["unpredicted"] if one["code"] == "no_debug_checks")
    assert advice["setting"] == {"kind": "env", "name": "TORCH_DISTRIBUTED_DEBUG", "value": "OFF"}
    assert advice["bound"]["step_ns_low"] >= 0.9 * advice["bound"]["step_ns_before"]


def test_a_monitored_barrier_waits_as_a_barrier_does(tmp_path: Path) -> None:
    def program(rank: int) -> Callable[[int], list[Event]]:
        busy = (2000, 6000)[rank]

        def step(at: int) -> list[Event]:
            begin = at + busy + 20
            kinds = ("recv", "send") if rank == 0 else ("send", "recv")
            barrier = [
                op(begin, at + 6120 - begin, "c10d::monitored_barrier_"),
                *(gloo(begin + 10, at + 6100 - begin, kind, [1], "long int") for kind in kinds),
            ]
            return [op(at + 10, busy), *barrier, op(at + 6200, 3700)]

        return step

    report = job(tmp_path, program(0), program(1))
    assert report["verdict"]["cause"] == "straggler"
    assert not {"pipeline_bubble", "debug_checks"} & codes(report)
    assert "TORCH_DISTRIBUTED_DEBUG" not in advised(report)
    assert {row["op"] for row in report["collectives"]} == {"barrier"}


def message(at: int, dur: int, kind: str, dims: list[int] | None = None, dtype: str = "float") -> list[Event]:
    """A blocking send or receive of the program's."""
    name = "c10d::send" if kind == "send" else "c10d::recv_"
    return [op(at, 5, name), gloo(at + 1, dur - 1, kind, dims or [1024], dtype)]


def halo(rank: int) -> Callable[[int], list[Event]]:
    """Even ranks send first, odd ones receive first; rank 1 computes 4 ms longer, then both compute."""
    busy = (2000, 6000)[rank]

    def step(at: int) -> list[Event]:
        here = at + busy + 20
        first, second = ("send", "recv") if rank == 0 else ("recv", "send")
        border = [op(at + 6130, 2, "aten::select")] if rank else []
        return [
            op(at + 10, busy),
            *message(here, at + 6120 - here, first),
            *border,
            *message(at + 6140, 50, second),
            op(at + 6200, 3700),
        ]

    return step


def gossip(rank: int) -> Callable[[int], list[Event]]:
    """Both send what their backward pass made, then receive."""
    busy = (2000, 6000)[rank]

    def step(at: int) -> list[Event]:
        here, node = at + busy + 20, "autograd::engine::evaluate_function: MmBackward0"
        sent = [op(here, 5, "c10d::send"), gloo(here + 1, at + 6200 - here, "send", [1024])]
        return [
            op(at + 10, busy // 2),
            op(at + 20 + busy // 2, busy // 2 - 20, node),
            *sent,
            *message(here + 10, at + 6180 - here, "recv"),
            op(at + 6300, 3600),
        ]

    return step


def objects(rank: int) -> Callable[[int], list[Event]]:
    """Rank 1 sends a Python object, how long it is first; rank 0 never sends."""
    busy, kind = (2000, 6000)[rank], ("recv", "send")[rank]

    def step(at: int) -> list[Event]:
        here = at + busy + 20
        return [
            op(at + 10, busy),
            *message(here, at + 6120 - here, kind, [1], "long int"),
            *message(at + 6130, 50, kind, [21], "unsigned char"),
            op(at + 6200, 3700),
        ]

    return step


def server(rank: int) -> Callable[[int], list[Event]]:
    """A worker sends gradients and receives parameters; the server updates in between."""
    node = "autograd::engine::evaluate_function: MmBackward0"

    def worker(at: int) -> list[Event]:
        return [
            op(at + 10, 2000),
            op(at + 2020, 3980, node),
            *message(at + 6020, 100, "send"),
            *message(at + 6200, 3000, "recv"),
        ]

    def of_server(at: int) -> list[Event]:
        return [*message(at + 10, 6110, "recv"), op(at + 6140, 3000), *message(at + 9150, 50, "send")]

    return (of_server, worker)[rank]


@pytest.mark.parametrize("program", [halo, gossip, objects, server], ids=lambda one: one.__name__)
def test_an_exchange_is_no_pipeline(tmp_path: Path, program: Callable[[int], Callable[[int], list[Event]]]) -> None:
    report = job(tmp_path, program(0), program(1))
    assert "pipeline_bubble" not in communication(report)
    assert communication(report)["straggler"] > 0
    assert "pipeline" not in report
    assert not any("pipelining" in name or "layers over stages" in name for name in advised(report))


def stage(rank: int) -> Callable[[int], list[Event]]:
    """Two stages, two micro-batches forward and backward: the second computes only on what it received."""
    node = "autograd::engine::evaluate_function: MmBackward0"

    def first(at: int) -> list[Event]:
        return [
            op(at + 10, 1000),
            *message(at + 1020, 30, "send"),
            op(at + 1060, 1000),
            *message(at + 2070, 30, "send"),
            *message(at + 2110, 2990, "recv"),
            op(at + 5110, 2000, node),
            *message(at + 7120, 20, "recv"),
            op(at + 7150, 2000, node),
        ]

    def last(at: int) -> list[Event]:
        return [
            *message(at + 10, 1040, "recv"),
            op(at + 1060, 1000),
            *message(at + 2070, 30, "recv"),
            op(at + 2110, 1000),
            op(at + 3120, 1950, node),
            *message(at + 5080, 20, "send"),
            op(at + 5110, 1950, node),
            *message(at + 7070, 70, "send"),
        ]

    return (first, last)[rank]


def test_stages_wait_for_their_neighbours(tmp_path: Path) -> None:
    found = communication(job(tmp_path, stage(0), stage(1)))
    assert found.get("straggler", 0) == 0
    assert found["pipeline_bubble"] > 0


def test_of_a_pipeline_known_in_part_nothing_else_is_told(tmp_path: Path) -> None:
    """Of three ranks the first stage alone is at hand: it sends first, as every member of an exchange would."""
    events = [one for step in range(STEPS) for one in stage(0)(step * STEP)]
    events += [note(step * STEP, STEP, f"ProfilerStep#{step}") for step in range(STEPS)]
    write(tmp_path / "rank0.json", *events, rank=0, world_size=3)
    assert "straggler" not in codes(gpuscope.analyze(tmp_path, replay=False).report)


def nccl(at: int, dur: int, kind: str, seq: int, peer: tuple[int, int], number: int) -> list[Event]:
    """A message by NCCL: the call at `at`, its kernel from there on."""
    told = {
        "Collective name": kind,
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": seq,
        "Src Rank": peer[0],
        "Dst Rank": peer[1],
    }
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    return [call(at, 5, number), kernel(at + 5, dur, number, name, 20, **told)]


def test_a_ring_by_nccl_is_an_exchange(tmp_path: Path) -> None:
    """Each rank sends to the other and receives from it; rank 1's kernel before takes 4 ms longer."""

    def program(rank: int) -> Callable[[int], list[Event]]:
        busy, peers = (2000, 6000)[rank], [(rank, 1 - rank), (1 - rank, rank)]

        def step(at: int) -> list[Event]:
            number, seq, here = at // STEP * 10 + 1, at // STEP, at + busy + 20
            work = [op(at + 10, 8), call(at + 11, 5, number), kernel(at + 20, busy, number)]
            both = [
                one
                for place, kind in enumerate(("send", "recv"))
                for one in nccl(here + 10 * place, at + 6100 - here, kind, seq, peers[place], number + 1 + place)
            ]
            more = [op(at + 6250, 8), call(at + 6251, 5, number + 5), kernel(at + 6260, 3700, number + 5)]
            return [*work, *both, *more]

        return step

    found = communication(job(tmp_path, program(0), program(1), backend="nccl"))
    assert "pipeline_bubble" not in found
    assert found["straggler"] > 0


def test_an_all_to_all_s_kernel_of_sends_is_an_all_to_all(tmp_path: Path) -> None:
    events: list[Event] = []
    for step in range(3):
        at = step * 1000
        events += [
            op(at, 20, "c10d::alltoall_base_"),
            call(at + 5, 5, step + 1),
            kernel(at + 20, 200, step + 1, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 20),
        ]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events, world_size=2), replay=False).report
    assert {row["op"] for row in report["collectives"]} == {"all_to_all"}


def test_python_beside_a_message_is_not_in_it(tmp_path: Path) -> None:
    """Posted at the step's begin and waited for at its end: between two products Python runs, not gloo:recv."""

    def program(at: int) -> list[Event]:
        posted = [
            op(at + 5, 5, "c10d::send"),
            gloo(at + 6, 9900, "send", [64]),
            op(at + 12, 5, "c10d::recv_"),
            gloo(at + 13, 9880, "recv", [64]),
        ]
        return [*posted, op(at + 20, 3000, "aten::matmul"), op(at + 6000, 3800, "aten::matmul")]

    report = job(tmp_path, program, program)
    (found,) = (one for one in report["findings"] if one["code"] == "host_other")
    assert {one["name"] for one in found["evidence"]} == {"between aten::matmul and aten::matmul"}
    assert "NCCL's own arguments" not in str(report["verdict"])
