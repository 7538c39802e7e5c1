"""Flight Recorder dumps on gloo: the gaps that torch leaves, filled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpuscope.instrumented_runtime.record.collective_log import CollectiveLog, Group
from gpuscope.instrumented_runtime.record.flight_recorder_dumps import (
    FlightRecorder,
    collected,
    collectives_in,
    filled,
    merged,
)
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

TP = Group("3", "mesh_tp", (4, 6))


def recorded(seq: int, name: str = "gloo:all_reduce") -> dict[str, Any]:
    """An entry as torch leaves it on gloo."""
    return {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("3", "mesh_tp"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": seq * 10,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 1800000,
        "is_p2p": False,
        "frames": [{"name": "f", "filename": "train.py", "line": 3}],
    }


def test_state_times_and_members_are_filled_in() -> None:
    log = CollectiveLog()
    done, _ = (log.issue("all_reduce", TP, (), (), None) for _ in range(2))
    log.complete(done)
    dump = {"version": "2.10", "pg_config": {"": {"name": ""}}, "entries": [recorded(1), recorded(2)]}

    result = filled(dump, [TP], log.recent())
    first, second = result["entries"]
    assert (first["state"], first["retired"]) == ("completed", True)
    assert first["time_discovered_started_ns"] == done.issued_ns
    assert first["time_discovered_completed_ns"] == done.completed_ns
    assert first["frames"][0]["filename"] == "train.py"
    # torch calls this one retired too; it runs.
    assert (second["state"], second["retired"], second["time_discovered_completed_ns"]) == ("started", False, None)
    assert result["pg_config"] == {"3": {"name": "3", "desc": "mesh_tp", "ranks": "[4, 6]"}}
    assert result["pg_status"]["3"] == {
        "last_enqueued_collective": 2,
        "last_started_collective": 2,
        "last_completed_collective": 1,
    }


def test_a_failed_collective_does_not_count_as_completed() -> None:
    log = CollectiveLog()
    log.complete(log.issue("all_reduce", TP, (), (), None), "Connection reset by peer")
    (entry,) = filled({"entries": [recorded(1)]}, [TP], log.recent())["entries"]
    assert (entry["state"], entry["retired"]) == ("started", False)


def test_sends_and_receives_are_named_by_ranks_within_the_group(monkeypatch: Any) -> None:
    log = CollectiveLog()
    monkeypatch.setattr(CollectiveLog, "rank", 6)
    log.issue("send", TP, (), (), 4)
    log.issue("recv", TP, (), (), 4)
    result = filled({}, [TP], log.recent())
    assert [entry["profiling_name"] for entry in result["entries"]] == ["gloo:send 1->0", "gloo:recv 1<-0"]
    assert [entry["is_p2p"] for entry in result["entries"]] == [True, True]
    assert [entry["p2p_seq_id"] for entry in result["entries"]] == [1, 1]


def test_nccls_entries_in_a_dump_stay_as_torch_recorded_them() -> None:
    entry = recorded(1, "nccl:all_reduce") | {"state": "completed"}
    assert filled({"entries": [entry]}, [], [])["entries"] == [entry]


def test_the_recorders_of_two_backends_read_as_one() -> None:
    nccl = {"version": "2.10", "pg_config": {"0": {"name": "0"}}, "entries": [recorded(3, "nccl:all_reduce")]}
    other = {"version": "2.10", "pg_config": {"1": {"name": "1"}}, "entries": [recorded(1)]}
    whole = merged([nccl, other, other])
    assert [entry["profiling_name"] for entry in whole["entries"]] == ["gloo:all_reduce", "nccl:all_reduce"]
    assert (whole["version"], set(whole["pg_config"])) == ("2.10", {"0", "1"})


def test_nccls_entries_as_collectives() -> None:
    waiting = recorded(7, "nccl:_all_gather_base") | {"state": "started", "retired": False}
    sending = recorded(0, "nccl:send 0->1") | {"state": "completed", "p2p_seq_id": 5}
    config = {"3": {"name": "3", "desc": "mesh_tp", "ranks": "[4, 6]"}}
    groups, (first, second) = collectives_in(
        {"pg_config": config, "entries": [waiting, sending, recorded(1, "gloo:broadcast")]}
    )
    assert groups == [TP]
    assert (first.op, first.seq, first.completed_ns) == ("_all_gather_base", 7, None)
    assert (second.op, second.p2p_seq, second.src, second.dst) == ("send", 5, 4, 6)
    assert second.completed_ns is not None


def test_stacks_begin_in_the_script() -> None:
    ours = {"name": "method", "filename": "/x/instrumented_runtime/record/gloo/gloo_trace.py", "line": 1}
    entry = recorded(1) | {"frames": [ours, *recorded(1)["frames"]]}
    (result,) = filled({"entries": [entry]}, [TP], [])["entries"]
    assert [frame["filename"] for frame in result["frames"]] == ["train.py"]


def test_what_a_framework_has_written_elsewhere_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchtitan sets TORCH_FR_* itself, before it makes its groups. An older job's dump at that place is not ours."""
    theirs = tmp_path / "outputs" / "comm_traces"
    theirs.mkdir(parents=True)
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{theirs}/rank_")
    run = tmp_path / "run"
    folders = [RankFolder.join(run, rank=rank, world_size=4) for rank in range(4)]
    for rank, folder in enumerate(folders):
        FlightRecorder(9).start(folder)
        (theirs / f"rank_{rank}").write_text(f"dump {rank}")
    os.utime(theirs / "rank_1", ns=(5, 5))
    dumps = [run / f"flight_recorder/nccl_trace_rank_{rank}" for rank in range(4)]
    dumps[0].parent.mkdir()
    for rank in (2, 3):
        dumps[rank].write_text("of a hang")
    folders[2].add_file(dumps[2], "flight_recorder")  # the watchdog ended rank 3 before it could
    assert collected(run, since_ns=6) == [(dumps[0], 0), (dumps[3], 3)]
    assert [dumps[rank].read_text() for rank in (0, 2, 3)] == ["dump 0", "of a hang", "of a hang"]
