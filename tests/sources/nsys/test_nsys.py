"""What the nsys source makes of exports of different versions and formats."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from helpers.analysed import problems
from helpers.nsys import BACKENDS, KERNEL, NVTX, Export, process

import gpuscope
from gpuscope.errors import InputError
from gpuscope.sources.opening import inputs
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

EPOCH = 1_700_000_000_000_000_000


def names(trace: Trace, table: str, column: str = "name") -> list[str]:
    return [trace.names[code] for code in trace[table][column].tolist()]


def opened(tmp_path: Path, export: Export) -> Trace:
    return gpuscope.open_trace(export.write(tmp_path))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_same_trace(tmp_path: Path, backend: str) -> None:
    """Two processes that use the same correlation ids, names by id and inline, text that is not UTF-8."""
    export = Export()
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH)
    export.add("TARGET_INFO_SYSTEM_ENV", name="CpuInfo", value=b"\x0a\xc3\x28")
    for pid, late in ((10, 0), (20, 1000)):
        export.call(late + 100, late + 110, 5, pid=pid)
        export.kernel(late + 200, late + 300, 5, pid=pid)
        export.range(late + 90, late + 120, "inline", pid=pid)
        export.range(late + 80, late + 130, None, pid=pid, textId=export.string(b"by id \xff"))
    export.copy(310, 320, 6, srcKind=0)
    trace = gpuscope.open_trace(export.write(tmp_path, backend))
    device, host = trace["device_events"], trace["host_events"]
    assert trace.ranks == [0, 1]
    assert (device["start"] - EPOCH).tolist() == [200, 310, 1200]
    assert names(trace, "device_events") == ["gemm", "[CUDA memcpy Host-to-Device]", "gemm"]
    assert names(trace, "device_events", "copy_kind") == ["", "HtoD pageable", ""]
    assert (host["start"] - EPOCH).tolist() == [80, 90, 100, 1080, 1090, 1100]
    assert names(trace, "host_events") == ["by id \ufffd", "inline", "cudaLaunchKernel_v7000"] * 2
    assert device["launch"].tolist() == [2, NA, 5]  # each process's own call, not the other's of the same id
    assert trace["ranks"]["pid"].tolist() == [10, 20]
    assert problems(trace) == {"launch_missing": 1, "invalid_utf8": 1}
    assert trace.sources[0].format_version == "schema 3.17.2"
    assert trace.sources[0].facts["export_format"] == backend


def test_columns_and_tables_may_be_missing(tmp_path: Path) -> None:
    """As little as a kernel: no name, no stream, no metadata, no clock."""
    export = Export()
    del export.tables["META_DATA_EXPORT"]
    export.add(KERNEL, start=5, end=9, deviceId=2, globalPid=process(7))
    trace = opened(tmp_path, export)
    assert trace["device_events"]["start"].tolist() == [5]
    assert trace["device_events"]["device"].tolist() == [2]
    assert trace["device_events"]["stream"].tolist() == [NA]
    assert trace.sources[0].facts["session_start_utc_ns"] is None


@pytest.mark.parametrize(("normalised", "start"), [("false", EPOCH + 5), ("true", 5)])
def test_times_that_nsys_made_utc_already_stay_as_they_are(tmp_path: Path, normalised: str, start: int) -> None:
    export = Export(EXPORT_PARAM_TIME_NORMALIZE=normalised)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH)
    export.kernel(5, 9, 1)
    assert opened(tmp_path, export)["device_events"]["start"].tolist() == [start]


def test_only_closed_ranges_count(tmp_path: Path) -> None:
    """Domains (75), thread names (39) and marks (34) have no end; a range without one was never closed."""
    export = Export()
    export.kernel(0, 10, 1)
    export.range(1, 5, "push/pop")
    export.range(2, 6, "start/end", eventType=60)
    export.range(3, None, "never closed")
    for kind in (75, 39, 34):
        export.range(4, None, "no range", eventType=kind)
    trace = opened(tmp_path, export)
    assert names(trace, "host_events") == ["push/pop", "start/end"]
    assert problems(trace) == {"range_never_closed": 1}


def test_operators_of_emit_nvtx_lose_what_makes_each_name_unique(tmp_path: Path) -> None:
    export = Export()
    export.range(0, 9, "aten::mm, seq = 7, op_id = 31, sizes = [[2, 3], [3, 4]]")
    export.range(10, 19, "aten::mm, seq = 8, op_id = 32, sizes = [[2, 3], [3, 4]]")
    export.range(20, 29, "my step, op_id = 33")
    trace = opened(tmp_path, export)
    frame = trace.tables["host_events"]
    assert frame["name"].tolist() == ["aten::mm", "aten::mm", "my step"]
    assert trace.tables["shapes"][["event", "dims"]].to_numpy().tolist() == [
        [0, "[[2, 3], [3, 4]]"],
        [1, "[[2, 3], [3, 4]]"],
    ]
    assert frame["category"].tolist() == ["op", "op", "annotation"]


def test_migrations_are_read_once(tmp_path: Path) -> None:
    """They stand in MEMCPY (copyKind 11, 12) as well as in CUDA_UM_… tables, and nobody launched them."""
    export = Export()
    export.call(0, 1, 1)
    export.kernel(0, 10, 1)
    export.copy(10, 30, 0, kind=11, migrationCause=2)
    export.copy(40, 50, 0, kind=12, migrationCause=2)
    export.add("CUDA_UM_GPU_PAGE_FAULT_EVENTS", start=10, end=30, globalPid=process(10))
    trace = opened(tmp_path, export)
    assert names(trace, "device_events", "copy_kind") == [
        "",
        "migration HtoD, page fault",
        "migration DtoH, page fault",
    ]
    (lane,) = trace.lanes()
    assert trace.breakdown(lane.rows).exposed_memory == 20 + 10
    assert problems(trace) == {}


def test_graph_level_rows_count_as_compute_unless_their_nodes_are_there(tmp_path: Path) -> None:
    export = Export()
    graph = {"deviceId": 0, "streamId": 7, "globalPid": process(10), "graphId": 3}
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=100, end=200, correlationId=1, **graph)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=300, end=400, correlationId=2, **graph)
    export.kernel(310, 350, 2, graphNodeId=3 << 32 | 1)
    trace = opened(tmp_path, export)
    assert names(trace, "device_events") == ["CUDA graph 3", "gemm"]
    assert trace["device_events"]["graph"].tolist() == [3, 3]
    assert problems(trace)["graph_level"] == 1


def test_a_process_of_two_devices_is_two_ranks_whose_launches_all_resolve(tmp_path: Path) -> None:
    export = Export()
    export.call(10, 11, 1)
    export.kernel(20, 30, 1, device=0)
    export.call(12, 13, 2)
    export.kernel(20, 40, 2, device=1)
    export.call(14, 15, 3)  # its kernel was lost
    export.kernel(50, 60, 9, device=0)
    trace = opened(tmp_path, export)
    device, host = trace["device_events"], trace["host_events"]
    assert device["rank"].tolist() == [0, 0, 1]
    assert host["rank"].tolist() == [0, 0, 0, 1, 1, 1]  # each rank has all that the process did …
    launches = [None if row == NA else int(row) for row in device["launch"]]
    assert launches == [0, None, 4]  # … and is linked to its own launches
    assert problems(trace) == {"launch_missing": 1, "kernel_missing": 1}  # counted once, not once per rank


def two_processes() -> Export:
    export = Export()
    for pid in (20, 10):
        export.kernel(0, 10, 1, pid=pid)
    return export


def test_ranks_from_mpi(tmp_path: Path) -> None:
    export = two_processes()
    export.add("MPI_RANKS", globalTid=process(10) + 10, rank=5)
    export.add("MPI_RANKS", globalTid=process(20) + 20, rank=4)
    export.add("MPI_COMMUNICATORS", rank=4, commHandle=1, size=8)
    trace = opened(tmp_path, export)
    frame = trace.tables["ranks"]
    assert dict(zip(frame["pid"], frame["rank"], strict=True)) == {10: 5, 20: 4}
    assert frame["world_size"].tolist() == [8, 8]


def test_rank_from_the_environment_only_where_one_process_worked(tmp_path: Path) -> None:
    def environment(export: Export) -> Export:
        export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='RANK="3"')
        export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='WORLD_SIZE="16"')
        export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='LOCAL_RANK="1"')
        return export

    one = Export()
    one.kernel(0, 10, 1)
    one.kernel(0, 10, 2, device=1)  # a second context of the same rank: a second lane, not a second rank
    trace = opened(tmp_path, environment(one))
    assert [(lane.rank, lane.device) for lane in trace.lanes()] == [(3, 0), (3, 1)]
    assert trace["ranks"]["world_size"].tolist() == [16, 16]
    (tmp_path / "two").mkdir()
    assert opened(tmp_path / "two", environment(two_processes())).ranks == [0, 1]


def test_a_subset_of_ranks_reads_no_other_file(tmp_path: Path) -> None:
    for rank in (0, 1):
        export = Export()
        export.kernel(0, 10, 1)
        export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'RANK="{rank}"')
        export.write(tmp_path).rename(tmp_path / f"rep.{rank}.sqlite")
    assert [item.path.name for item in inputs([tmp_path], ranks=[1])] == ["rep.1.sqlite"]
    assert gpuscope.open_trace(tmp_path).ranks == [0, 1]


def test_one_report_in_several_formats_counts_once(tmp_path: Path) -> None:
    export = Export()
    export.kernel(0, 10, 1)
    for backend in BACKENDS:
        export.write(tmp_path, backend)
    assert [item.path.name for item in inputs([tmp_path])] == ["export.sqlite"]


def test_without_pyarrow_what_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = Export()
    export.kernel(0, 10, 1)
    path = export.write(tmp_path, "parquetdir")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'pyarrow"):
        gpuscope.open_trace(path)


def test_an_arrowdir_may_hold_streams(tmp_path: Path) -> None:
    """Arrow has a file format and a stream format; nsys's name for a stream ends in .arrows."""
    export = Export()
    export.kernel(3, 10, 1)
    path = export.write(tmp_path, "arrowdir")
    ipc = pytest.importorskip("pyarrow.ipc")
    for file in list(path.iterdir()):
        table = ipc.open_file(file.read_bytes()).read_all()
        with ipc.new_stream(str(file.with_suffix(".arrows")), table.schema) as writer:
            writer.write_table(table)
        file.unlink()
    assert gpuscope.open_trace(path)["device_events"]["start"].tolist() == [3]


def test_a_damaged_parquet_file_is_told(tmp_path: Path) -> None:
    export = Export()
    export.kernel(0, 10, 1)
    path = export.write(tmp_path, "parquetdir")
    (path / f"{KERNEL}.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError, match=KERNEL):
        gpuscope.open_trace(path)


def test_device_names_skip_other_adapters(tmp_path: Path) -> None:
    export = Export()
    export.kernel(0, 10, 1, device=0)
    export.add("TARGET_INFO_GPU", id=0, cuDevice=None, name="Intel(R) UHD Graphics 770")
    export.add("TARGET_INFO_GPU", id=1, cuDevice=0, name="NVIDIA GeForce RTX 4090")
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=10)
    assert names(opened(tmp_path, export), "ranks", "device_name") == ["NVIDIA GeForce RTX 4090"]


def test_a_launch_into_a_captured_stream_lost_no_kernel(tmp_path: Path) -> None:
    export = Export()
    export.call(0, 1, 1, "cudaStreamBeginCapture_v10000")
    export.call(2, 3, 2)
    export.call(4, 5, 3, "cudaStreamEndCapture_v10000")
    export.call(6, 7, 4, returnValue=2)  # failed: nothing was launched either
    export.call(8, 9, 5)
    export.kernel(20, 30, 5)
    assert problems(opened(tmp_path, export)) == {"failed_call": 1}


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (lambda e: e.call(0, 1, 1), "the kernels that they launched were not recorded"),
        (lambda e: e.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="NvtxEvents"), "CUDA was not traced"),
        (lambda e: e.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="Cuda"), "CUDA was to be traced"),
        (lambda e: e.add("OSRT_API", start=0, end=1, globalTid=1 << 48, nameId=1), "does not say whether"),
    ],
)
def test_no_device_events_is_told_with_its_reason(tmp_path: Path, fill: object, said: str) -> None:
    export = Export()
    export.range(0, 10, "step")
    assert callable(fill)
    fill(export)
    trace = opened(tmp_path, export)
    assert trace.ranks == [0]
    assert said in next(problem.message for problem in trace.problems if problem.code == "no_device_events")
    assert ("kernels_not_recorded" in problems(trace)) == ("launched" in said)


def test_an_export_of_some_tables_may_lack_those_of_devices(tmp_path: Path) -> None:
    export = Export(EXPORT_PARAM_TABLES_TO_EXPORT="NVTX_EVENTS")
    export.range(0, 10, "step")
    problems = {problem.code: problem.message for problem in opened(tmp_path, export).problems}
    assert "--tables" in problems["no_device_events"]


def test_what_else_threads_did_and_synchronisation_records(tmp_path: Path) -> None:
    export = Export()
    export.call(100, 200, 1, "cudaStreamSynchronize_v3020")
    thread = {"globalTid": process(10) + 10}
    export.add("OSRT_API", start=10, end=20, nameId=export.string("read"), **thread)
    export.add("PROFILER_OVERHEAD", start=30, end=40, nameId=export.string("Buffer flush"), **thread)
    export.add("ThreadNames", nameId=export.string("pt_main_thread"), priority=10, **thread)
    on_device = {"deviceId": 0, "globalPid": process(10), "correlationId": 1}
    for kind, stream in ((3, 7), (4, 2**32 - 1)):  # the latter: no stream, as nsys writes it
        export.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=100, end=200, streamId=stream, syncType=kind, **on_device
        )
    trace = opened(tmp_path, export)
    assert trace.tables["host_events"]["category"].tolist() == ["os", "overhead", "runtime"]
    assert names(trace, "threads") == ["pt_main_thread"]
    assert names(trace, "syncs") == ["Stream Sync", "Context Sync"]
    assert trace["syncs"]["stream"].tolist() == [7, NA]
    assert not len(trace["device_events"])  # waiting is no work


def test_mpi_calls_become_collectives(tmp_path: Path) -> None:
    export = Export()
    export.kernel(0, 10, 1)
    row = {"globalTid": process(10) + 10, "commHandle": 1}
    export.add("MPI_RANKS", globalTid=process(10) + 10, rank=0)
    export.add("MPI_COMMUNICATORS", rank=0, commHandle=1, size=4)
    for start, name, size in ((0, "MPI_Allreduce", 100), (20, "MPI_Allgather", 100)):
        export.add("MPI_COLLECTIVES_EVENTS", start=start, end=start + 5, textId=export.string(name), size=size, **row)
    export.add("MPI_P2P_EVENTS", start=40, end=45, textId=export.string("MPI_Send"), size=8, remoteRank=2, **row)
    export.add("MPI_OTHER_EVENTS", start=50, end=55, textId=export.string("MPI_Wait"), **row)
    trace = opened(tmp_path, export)
    assert names(trace, "collectives", "op") == ["all_reduce", "all_gather", "send"]
    assert trace["collectives"]["bytes"].tolist() == [100, 400, 8]  # an all-gather logs one rank's share
    assert trace["collectives"]["peer"].tolist() == [NA, NA, 2]
    assert trace["collectives"]["start"].tolist() == [0, 20, 40]


def test_text_where_a_number_belongs_is_absent(tmp_path: Path) -> None:
    export = Export()
    export.kernel(0, 10, 1)
    path = export.write(tmp_path)
    with sqlite3.connect(path) as connection:
        connection.execute(
            f"INSERT INTO {KERNEL} SELECT 20, 30, 'zero', 1.5, correlationId, globalPid, demangledName FROM {KERNEL}"
        )
    device = gpuscope.open_trace(path)["device_events"]
    assert device["start"].tolist() == [0, 20]
    assert device["stream"].tolist() == [7, NA]


def test_rows_keep_together_whatever_index_a_third_party_added(tmp_path: Path) -> None:
    """SQLite reads a column from an index that covers it, in the index's order, unless told otherwise."""
    export = Export()
    for i, text in enumerate(("c", "b", "a")):
        export.range(i, i + 1, text)
    path = export.write(tmp_path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE INDEX by_text ON {NVTX}(text)")
    assert names(gpuscope.open_trace(path), "host_events") == ["c", "b", "a"]


@pytest.mark.parametrize("harm", ["cut", "schema", "locked", "no events", "another program's"])
def test_bad_files_are_told(tmp_path: Path, harm: str) -> None:
    export = Export()
    for i in range(2000 * (harm != "no events")):
        export.kernel(i * 10, i * 10 + 5, i)
    path = export.write(tmp_path)
    lock = sqlite3.connect(tmp_path / "notes.sqlite" if harm == "another program's" else path)
    if harm == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif harm == "schema":
        path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE\xffTABLE"))
    elif harm == "locked":
        lock.execute("BEGIN EXCLUSIVE")
    elif harm == "another program's":
        lock.execute("CREATE TABLE notes (text)")
        path = tmp_path / "notes.sqlite"
    with pytest.raises(InputError) as error:
        gpuscope.open_trace(path)
    lock.close()
    assert str(path) in str(error.value)
