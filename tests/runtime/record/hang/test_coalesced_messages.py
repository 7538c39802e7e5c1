"""Sends and receives of `batch_isend_irecv` as torch's Flight Recorder leaves them: never updated, told by others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpuscope.instrumented_runtime.record.flight_recorder_dumps import GraphCaptures, collectives_in
from gpuscope.sources.pytorch.flight_recorder import messages_done


def entry(number: int, name: str, state: str, p2p: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 0,
        "p2p_seq_id": p2p,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_000 + number,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4, 2]],
        "state": state,
        "retired": False,
        **more,
    }


def told(*entries: dict[str, Any]) -> dict[int, bool | None]:
    return messages_done(list(entries))


def test_the_coalesced_entry_tells_of_all_its_messages() -> None:
    pair = entry(0, "send 0->1", "scheduled", 1), entry(1, "recv 0<-1", "scheduled", 1)
    assert told(*pair, entry(2, "coalesced", "completed", 1)) == {0: True, 1: True}
    assert told(*pair, entry(2, "coalesced", "started", 1)) == {0: False, 1: False}
    # Of another number, it says nothing of these; what has completed behind them does.
    assert told(*pair, entry(2, "coalesced", "scheduled", 2)) == {0: None, 1: None}
    assert told(*pair, entry(2, "all_reduce", "completed")) == {0: True, 1: True}


def test_a_message_of_its_own_is_pending_where_others_of_its_group_were_seen_to_change() -> None:
    plain = entry(0, "send 0->1", "completed", 1)
    assert told(plain, entry(1, "recv 0<-1", "scheduled", 2)) == {1: False}
    assert told(entry(0, "send 0->1", "scheduled", 1)) == {0: None}
    assert told(entry(0, "send 0->1", "started", 1), entry(1, "all_reduce", "scheduled")) == {}


def test_what_nothing_tells_of_is_not_taken_for_what_waits() -> None:
    dump = {
        "entries": [entry(0, "send 0->1", "scheduled", 1), entry(1, "all_reduce", "scheduled", collective_seq_id=3)]
    }
    _, found = collectives_in(dump)
    assert [(one.op, one.completed_ns is None) for one in found] == [("send", False), ("all_reduce", True)]
    assert [one.bytes for one in found] == [16, 16]  # of bfloat16: a digest has a bandwidth


def test_no_dump_while_a_graph_is_captured_and_no_capture_while_one_is_read() -> None:
    class Graphs:
        def capture_begin(self, fails: bool = False) -> None:
            if fails:
                raise RuntimeError("no")

        def capture_end(self) -> None:
            pass

    captures, graph = GraphCaptures(), Graphs()
    captures.watch(Graphs)
    captures.watch(Graphs)  # once
    assert captures.between(lambda: {"entries": []}) == {"entries": []}
    graph.capture_begin()
    assert captures.between(lambda: pytest.fail("asked CUDA")) == {}
    graph.capture_end()
    with pytest.raises(RuntimeError):
        graph.capture_begin(fails=True)
    assert captures.between(lambda: {"a": 1}) == {"a": 1}
    begun = threading.Event()

    def begin() -> None:
        graph.capture_begin()
        begun.set()

    def dump() -> dict[str, Any]:
        threading.Thread(target=begin).start()
        assert not begun.wait(0.1)
        return {}

    captures.between(dump)
    assert begun.wait(5)
