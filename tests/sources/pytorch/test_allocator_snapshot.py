"""Allocator snapshots: today's layout, older ones, Ascend's; damaged and hostile ones."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import gpuscope
from gpuscope.errors import InputError
from gpuscope.trace.schema import NA
from tests.helpers.allocator import EPOCH_US, MIB, events, segment, snapshot


def test_a_snapshot_becomes_tables(tmp_path: Path) -> None:
    path = snapshot(
        tmp_path / "rank3_end.pickle",
        [segment(0x1000, (4 * MIB, "active_allocated"), (16 * MIB, "inactive"))],
        events(("segment_alloc", 0x1000, 20 * MIB), ("alloc", 0x1000, 4 * MIB)),
    )
    trace = gpuscope.open_trace(path)
    assert trace.ranks == [3]
    told = trace.tables["allocator_events"]
    assert told["action"].tolist() == ["segment_alloc", "alloc"]
    assert told["time"].tolist() == [EPOCH_US * 1000, (EPOCH_US + 1) * 1000]
    assert told["frames"].tolist() == ["step (/job/train.py:7)"] * 2
    assert trace.tables["segments"]["bytes"].tolist() == [20 * MIB]
    blocks = trace.tables["blocks"]
    assert blocks["state"].tolist() == ["allocated", "inactive"]
    assert blocks["address"].tolist() == [0x1000, 0x1000 + 4 * MIB]


def test_blocks_with_a_history_have_no_addresses(tmp_path: Path) -> None:
    """The layout before PyTorch 2.1: `history` for `frames`, `real_size` for `requested_size`."""
    old = segment(0x1000, (2 * MIB, "active_allocated"), (18 * MIB, "inactive"))
    old["blocks"] = [
        {
            "size": 2 * MIB,
            "state": "active_allocated",
            "history": [{"addr": 0x1000, "real_size": 5, "frames": [{"name": "f", "filename": "a.py", "line": 1}]}],
        },
        {"size": 18 * MIB, "state": "active_pending_free"},
    ]
    path = tmp_path / "old.pickle"
    path.write_bytes(pickle.dumps([old]))  # a bare list, as torch.cuda.memory_snapshot() gives it
    trace = gpuscope.open_trace(path)
    blocks = trace.tables["blocks"]
    assert blocks["address"].tolist() == [0x1000, 0x1000 + 2 * MIB]
    assert int(trace["blocks"]["requested"][0]) == 5
    assert blocks["state"].tolist() == ["allocated", "awaiting_free"]
    assert blocks["frames"].tolist()[0] == "f (a.py:1)"
    assert [problem.code for problem in trace.problems] == ["no_allocator_history"]


def test_unreadable_entries_are_counted(tmp_path: Path) -> None:
    trace = events(("alloc", 0x1000, 512), ("free", 0x1000, 512))
    trace[1]["size"] = "many"
    trace += [{"action": "dance", "addr": 1, "size": 2}, {"action": "snapshot", "addr": 0, "size": 0}]
    path = snapshot(tmp_path / "s.pickle", [{"device": 0}], trace)
    found = gpuscope.open_trace(path)
    assert len(found["allocator_events"]) == 2  # the mark «snapshot» is no event, and none that is lost
    assert [(problem.code, problem.count) for problem in found.problems] == [("allocator_entry_unreadable", 3)]


def test_a_truncated_snapshot_is_refused(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "s.pickle", [segment(0x1000, (2 * MIB, "inactive"))] * 50)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 200):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"s.pickle: is cut off"):
            gpuscope.open_trace(path)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, ("pwned",)  # never called: the name itself is refused


def test_a_hostile_snapshot_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Hostile()]}))
    with pytest.raises(InputError, match=r"s.pickle: names pathlib.+, and a pickle that names"):
        gpuscope.open_trace(path)
    assert not (tmp_path / "pwned").exists()


def test_several_snapshots_of_a_rank_go_together(tmp_path: Path) -> None:
    for why in ("oom", "end"):
        snapshot(tmp_path / f"rank0_{why}.pickle", [segment(0x1000, (20 * MIB, "inactive"))])
    assert len(gpuscope.open_trace(tmp_path)["segments"]) == 2


def test_snapshots_are_read_beside_traces(tmp_path: Path, samples: Path) -> None:
    for trace in (samples / "ddp_healthy").glob("*.json*"):
        (tmp_path / trace.name).symlink_to(trace)
    (tmp_path / "memory").mkdir()
    snapshot(tmp_path / "memory/rank0_end.pickle", [segment(0x1000, (20 * MIB, "inactive"))])
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [1, 2]}))  # somebody else's
    trace = gpuscope.open_trace(tmp_path)
    assert len(trace["segments"]) == 1
    assert len(trace["device_events"])


def test_memory_events_of_a_profiler(shared_traces: Path) -> None:
    trace = gpuscope.open_trace(shared_traces / "kineto/torch_prof_tutorial/dcb0_1752181589621105859.pt.trace.json")
    samples = trace["memory_samples"]
    # The first one in the file: "ts": 1752181589599248, "Total Allocated": 62941184, "Total Reserved": 117440512
    first = [int(samples[column][0]) for column in ("time", "allocated", "reserved")]
    assert first == [1752181589599248000, 62941184, 117440512]


def test_events_of_ascend_have_no_time(shared_traces: Path) -> None:
    trace = gpuscope.open_trace(shared_traces / "memory/ascend_expandable.pkl")
    assert len(trace["allocator_events"]) == 8092
    assert set(trace["allocator_events"]["time"].tolist()) == {NA}
    assert int(trace["segments"]["bytes"].sum()) == 614 * MIB


def test_memory_events_are_of_devices(tmp_path: Path) -> None:
    """Kineto writes host memory too (device type 0), of which there are no totals."""

    def sample(kind: int, device: int, **told: int) -> dict[str, object]:
        args = {"Device Type": kind, "Device Id": device, "Bytes": 512} | {
            f"Total {name.title()}": size for name, size in told.items()
        }
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2.5, "args": args}

    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 3, "args": {"device": 0}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "mark", "pid": 1, "tid": 1, "ts": 2, "args": {}},
        sample(1, 0, allocated=1024, reserved=4096),
        sample(0, -1, allocated=8, reserved=0),
        sample(1, 0, allocated=2048),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 1000, "traceEvents": events}))
    samples = gpuscope.open_trace(path)["memory_samples"]
    rows = [[int(samples[column][row]) for column in ("time", "allocated", "reserved")] for row in range(len(samples))]
    assert rows == [[3500, 1024, 4096], [3500, 2048, NA]]
