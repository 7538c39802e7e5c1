"""The world size: as recorded, by rank of the record, else assumed where devices and collectives allow it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from helpers.kineto import kernel, write
from helpers.nsys import Export
from helpers.runs import coll, run

import gpuscope
from gpuscope.analyzers.facts.clocks import estimate
from gpuscope.analyzers.facts.matching import match
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.trace import Trace, World, recorded_world


def world_of(trace: Trace) -> World:
    return RunFacts(trace, ()).world


def recorded(ranks: int, communicator: int | None = None, **sizes: int) -> Trace:
    """A trace of so many ranks; sizes by where they were recorded, and of a communicator in a log of NCCL."""
    builder = TraceBuilder()
    code = builder.names.code
    source = builder.source(Path("x"), "hand", "", 0, {})
    for rank in range(ranks):
        basis, size = list(sizes.items())[rank % len(sizes)] if sizes else ("", None)
        builder.add(
            "ranks",
            1,
            {
                "rank": rank,
                "source": source,
                "device": 0,
                "world_size": size,
                "world_basis": code(basis) if basis else None,
            },
        )
    if communicator is not None:
        builder.add("communicators", 1, {"communicator": code("c"), "size": communicator})
    return builder.finish()


@pytest.mark.parametrize(
    ("trace", "size", "provenance"),
    [
        (recorded(2, 8, distributed_info=16, environment=32), 16, "distributed_info"),
        (recorded(2, 32, environment=16), 32, "communicators"),
        (recorded(2, 4, environment=16), 16, "environment"),  # a communicator of four is a group of the sixteen
        (recorded(2, manifest=8, environment=4), 4, "environment"),
        (recorded(2, manifest=8), 8, "manifest"),
        (recorded(4, 2, environment=2), None, None),  # fewer than there are
        (recorded(2), None, None),
    ],
)
def test_the_first_record_that_can_be_right(trace: Trace, size: int | None, provenance: str | None) -> None:
    found = recorded_world(trace)
    assert (found.size, found.provenance) == (size, provenance)


def test_distributed_info_of_kineto(tmp_path: Path) -> None:
    found = world_of(gpuscope.open_trace(write(tmp_path / "r.json", kernel(0, 1), world_size=8)))
    assert (found.size, found.provenance) == (8, "distributed_info")


def test_a_run_manifest_where_the_trace_records_none(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", kernel(0, 1), rank=None)
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "completed", "world_size": 4}))
    found = world_of(gpuscope.open_trace(tmp_path))
    assert (found.size, found.provenance) == (4, "manifest")


MS = 1_000_000


def node(folder: Path, host: str, pids: tuple[int, ...], listed: int, late: dict[int, int], skew: int = 0) -> None:
    """A report of a node that ran ten all-reduces of 1 ms, no two of which begin equally far apart; each process ends
    them `late` ns after the others of the job, on a clock that is `skew` ns ahead."""
    export = Export()
    export.host(host, [f"GPU-{host}-{number}" for number in range(listed)], epoch_ns=10**18)
    for ordinal, pid in enumerate(pids):
        export.uses(pid, ordinal, ordinal)
        for step in range(10):
            begin = skew + 10 * MS * step + 100_000 * step**2
            export.call(begin - 1000, begin - 900, step + 1, pid=pid)
            export.kernel(
                begin, begin + MS + late[pid], step + 1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", pid, ordinal
            )
    export.write(folder, name=host)


@pytest.mark.parametrize(
    ("listed", "late", "assumed", "why"),
    [
        (2, 40_000, True, "every device of the host is there, and 10 matched collectives end within 40 µs"),
        (2, 60_000, False, "the ends of matched collectives are 60 µs apart"),
        (8, 0, False, "of the 8 devices of n0 only 2 are in the files"),
        (0, 40_000, True, "assumed to be all of them"),  # no device table: those seen
    ],
)
def test_one_host(tmp_path: Path, listed: int, late: int, assumed: bool, why: str) -> None:
    node(tmp_path, "n0", (10, 11), listed, {10: 0, 11: late})
    found = world_of(gpuscope.open_trace(tmp_path))
    assert (found.size, found.provenance) == ((2, "assumed") if assumed else (None, None))
    assert why in found.why


@pytest.mark.parametrize(("late", "size"), [(40_000, 4), (60_000, None)])
def test_two_hosts_after_one_offset_each(tmp_path: Path, late: int, size: int | None) -> None:
    """The clocks are 3 ms apart; what counts is what one offset leaves: the second process of the second host ends
    `late` after the first, so the best offset leaves half of that on either side."""
    node(tmp_path, "n0", (10, 11), 2, {10: 0, 11: 0})
    node(tmp_path, "n1", (10, 11), 2, {10: 0, 11: late}, skew=3 * MS)
    trace = gpuscope.open_trace(tmp_path)
    assert trace.ranks == [0, 1, 2, 3]
    assert world_of(trace).size == size


def test_ranks_that_never_meet_are_no_world() -> None:
    pairs = [
        coll(rank, at, at + 10, "", op)
        for rank, op in ((0, "all_reduce"), (1, "all_gather"))
        for at in range(0, 90, 30)
    ]
    found = world_of(run(pairs, hosts=["n0", "n0"]))
    assert (found.size, found.provenance) == (None, None)


def test_the_report_names_the_assumption_and_believes_less(tmp_path: Path) -> None:
    node(tmp_path, "n0", (10, 11), 2, {10: 0, 11: 0})
    report = gpuscope.analyze(tmp_path).report
    assert (report["trace"]["world_size"], report["trace"]["world_basis"]) == (2, "assumed")
    (named,) = [problem for problem in report["problems"] if problem["code"] == "world_assumed"]
    assert named["severity"] == "info"
    assert "2 ranks at hand are assumed" in named["message"]
    known = tmp_path / "known"
    node(known, "n0", (10, 11), 2, {10: 0, 11: 0})
    (known / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "completed", "world_size": 2}))
    sure = gpuscope.analyze(known).report["verdict"]
    assert report["verdict"]["bound_by"] == sure["bound_by"] is not None
    assert report["verdict"]["confidence"] == pytest.approx(0.9 * sure["confidence"], abs=0.01)
    assert "assumed to be the whole job" in report["verdict"]["why"]
    assert "assumed" not in sure["why"]


COMM = 0xABC
INIT, PEER = 901, 904


def pipeline_rank(folder: Path, host: str, place: int, op: str, peer: int) -> None:
    """One of three stages on hosts of their own, in a communicator of all three; it sends or receives ten times."""
    export = Export(EXPORT_PARAM_INCLUDE_BLOBS="true")
    export.host(host)
    fields = {
        INIT: [("NCCL communicator ID", 18), ("No. of ranks", 5), ("Rank", 5)],
        PEER: [("NCCL communicator ID", 18), ("Message size [bytes]", 22), ("Peer rank", 5)],
    }
    for schema, columns in fields.items():
        offset = 0
        for index, (name, kind) in enumerate(columns):
            export.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=1,
                schemaId=schema,
                idx=index,
                type=kind,
                name=name,
                offset=offset or None,
            )
            offset += 4 if kind == 5 else 8

    def said(start: int, end: int, name: str, schema: int, body: bytes) -> None:
        blob = struct.pack("<QQQQ", 1, schema, len(body), 32) + body
        export.range(start, end, None, textId=export.string(name), domainId=1, binaryData=blob)

    said(1, 9, "ncclCommInitRank", INIT, struct.pack("<Qii", COMM, 3, place))
    for step in range(1, 4):
        said(100 * step, 100 * step + 20, f"nccl{op}", PEER, struct.pack("<QQi4x", COMM, 64, peer))
        export.call(100 * step + 5, 100 * step + 6, step, "cuLaunchKernelExC_v11060")
        export.kernel(100 * step + 30, 100 * step + 60, step, "ncclDevKernel_SendRecv(x)")
    export.write(folder, name=host)


def test_ranks_groups_and_peers_by_communicator_over_files(tmp_path: Path) -> None:
    """The hosts' names say the reverse of the communicator. Each end names its peer by its place in the communicator,
    which another file tells."""
    pipeline_rank(tmp_path, "a", 2, "Recv", 1)
    pipeline_rank(tmp_path, "b", 1, "Send", 2)
    pipeline_rank(tmp_path, "c", 0, "Send", 1)
    trace = gpuscope.open_trace(tmp_path)
    frame = trace.tables["ranks"]
    assert dict(zip(frame["host"], frame["rank"], strict=True)) == {"a": 2, "b": 1, "c": 0}
    found = world_of(trace)
    assert (found.size, found.provenance) == (3, "communicators")
    matched = match(trace)
    assert len(matched.instances) == 3  # rank 1 to rank 2; what rank 0 sent, rank 1 did not record to have received
    rank = trace["collectives"]["rank"][matched.instances.rows]
    assert rank.tolist() == [1, 2] * 3
    assert estimate(trace, matched).error is None
