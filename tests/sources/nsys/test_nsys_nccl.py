"""NCCL's operations: from payloads where they were exported, else from kernel names alone."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from helpers.nsys import BACKENDS, Export, payload, process

import gpuscope
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

COMM = 0xABC
INIT, REDUCE, GATHER, PEER = 901, 902, 903, 904  # the ids differ in every version: only field names count
LAYOUT = {
    INIT: [("NCCL communicator ID", 18), ("No. of ranks", 5), ("Rank", 5), ("CUDA device", 5)],
    REDUCE: [("NCCL communicator ID", 18), ("Message size [bytes]", 22), ("Reduction operation", 1 << 24)],
    GATHER: [("NCCL communicator ID", 18), ("Message size [bytes]", 22)],
    PEER: [("NCCL communicator ID", 18), ("Message size [bytes]", 22), ("Peer rank", 5)],
}


def with_schemas() -> Export:
    export = Export(EXPORT_PARAM_INCLUDE_BLOBS="true")
    for schema, fields in LAYOUT.items():
        offset = 0
        for index, (name, kind) in enumerate(fields):
            # As in real files, the first field's offset is left out.
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
    return export


def nccl(export: Export, start: int, end: int, call: str, schema: int = 0, body: bytes = b"", pid: int = 10) -> None:
    blob = payload(schema, body) if schema else None
    export.range(start, end, None, pid=pid, textId=export.string(call), domainId=1, binaryData=blob)


def launched(export: Export, call: int, start: int, end: int, op: str, pid: int = 10) -> None:
    """A kernel that a call at `call` launched; its correlation id is that time."""
    export.call(call, call + 1, call, "cuLaunchKernelExC_v11060", pid=pid)
    export.kernel(start, end, call, f"ncclDevKernel_{op}(ncclDevKernelArgsStorage<4096ul>)", pid=pid)


def rows(trace: Trace) -> list[tuple[str, str, int, int, int]]:
    table = trace["collectives"]
    columns = zip(table["op"], table["group"], table["bytes"], table["group_size"], table["peer"], strict=True)
    return [(trace.names[op], trace.names[group], int(size), int(n), int(peer)) for op, group, size, n, peer in columns]


def init(export: Export, rank: int = 0, pid: int = 10) -> None:
    nccl(export, 1, 9, "ncclCommInitRankConfig", INIT, struct.pack("<Qiii4x", COMM, 4, rank, 0), pid)


@pytest.mark.parametrize("backend", BACKENDS)
def test_payloads_tell_size_and_communicator(tmp_path: Path, backend: str) -> None:
    export = with_schemas()
    init(export, rank=2)
    nccl(export, 10, 30, "ncclAllReduce", REDUCE, struct.pack("<QQi4x", COMM, 1000, 0))
    launched(export, 20, 100, 200, "AllReduce_Sum_f32_RING_LL")
    nccl(export, 40, 60, "ncclAllGather", GATHER, struct.pack("<QQ", COMM, 1000))
    launched(export, 50, 210, 300, "AllGather_RING_LL")
    trace = gpuscope.open_trace(export.write(tmp_path, backend))
    assert rows(trace) == [
        ("all_reduce", "0xabc", 1000, 4, NA),
        ("all_gather", "0xabc", 4000, 4, NA),  # NCCL logs one rank's share
    ]
    assert trace["collectives"]["event"].tolist() == [0, 1]
    assert trace.ranks == [2]  # the communicator of the whole job tells the rank
    assert trace["ranks"]["world_size"].tolist() == [4]
    assert trace.tables["ranks"]["backend"].tolist() == ["nccl"]
    assert trace["groups"]["size"].tolist() == [4]


def test_a_share_without_the_number_of_ranks_is_no_size(tmp_path: Path) -> None:
    export = with_schemas()
    nccl(export, 10, 30, "ncclReduceScatter", REDUCE, struct.pack("<QQi4x", COMM, 1000, 0))
    launched(export, 20, 100, 200, "ReduceScatter_Sum_f32_RING_LL")
    trace = gpuscope.open_trace(export.write(tmp_path))
    assert rows(trace) == [("reduce_scatter", "0xabc", NA, NA, NA)]
    assert "group_size_unknown" in {problem.code for problem in trace.problems}


def test_calls_of_a_group_share_the_kernel_that_its_end_launches(tmp_path: Path) -> None:
    """Two groups: an exchange with rank 1, then an all-to-all among four ranks made of sends and receives."""
    export = with_schemas()
    init(export)
    nccl(export, 10, 11, "ncclGroupStart")
    nccl(export, 12, 13, "ncclSend", PEER, struct.pack("<QQi4x", COMM, 300, 1))
    nccl(export, 14, 15, "ncclRecv", PEER, struct.pack("<QQi4x", COMM, 500, 1))
    nccl(export, 16, 30, "ncclGroupEnd")
    launched(export, 20, 100, 200, "SendRecv")
    nccl(export, 40, 41, "ncclGroupStart")
    for peer in range(4):
        nccl(export, 42 + 2 * peer, 43 + 2 * peer, "ncclSend", PEER, struct.pack("<QQi4x", COMM, 25, peer))
        nccl(export, 52 + 2 * peer, 53 + 2 * peer, "ncclRecv", PEER, struct.pack("<QQi4x", COMM, 25, peer))
    nccl(export, 62, 80, "ncclGroupEnd")
    launched(export, 70, 210, 300, "SendRecv")
    trace = gpuscope.open_trace(export.write(tmp_path))
    # Both directions at once: the array is what the larger one moves.
    assert rows(trace) == [("send_recv", "0xabc", 500, 4, 1), ("all_to_all", "0xabc", 100, 4, NA)]


def test_ranks_of_two_processes_from_their_communicator(tmp_path: Path) -> None:
    """Process 10 is rank 1, process 20 rank 0: the ids of the processes say otherwise."""
    export = with_schemas()
    for pid, rank in ((10, 1), (20, 0)):
        init(export, rank, pid)
        nccl(export, 10, 30, "ncclAllReduce", REDUCE, struct.pack("<QQi4x", COMM, 64, 0), pid)
        launched(export, 20, 100 + pid, 200, "AllReduce_Sum_f32_RING_LL", pid)
    trace = gpuscope.open_trace(export.write(tmp_path))
    frame = trace.tables["ranks"]
    assert dict(zip(frame["pid"], frame["rank"], strict=True)) == {10: 1, 20: 0}


@pytest.mark.parametrize("inline", [True, False])
def test_json_of_the_advanced_trace(tmp_path: Path, inline: bool) -> None:
    export = Export(EXPORT_PARAM_INCLUDE_JSON="true")
    told = '{"Communicator": "0xabc", "Count": 256, "Data type": "ncclFloat32", "Seq": 7}'
    text = {"jsonText": told} if inline else {"jsonTextId": export.string(told)}
    export.range(10, 30, "ncclAllReduce", domainId=1, **text)
    launched(export, 20, 100, 200, "AllReduce_Sum_f32_RING_LL")
    trace = gpuscope.open_trace(export.write(tmp_path))
    assert rows(trace) == [("all_reduce", "0xabc", 1024, NA, NA)]
    assert trace["collectives"]["seq"].tolist() == [7]
    assert trace.names[int(trace["collectives"]["dtype"][0])] == "float32"


def test_without_payloads_the_kernel_name_tells_the_operation_and_no_more(tmp_path: Path) -> None:
    export = Export(EXPORT_PARAM_INCLUDE_BLOBS="false")
    nccl(export, 10, 30, "ncclReduceScatter")
    launched(export, 20, 100, 200, "ReduceScatter_Sum_bf16_RING_LL128")
    export.kernel(300, 400, 99, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)")  # no launch recorded
    trace = gpuscope.open_trace(export.write(tmp_path))
    assert rows(trace) == [("reduce_scatter", "", NA, NA, NA), ("all_reduce", "", NA, NA, NA)]
    told = {problem.code: problem.message for problem in trace.problems}
    assert "--include-blobs=true" in told["no_nccl_payloads"]


def test_a_payload_of_unknown_layout_is_counted(tmp_path: Path) -> None:
    export = with_schemas()
    nccl(export, 10, 30, "ncclAllReduce", 777, b"\0" * 24)
    launched(export, 20, 100, 200, "AllReduce_Sum_f32_RING_LL")
    trace = gpuscope.open_trace(export.write(tmp_path))
    assert rows(trace) == [("all_reduce", "", NA, NA, NA)]
    assert {p.code: p.count for p in trace.problems}["payload_undecodable"] == 1


def test_mpi_as_ranges_of_old_versions(tmp_path: Path) -> None:
    """Up to 2022 MPI calls were NVTX ranges of the domain «MPI», and the thread told the rank."""
    export = Export()
    export.kernel(0, 10, 1)
    export.range(0, None, "MPI", eventType=75, domainId=3)
    export.range(0, None, "MPI Rank 6", eventType=39)
    export.range(20, 30, "MPI_Bcast", domainId=3)
    export.range(40, 50, "MPI_Init", domainId=3)
    trace = gpuscope.open_trace(export.write(tmp_path))
    assert trace.ranks == [6]
    assert [trace.names[op] for op in trace["collectives"]["op"]] == ["broadcast"]
    assert trace.tables["host_events"]["category"].tolist() == ["communication"] * 2
    assert trace["threads"]["pid"].tolist() == [process(10) >> 24 & 0xFFFFFF]
