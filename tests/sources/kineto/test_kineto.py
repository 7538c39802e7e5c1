"""What the Kineto source makes of the dialects and categories of different years; microseconds without floats."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest
from helpers.analysed import problems
from helpers.kineto import Event, call, copy, kernel, note, op, span, write
from hypothesis import given
from hypothesis import strategies as st

import gpuscope
from gpuscope.errors import UsageError
from gpuscope.sources.kineto.decimal_time import to_ns
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace


def starts(trace: Trace) -> list[int]:
    return trace["device_events"]["start"].tolist()


def test_three_time_dialects_agree(tmp_path: Path) -> None:
    """The same instant as integer epoch µs, as decimal epoch µs, and relative to a base."""
    epoch = 1_700_000_000_000_000
    whole = write(tmp_path / "a" / "rank0.json", kernel(epoch, 5))
    # json.dumps would round these stamps: they are written as text.
    decimal = write(tmp_path / "b" / "rank0.json", kernel(0, 5))
    decimal.write_text(decimal.read_text().replace('"ts": 0', f'"ts": {epoch}.000'))
    relative = write(tmp_path / "c" / "rank0.json", kernel(123.456, 5), baseTimeNanoseconds=epoch * 1000 - 123_456)
    assert [starts(gpuscope.open_trace(path)) for path in (whole, decimal, relative)] == [[epoch * 1000]] * 3


def test_old_categories_and_bare_array(tmp_path: Path) -> None:
    """2020: capitalised categories, `stream 7` as thread, no object around the events."""
    events = [
        span("Runtime", "cudaLaunchKernel", 0, 2, correlation=5),
        span("Kernel", "gemm", 10, 4, pid=0, tid="stream 7", device=0, stream="7", correlation=5),
        span(
            "Memcpy", "Memcpy HtoD (Pageable -> Device)", 20, 1, pid=0, tid="stream 7", device=0, stream=7, bytes="64"
        ),
        span("Memset", "Memset (Device)", 22, 1, pid=0, tid="stream 7", device=0, stream=7),
        span("Operator", "aten::mm", 0, 3),
    ]
    path = tmp_path / "worker3.pt.trace.json"
    path.write_text(json.dumps(events))
    trace = gpuscope.open_trace(path)
    frame = trace.tables["device_events"]
    assert frame["kind"].tolist() == ["compute", "memory", "memory"]
    assert frame["copy_kind"].tolist()[1:] == ["HtoD pageable", "memset"]
    assert frame["bytes"].tolist()[1] == 64
    assert frame["stream"].tolist() == [7, 7, 7]
    assert trace.ranks == [3]
    launch = int(trace["device_events"]["launch"][0])
    assert trace.tables["host_events"]["name"][launch] == "cudaLaunchKernel"


def test_rank_from_header_before_name(tmp_path: Path) -> None:
    path = write(tmp_path / "rank7.json", kernel(0, 1), rank=2, world_size=4)
    assert gpuscope.open_trace(path).ranks == [2]


def test_two_files_without_rank_are_refused_by_name(tmp_path: Path) -> None:
    a, b = (write(tmp_path / name, kernel(0, 1), rank=None) for name in ("a.json", "b.json"))
    with pytest.raises(UsageError, match=r"a\.json.*b\.json"):
        gpuscope.open_trace(a, b)


def test_synchronisation_is_no_work(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.json",
        kernel(0, 10),
        span("cuda_sync", "Context Sync", 10, 90, pid=0, tid=7, device=0, stream=7),
        kernel(100, 10),
    )
    trace = gpuscope.open_trace(path)
    assert trace.breakdown(trace.lanes()[0].rows).idle == 90_000
    assert len(trace["syncs"]) == 1


def test_correlation_is_joined_within_a_rank(tmp_path: Path) -> None:
    """Both ranks use id 5; each kernel finds its own launch."""
    for rank, at in ((0, 0), (1, 50)):
        write(tmp_path / f"rank{rank}.json", call(at, 2, 5), kernel(at + 10, 5, 5), rank=rank, world_size=2)
    trace = gpuscope.open_trace(tmp_path)
    launch = trace["device_events"]["launch"].tolist()
    assert trace["host_events"]["start"][launch].tolist() == [0, 50_000]


def test_graph_kernels_share_a_launch(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.json",
        call(0, 2, 5, name="cudaGraphLaunch"),
        kernel(10, 5, 5, **{"graph id": 3}),
        kernel(20, 5, 5, **{"graph id": 3}),
    )
    trace = gpuscope.open_trace(path)
    assert trace["device_events"]["launch"].tolist() == [0, 0]
    assert trace.tables["device_events"]["graph"].tolist() == [3, 3]


def test_missing_launches_and_kernels_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", call(0, 2, 1), call(4, 2, 2), kernel(10, 5, 1), kernel(20, 5, 77))
    assert problems(gpuscope.open_trace(path)) == {"launch_missing": 1, "kernel_missing": 1}


def test_collective_arguments(tmp_path: Path) -> None:
    """An all-gather's array is its output: 2 × 1024 halves are 4096 bytes."""
    told = {
        "Collective name": "_allgather_base",
        "In msg nelems": 1024,
        "Out msg nelems": 2048,
        "dtype": "Half",
        "Group size": 2,
        "Process Group Name": "3",
        "Process Group Description": "mesh_dp",
        "Process Group Ranks": "[0, 1]",
        "Seq": 11,
    }
    path = write(tmp_path / "r.json", kernel(0, 5, name="ncclDevKernel_Generic_4(ncclDevComm)", **told))
    (row,) = gpuscope.open_trace(path).tables["collectives"].to_dict("records")
    expected = {
        "op": "all_gather",
        "bytes": 4096,
        "group": "3",
        "group_description": "mesh_dp",
        "group_size": 2,
        "group_ranks": "0,1",
        "seq": 11,
        "dtype": "Half",
        "start": 0,
        "end": 5000,
    }
    assert {key: row[key] for key in expected} == expected


def test_job_on_nccl_without_kernels_is_no_cpu_training(tmp_path: Path) -> None:
    """Operators but no device: the kernels are missing, the host is not the device."""
    assert gpuscope.open_trace(write(tmp_path / "r.json", op(0, 5))).lanes() == []


def test_cpu_training(tmp_path: Path) -> None:
    """Operators are compute, a collective where nothing computes is exposed, the loader leaves idle time.

    op 0-10, gloo 5-20 (10 exposed), nothing 20-25, loader 25-40 with gloo in flight 30-35, op 40-50.
    """
    path = write(
        tmp_path / "r.json",
        op(0, 10),
        span("user_annotation", "gloo:all_reduce", 5, 15, tid=2, **{"Input Dims": [[256]], "Input type": ["float"]}),
        note(25, 15, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        span("user_annotation", "gloo:all_reduce", 30, 5, tid=2),
        op(40, 10),
        rank=None,
        distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2},
    )
    trace = gpuscope.open_trace(path)
    (lane,) = trace.lanes()
    parts = trace.breakdown(lane.rows).parts
    assert parts == {"compute": 20_000, "exposed_communication": 10_000, "exposed_memory": 0, "idle": 20_000}
    assert trace.tables["collectives"]["bytes"].tolist()[0] == 1024


def test_gloo_annotations_that_gpuscope_recorded_say_what_they_are(tmp_path: Path) -> None:
    """A reduce-scatter runs as an all-reduce; its arguments tell, and the annotation stays the interval."""
    arguments = {
        "Input Dims": [[256]],
        "Input type": ["float"],
        "Collective name": "reduce_scatter",
        "In msg nelems": 256,
        "Out msg nelems": 128,
        "dtype": "float32",
        "Group size": 2,
        "Process Group Name": "3",
        "Process Group Description": "mesh_dp",
        "Process Group Ranks": "[0, 1]",
        "Seq": 7,
    }
    event = span("user_annotation", "gloo:all_reduce", 5, 15, tid=2, **arguments)
    (row,) = gpuscope.open_trace(write(tmp_path / "r.json", op(0, 10), event)).tables["collectives"].to_dict("records")
    expected = {
        "op": "reduce_scatter",
        "group": "3",
        "group_description": "mesh_dp",
        "group_ranks": "0,1",
        "seq": 7,
        "bytes": 1024,
    }
    assert {key: row[key] for key in expected} == expected


def test_gzip_and_types_that_vary(tmp_path: Path) -> None:
    event = kernel(0, 5)
    event["args"] = {"device": "0", "stream": "7", "correlation": "12", "bytes": None}
    plain = write(tmp_path / "rank0.json", event, copy(6, 1, 3, bytes=12.0))
    zipped = tmp_path / "z" / "rank0.json.gz"
    zipped.parent.mkdir()
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    one, two = (gpuscope.open_trace(path).tables["device_events"] for path in (plain, zipped))
    assert one.equals(two)
    assert one["correlation"].tolist() == [12, 3]
    assert one["bytes"].tolist()[1] == 12


def test_ranks_are_chosen_without_reading_the_others(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", kernel(0, 1), rank=0, world_size=3)
    (tmp_path / "rank1.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X"')  # would be an error
    write(tmp_path / "rank2.json", kernel(5, 1), rank=2, world_size=3)
    assert gpuscope.open_trace(tmp_path, ranks={0, 2}).ranks == [0, 2]


def test_the_range_around_a_launch_names_the_operation(tmp_path: Path) -> None:
    """NCCL runs an all-to-all by its SendRecv kernel; a pipeline's send is one too."""
    kernel_name = "ncclDevKernel_SendRecv(ncclDevComm)"
    path = write(
        tmp_path / "r.json",
        note(0, 10, "nccl:all_to_all"),
        call(5, 2, 1),
        kernel(20, 5, 1, name=kernel_name),
        note(30, 10, "nccl:send 0->1"),
        call(35, 2, 2),
        kernel(50, 5, 2, name=kernel_name),
        call(60, 2, 3),
        kernel(70, 5, 3, name=kernel_name),
    )
    assert gpuscope.open_trace(path).tables["collectives"]["op"].tolist() == ["all_to_all", "send", "send_recv"]


def test_the_range_around_a_launch_holds_what_it_sends(tmp_path: Path) -> None:
    """In older torch no kernel carries arguments, but the inputs of the range around its launch are recorded: of all
    operations but a gather the whole array. A range around two kernels leaves both sizes open, and so does one of
    another operation than the kernel's: correlation ids of a thinned recording lead astray."""

    def ranged(ts: int, name: str, dims: list[list[int]], dtype: str, *correlations: int) -> list[Event]:
        inputs = {"Input Dims": dims, "Input type": [dtype]}
        launches = [call(ts + 2 + 2 * i, 1, number) for i, number in enumerate(correlations)]
        by = {"nccl:all_to_all": "SendRecv_RING_SIMPLE_Sum_int8_t", "nccl:all_reduce": "AllReduce_RING_LL_Sum_float"}
        of = f"ncclKernel_{by.get(name, 'AllGather_RING_LL_Sum_int8_t')}(ncclWorkElem)"
        kernels = [kernel(ts + 20 + i, 1, number, name=of) for i, number in enumerate(correlations)]
        return [span("user_annotation", name, ts, 10, **inputs), *launches, *kernels]

    path = write(
        tmp_path / "r.json",
        *ranged(0, "nccl:all_to_all", [[8, 1024]], "float", 1),
        *ranged(100, "nccl:_all_gather_base", [[256]], "float", 2),
        *ranged(200, "nccl:all_reduce", [[256]], "c10::BFloat16", 3),
        *ranged(300, "nccl:all_reduce", [[256]], "", 4),
        *ranged(400, "nccl:all_reduce", [[256]], "float", 5, 6),
        span("user_annotation", "nccl:all_reduce", 500, 10, **{"Input Dims": [[256]], "Input type": ["float"]}),
        call(505, 1, 7),
        kernel(520, 1, 7, name="ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"),
    )
    table = gpuscope.open_trace(path).tables["collectives"]
    assert table["op"].tolist() == ["all_to_all", "all_gather", *["all_reduce"] * 4, "send_recv"]
    assert table["bytes"].fillna(-1).tolist() == [32_768, -1, 512, -1, -1, -1, -1]
    assert table["dtype"].tolist()[0] == "float"


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1694128201545123.456", 1694128201545123456),  # through float64 this ends in …500
        (b"1610366662254562", 1610366662254562000),  # integer epoch microseconds
        (b"4366787550969.463", 4366787550969463),  # since baseTimeNanoseconds
        (b'"1736405443863674.400"', 1736405443863674400),  # Ascend writes strings
        (b"72994.4384375", 72994438),  # more digits than there are nanoseconds
        (b"0.5", 500),
        (b"-3.25", -3250),
        (b"1e3", 1_000_000),
        (b"null", NA),
        (b'"abc"', NA),
        (b"", NA),
        (b"99999999999999999999", NA),  # beyond any clock
        (b"9303565271463602", NA),  # fits sixteen digits, but no int64 of nanoseconds
        (b"4611686018427387.903", 2**62 - 1),
        (b"4611686018427387.904", NA),
        (b"1e999999", NA),
        (b'"1,5"', NA),
    ],
)
def test_one(text: bytes, ns: int) -> None:
    assert to_ns([text]).tolist() == [ns]


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 3), st.integers(0, 999)), min_size=1, max_size=20))
def test_exact_against_decimal(parts: list[tuple[int, int, int]]) -> None:
    """Stamps of different widths in one block."""
    texts = [f"{whole}.{part % 10**places:0{places}d}" if places else str(whole) for whole, places, part in parts]
    assert to_ns([text.encode() for text in texts]).tolist() == [int(Decimal(text) * 1000) for text in texts]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("broken", [False, True])
def test_header_behind_the_events_is_read_whole(tmp_path: Path, indent: int | None, broken: bool) -> None:
    path = write(
        tmp_path / "trace.json",
        kernel(0, 10, 1),
        kernel(20, 10, 2),
        rank=3,
        world_size=8,
        deviceProperties=[{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "NVIDIA H100"}],
        trace_id="1",
    )
    document = json.loads(path.read_text())
    events = document.pop("traceEvents")
    text = json.dumps({"metadata": {}, "traceEvents": events, **document}, indent=indent)
    path.write_text(text.replace('"dur": 10', '"dur": 1x', 1) if broken else text)
    trace = gpuscope.open_trace(path)
    assert trace.ranks == [3]
    assert trace.tables["ranks"]["device_name"].tolist() == ["NVIDIA H100"]
    assert len(trace["device_events"]) == (1 if broken else 2)
    assert [(p.code, p.count) for p in trace.problems] == ([("undecodable_event", 1)] if broken else [])
