"""Perfetto traces of torch.profiler: the tables of their JSON twins, what they record besides, and bad ones."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.analysed import problems
from helpers.cli import call as command
from helpers.kineto import Event, arrow, call, helper, kernel, node, span
from helpers.pftrace import BASE_NS, PftraceWriter, framed, write_pftrace
from helpers.pftrace_job import NCCL, collective, counter, differing, job, rows

import gpuscope
from gpuscope.errors import InputError
from gpuscope.sources.perfetto.packet_rows import BEGIN, END, TracePacket
from gpuscope.sources.perfetto.packets import whole
from gpuscope.trace.trace import Trace

NOT_IN_PFTRACE = {
    ("ranks", "host"),
    ("ranks", "backend"),
    ("ranks", "world_size"),
    ("ranks", "world_basis"),
    ("device_events", "copy_kind"),
    ("device_events", "context"),
    ("threads", "name"),
}
"""Columns that torch's encoder has no place for, or fills otherwise (docs/formats.md)."""


@pytest.mark.parametrize("name", ["cpu_only", "hand_fed_rank0"])
def test_real_pairs_give_equal_tables(shared_traces: Path, name: str) -> None:
    """Written by torch 2.15's own encoder. Its JSON has times as float64: 1 ns off at most."""
    folder = shared_traces / "pftrace"
    twin, trace = (gpuscope.open_trace(folder / f"{name}{suffix}") for suffix in (".json.gz", ".pftrace.gz"))
    found = {key: pairs for key, pairs in differing(twin, trace).items() if key not in NOT_IN_PFTRACE}
    for key in (("host_events", "start"), ("host_events", "end")):
        assert all(abs(left - right) <= 1 for left, right in found.pop(key, []))
    for left, right in found.pop(("device_events", "end"), []):
        cut = trace["device_events"]  # the encoder cuts a kernel's end at the start of its stream's next
        assert right < left
        assert right in cut["start"].tolist()
    assert found == {}


def test_the_unpacked_file_is_the_same(shared_traces: Path) -> None:
    folder = shared_traces / "pftrace"
    plain, packed = (gpuscope.open_trace(folder / f"cpu_only.pftrace{suffix}") for suffix in ("", ".gz"))
    assert differing(plain, packed) == {}


def test_json_under_the_name_of_a_pftrace(shared_traces: Path) -> None:
    """Kineto's default back end writes JSON whatever the name says."""
    assert gpuscope.open_trace(shared_traces / "pftrace" / "kineto_json_text.pftrace").sources[0].format == "kineto"


def pair(folder: Path, events: list[Event], name: str = "rank1") -> tuple[Trace, Trace]:
    """The same events as Kineto JSON and as Perfetto trace."""
    twin = folder / f"{name}.json"
    document = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": {"rank": 1, "world_size": 2, "backend": "nccl"},
        "traceEvents": events,
    }
    twin.write_text(json.dumps(document))
    return gpuscope.open_trace(twin), gpuscope.open_trace(write_pftrace(folder / f"{name}.pftrace", *events))


def test_a_generated_pair_gives_equal_tables(tmp_path: Path) -> None:
    twin, trace = pair(tmp_path, job())
    found = {key for key in differing(twin, trace) if key not in NOT_IN_PFTRACE}
    assert found == set()
    assert len(trace["device_events"]) == 15
    assert trace.ranks == [1]
    assert rows(trace, "ranks", "world_size") == [2]


def test_a_generated_pair_gives_the_same_verdict(tmp_path: Path) -> None:
    pair(tmp_path, job(5))
    found = [gpuscope.analyze(tmp_path / name).report for name in ("rank1.json", "rank1.pftrace")]
    assert found[0]["verdict"] == found[1]["verdict"]
    assert found[0]["steps"] == found[1]["steps"]


def test_arguments_of_collectives_come_from_the_range_around_the_launch(tmp_path: Path) -> None:
    """The kernel carries none: kernel → call → `record_param_comms`. 2^20 floats are 4 MiB."""
    for trace in pair(tmp_path, job()):
        assert rows(trace, "collectives", "op") == ["all_reduce"] * 3
        assert rows(trace, "collectives", "bytes") == [4 << 20] * 3
        assert rows(trace, "collectives", "seq") == [1, 2, 3]
        assert rows(trace, "collectives", "group_ranks") == ["0,1"] * 3


def test_a_launch_outside_such_a_range_has_no_arguments(tmp_path: Path) -> None:
    """Counter-example: the range ended before the launch, or is another thread's."""
    events = [
        collective(0, 5, 64, 1),
        call(10, 5, 1),
        kernel(30, 10, 1, NCCL),
        {**collective(40, 50, 64, 2), "tid": 2},
        call(50, 5, 2),
        kernel(70, 10, 2, NCCL),
    ]
    for trace in pair(tmp_path, events):
        assert rows(trace, "collectives", "bytes") == [None, None]


def test_the_stream_of_an_awaited_event_is_that_of_the_last_launch(tmp_path: Path) -> None:
    for trace in pair(tmp_path, job()):
        waits = rows(trace, "syncs", "awaited_stream")
        assert [wait for wait in waits if wait is not None] == [7, 7, 7]
        assert problems(trace)["awaited_stream_inferred"] == 3


def test_an_event_recorded_before_any_launch_is_on_no_known_stream(tmp_path: Path) -> None:
    """Counter-example: nothing launched before it; and where the last launch is the waiting stream's own."""
    wait = {"cuda_sync_kind": "Stream Wait Event", "device": 0, "wait_on_stream": -1}
    events = [
        call(0, 1, 1, "cudaEventRecord"),
        call(2, 1, 2, "cudaStreamWaitEvent"),
        span(
            "cuda_sync",
            "Stream Wait Event",
            2,
            1,
            tid=20,
            pid=0,
            stream=20,
            correlation=2,
            wait_on_cuda_event_record_corr_id=1,
            **wait,
        ),
        call(10, 1, 3),
        kernel(12, 5, 3),
        call(20, 1, 4, "cudaEventRecord"),
        call(22, 1, 5, "cudaStreamWaitEvent"),
        span(
            "cuda_sync",
            "Stream Wait Event",
            22,
            1,
            tid=7,
            pid=0,
            stream=7,
            correlation=5,
            wait_on_cuda_event_record_corr_id=4,
            **wait,
        ),
    ]
    for trace in pair(tmp_path, events):
        assert rows(trace, "syncs", "awaited_stream") == [None, None]
        assert "awaited_stream_inferred" not in problems(trace)


def test_nodes_of_graphs_and_counters(tmp_path: Path) -> None:
    for trace in pair(tmp_path, job(1)):
        nodes = trace.tables["graph_nodes"]
        assert nodes["node"].tolist() == [1, 2]
        names = np.array(rows(trace, "device_events", "name"))
        assert names[nodes["event"]].tolist() == ["node_a", "node_b"]
        counters = trace.tables["counters"]
        assert counters["counter"].tolist() == ["Power (W)", "SM Active (%)", "SM Active (%)"]
        assert counters["unit"].tolist() == ["W", "%", "%"]
        assert (counters["value"] / counters["parts"]).tolist() == [350.0, 62.327, 80.5]
        lengths = (counters["end"] - counters["start"]).tolist()
        assert lengths == [0, 500_000, 500_000]  # a lone sample has no length, the last that of the one before it
        assert problems(trace)["clocks_locked"] == 1


def test_dependencies_of_nodes_of_graphs(tmp_path: Path) -> None:
    """a → an event recorded → b, a → a function on the host (30 µs) → b, and b → c; the last with nothing between."""
    a, b, c = (node(at, 40, 1, number, name) for number, (at, name) in enumerate([(20, "a"), (100, "b"), (150, "c")]))
    recorded, host = helper(62, 0, 1, cat="graph_event_node"), helper(63, 30, 1, stream=9)
    arrows = [(a, recorded), (recorded, b), (a, host), (host, b), (b, c)]
    events = [
        call(5, 9, 1, "cudaGraphLaunch"),
        a,
        b,
        c,
        recorded,
        host,
        *[end for number, ends in enumerate(arrows) for end in arrow(number, *ends)],
    ]
    twin, trace = pair(tmp_path, events)
    assert {key for key in differing(twin, trace) if key not in NOT_IN_PFTRACE} == set()
    for one in (twin, trace):
        found = one.tables["graph_dependencies"].values.tolist()
        assert found == [[1, 0, 30_000], [2, 1, 0]]


def test_arrows_that_lead_nowhere_or_round_in_a_circle_are_none(tmp_path: Path) -> None:
    a, b = node(20, 40, 1, 1), node(100, 40, 1, 2)
    one, other = helper(62, 5, 1, stream=9), helper(70, 5, 1, stream=9)
    astray = [{**end, "ts": end["ts"] + 7} for end in arrow(9, a, b)]
    pairs = [(one, other), (other, one), (one, b)]
    events = [
        call(5, 9, 1, "cudaGraphLaunch"),
        a,
        b,
        one,
        other,
        *astray,
        *[end for number, ends in enumerate(pairs) for end in arrow(number, *ends)],
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = gpuscope.open_trace(path)
    assert (len(trace["graph_nodes"]), len(trace["graph_dependencies"])) == (2, 0)


def test_counters_of_links_alone_are_judged_as_links(tmp_path: Path) -> None:
    """SM Active at 95 % while communication is exposed is no link at its peak."""
    busy = [counter(at, "SM Active (%)", 95.0) for at in range(0, 1000, 100)]
    events = [call(10, 5, 1), kernel(30, 800, 1, NCCL), *busy]
    path = write_pftrace(tmp_path / "rank0.pftrace", *events)
    report = gpuscope.analyze(path).report
    assert "link_counters" not in report
    assert not [one for one in report["findings"] if one["code"] == "link_at_peak"]


def test_counters_of_gpus_beside_the_work_on_them(tmp_path: Path) -> None:
    """A copy kernel 0–400 with memory at 90 % of the peak, a gemm 400–800 at 30 %, then nothing; samples of 100 µs.
    With the gemm at 85 the kernels are bound by memory."""

    def recorded(name: str, copying: float, computing: float) -> Any:
        levels = [copying] * 4 + [computing] * 4 + [0.0] * 3
        events = [
            call(0, 5, 1),
            kernel(0, 400, 1, "copy"),
            call(6, 5, 2),
            kernel(400, 400, 2, "gemm"),
            call(20, 5, 3),
            kernel(1000, 10, 3, "last"),
            *[counter(at * 100, "DRAM BW (%)", value) for at, value in enumerate(levels)],
            *[counter(at * 100, "Power (W)", 300.0) for at in range(11)],
        ]
        return gpuscope.analyze(write_pftrace(tmp_path / name, *events)).report

    report = recorded("rank0.pftrace", 90.0, 30.0)
    memory, power = report["device_counters"]
    assert (memory["counter"], memory["unit"], memory["samples"], power["unit"]) == ("DRAM BW (%)", "%", 11, "W")
    # 400 µs at 90 and 400 at 30, and of the last sample, at 0, the 10 µs of «last».
    assert memory["mean_while_computing"] == pytest.approx((400 * 90 + 400 * 30) / 810)
    assert (memory["mean_while_idle"], power["mean_while_idle"], memory["mean_while_exposed"]) == (0, 300, None)
    assert [(one["name"], one["samples"], one["mean"]) for one in memory["kernels"]] == [
        ("copy", 4, 90.0),
        ("gemm", 4, 30.0),
    ]
    codes_of = [one["code"] for one in report["findings"]]
    assert "memory_at_peak" not in codes_of
    (found,) = [one for one in recorded("rank1.pftrace", 90.0, 85.0)["findings"] if one["code"] == "memory_at_peak"]
    assert found["ranks"] == [1]


def test_counters_of_gpus_on_the_terminal_and_in_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = [counter(at * 100, "SM Active (%)", 62.5) for at in range(9)]
    trace = write_pftrace(tmp_path / "rank0.pftrace", call(0, 5, 1), kernel(10, 800, 1, "gemm"), *levels)
    page = tmp_path / "report.html"
    told = command(capsys, "analyze", trace, "--full", "--no-store", "--html", page)
    assert told.returncode == 0
    shown = told.stdout[told.stdout.index("GPU counters over time") :]
    assert "SM Active" in shown
    assert "62.5 %" in shown
    text = page.read_text()
    assert "Links and GPUs over time" in text
    assert "SM Active" in text


def test_dropped_packets_are_lost_data_and_lower_the_confidence(tmp_path: Path) -> None:
    content = write_pftrace(tmp_path / "rank0.pftrace", *job(5)).read_bytes()
    stats = TracePacket(previous_packet_dropped=True)
    stats.trace_stats.buffer_stats.add(chunks_overwritten=3, trace_writer_packet_loss=2)
    before = gpuscope.analyze(tmp_path / "rank0.pftrace").report
    (tmp_path / "rank0.pftrace").write_bytes(content + framed(stats.SerializeToString()))
    trace = gpuscope.open_trace(tmp_path / "rank0.pftrace")
    assert problems(trace)["records_dropped"] == 6
    assert trace["recording"]["dropped"].tolist() == [6]
    after = gpuscope.analyze(tmp_path / "rank0.pftrace").report
    assert after["verdict"]["confidence"] < before["verdict"]["confidence"]


def test_other_perfetto_traces_say_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "android.pftrace"
    packets = [TracePacket(timestamp=1, ftrace_events=b"\x08\x01"), TracePacket(process_tree=b"")]
    path.write_bytes(b"".join(framed(packet.SerializeToString()) for packet in packets))
    with pytest.raises(InputError, match=r"not one of torch\.profiler: it holds 1 ftrace events") as caught:
        gpuscope.open_trace(path)
    assert caught.value.exit_code == 3
    assert "export_chrome_trace" in str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
def test_cut_off_is_refused_unless_partial(tmp_path: Path, zipped: bool) -> None:
    content = write_pftrace(tmp_path / "whole.pftrace", *job()).read_bytes()
    path = tmp_path / ("cut.pftrace.gz" if zipped else "cut.pftrace")
    path.write_bytes(gzip.compress(content)[:-30] if zipped else content[: len(content) * 2 // 3])
    with pytest.raises(InputError, match=r"ends inside|ends early|damaged"):
        gpuscope.open_trace(path)
    trace = gpuscope.open_trace(path, partial=True)
    assert problems(trace)["truncated"] == 1
    assert len(trace["host_events"]) > 0


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("partial", [False, True])
def test_cut_off_before_the_first_end_is_said_to_be_cut_off(tmp_path: Path, more: int, partial: bool) -> None:
    content = write_pftrace(tmp_path / "whole.pftrace", *job()).read_bytes()
    packets = ((TracePacket.FromString(content[start:end]), end) for start, end in whole(content))
    begun = next(end for packet, end in packets if packet.track_event.type == BEGIN)
    path = tmp_path / "rank0.pftrace"
    path.write_bytes(content[: begun + more])
    with pytest.raises(InputError, match=r"cut off before the end of the first|ends inside a packet"):
        gpuscope.open_trace(path, partial=partial)


def test_any_prefix_is_an_error_or_a_trace(tmp_path: Path) -> None:
    content = write_pftrace(tmp_path / "whole.pftrace", *job(1)).read_bytes()
    path = tmp_path / "rank0.pftrace"
    opened = 0
    for end in range(0, len(content) - 1, 41):
        path.write_bytes(content[:end])
        with suppress(InputError):
            opened += len(gpuscope.open_trace(path, partial=True)["device_events"])
    assert opened > 0


def test_a_begin_without_end_is_counted_and_shifts_no_other(tmp_path: Path) -> None:
    writer = PftraceWriter()
    writer.slices([call(0, 5, 1), {**call(3, 4, 2), "tid": 2}])
    packets = list(writer.all_packets())
    kept = [packet for packet in packets if packet.track_event.type != END or packet.timestamp != BASE_NS + 5000]
    path = tmp_path / "rank0.pftrace"
    path.write_bytes(b"".join(framed(packet.SerializeToString()) for packet in kept))
    trace = gpuscope.open_trace(path)
    assert rows(trace, "host_events", "correlation") == [2]
    assert problems(trace)["unpaired_slice"] == 1


def test_a_packet_that_is_no_message_is_counted(tmp_path: Path) -> None:
    content = write_pftrace(tmp_path / "rank0.pftrace", *job()).read_bytes()
    (tmp_path / "rank0.pftrace").write_bytes(content + framed(b"\x5a\x7f"))
    assert problems(gpuscope.open_trace(tmp_path / "rank0.pftrace"))["undecodable_event"] == 1


def test_packets_of_another_recorder_are_counted_and_named(tmp_path: Path) -> None:
    content = write_pftrace(tmp_path / "rank0.pftrace", *job()).read_bytes()
    (tmp_path / "rank0.pftrace").write_bytes(content + framed(TracePacket(sys_stats=b"x").SerializeToString()))
    problems = {problem.code: problem for problem in gpuscope.open_trace(tmp_path / "rank0.pftrace").problems}
    assert (problems["unknown_category"].count, "sys stats" in problems["unknown_category"].message) == (1, True)


def test_text_that_begins_with_an_empty_line_is_no_pftrace(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\n\nNotes of the last run\n\nslow\n")
    with pytest.raises(InputError, match="unrecognised trace format"):
        gpuscope.open_trace(path)


def test_a_folder_of_pftraces_is_a_run(tmp_path: Path) -> None:
    for rank in range(2):
        write_pftrace(tmp_path / f"rank{rank}.pftrace.gz", *(e for e in job() if e["name"] != "record_param_comms"))
    assert gpuscope.open_trace(tmp_path).ranks == [0, 1]
