"""gloo's collectives: logged in every parallelism, changed in none, and put into the trace."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from helpers.warm_python import executable

from gpuscope import native
from gpuscope.instrumented_runtime.record import collective_log, gloo_trace, nvml_samples
from gpuscope.instrumented_runtime.record.collective_log import Collective, CollectiveLog, Group, failed
from gpuscope.instrumented_runtime.record.nvml_samples import with_arguments
from gpuscope.native import fallback

Run = Callable[..., SimpleNamespace]
WORKER = Path(__file__).with_name("gloo_worker.py")

# One xdist worker runs the two jobs of the fixture `jobs`, once.
pytestmark = pytest.mark.xdist_group("gloo")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What both ranks reported, by whether their groups were logged."""
    import os
    import subprocess

    answers = {}
    for logged in ("0", "1"):
        folder = tmp_path_factory.mktemp(f"logged{logged}")
        command = [executable(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", WORKER]
        environment = {**os.environ, "LOGGED": logged, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, cwd=folder, env=environment, capture_output=True, timeout=120)
        answers[logged] = [json.loads((folder / f"answers{rank}.json").read_text()) for rank in (0, 1)]
    return answers


def test_training_is_the_same_through_the_logging_group(jobs: dict[str, list[Any]]) -> None:
    assert [rank["losses"] for rank in jobs["1"]] == [rank["losses"] for rank in jobs["0"]]
    assert jobs["1"][0]["losses"]["ddp"] is not None
    assert jobs["1"][1]["losses"]["pp"] is not None


def test_the_group_still_calls_itself_gloo(jobs: dict[str, list[Any]]) -> None:
    assert {rank["backend"] for rank in jobs["1"]} == {"gloo"}


def test_every_call_is_logged_with_what_it_was(jobs: dict[str, list[Any]]) -> None:
    # op, group, seq, p2p seq, elements in, out, bytes of the whole array, source, destination
    collectives = [
        ["all_reduce", "default_pg", 1, 0, 4, 4, 16, None, None],
        ["all_gather", "default_pg", 2, 0, 4, 8, 32, None, None],
        ["reduce_scatter", "default_pg", 3, 0, 4, 2, 16, None, None],
        ["all_to_all", "pair", 1, 0, 4, 4, 16, None, None],
    ]
    last = ["broadcast", "default_pg", 4, 0, 4, 4, 32, None, None]  # int64
    for rank, op in ((0, "send"), (1, "recv")):
        message = [op, "default_pg", 0, 1, 4, 4, 16, 0, 1]
        assert jobs["1"][rank]["calls"] == [*collectives, message, last]


def test_every_parallelism_goes_through_the_log(jobs: dict[str, list[Any]]) -> None:
    # DDP: broadcast, all_reduce; FSDP2: all_gather, reduce_scatter; TP: all_reduce; PP: send, recv.
    assert set(jobs["1"][0]["later"]) >= {"all_reduce", "all_gather", "broadcast", "recv", "reduce_scatter", "send"}


WORLD = Group("0", "default_pg", (0, 1))


def collective(op: str, seq: int, issued_ns: int, completed_ns: int, elements: int = 4) -> Collective:
    return Collective(
        op=op,
        group=WORLD,
        seq=seq,
        p2p_seq=0,
        elements_in=elements,
        elements_out=elements,
        dtype="float32",
        item_bytes=4,
        sizes_in=[[elements]],
        sizes_out=[[elements]],
        src=None,
        dst=None,
        issued_ns=issued_ns,
        completed_ns=completed_ns,
    )


def annotation(ts: str, dur: str, elements: int = 4) -> str:
    return f"""  {{
    "ph": "X",
    "cat": "user_annotation",
    "name": "gloo:all_reduce",
    "pid": 1,
    "tid": 2,
    "ts": {ts},
    "dur": {dur}
    ,
    "args": {{
      "External id": 5, "Input Dims": [[{elements}]], "Ev Idx": 0
    }}
  }}"""


def trace(*events: str) -> str:
    return '{"baseTimeNanoseconds": 1000000,\n"traceEvents": [\n' + ",\n".join(events) + "]}"


def test_annotations_are_matched_by_time_and_order() -> None:
    # The trace holds the second and the third of four; a reduce-scatter runs as an all-reduce.
    log = [
        collective("all_reduce", 1, 1_010_000, 1_030_000),
        collective("reduce_scatter", 2, 1_040_000, 1_060_000),
        collective("all_reduce", 3, 1_070_000, 1_090_000),
        collective("all_reduce", 4, 1_100_000, 1_120_000),
    ]
    text = trace(annotation("42.125", "15.000"), annotation("72.500", "16.000"))
    events = json.loads(with_arguments(text, log, rank=1))["traceEvents"]
    arguments = [[event["args"][key] for key in ("Collective name", "Seq", "Issued ns")] for event in events]
    assert arguments == [["reduce_scatter", 2, 1_040_000], ["all_reduce", 3, 1_070_000]]
    assert events[0]["args"]["External id"] == 5


@pytest.mark.parametrize("missing", ["end", "all"])
def test_a_missing_last_end_does_not_shift_the_others(missing: str) -> None:
    log = [collective("all_reduce", seq, 10_000 * seq, 10_000 * seq + 9_000) for seq in range(101, 106)]
    if missing == "end":
        log[-1].completed_ns = None
    else:
        del log[-1]
    text = trace(*(annotation(f"{10 * seq + 1 - 1000}.000", "5.000") for seq in range(102, 106)))
    events = json.loads(with_arguments(text, log, rank=0))["traceEvents"]
    assert [event["args"].get("Seq") for event in events][:3] == [102, 103, 104]


def test_an_annotation_of_another_size_stays_as_it_was() -> None:
    text = trace(annotation("10.000", "5.000", elements=9))
    assert with_arguments(text, [collective("all_reduce", 1, 1_009_000, 1_016_000)], rank=0) == text


def test_a_trace_without_gloo_stays_as_it_was() -> None:
    text = '{"traceEvents": [{"name": "aten::mm", "ts": 1.000, "dur": 2.000, "args": {}}]}'
    assert with_arguments(text, [collective("all_reduce", 1, 0, 9)], rank=0) == text


def test_a_group_made_anew_counts_from_one() -> None:
    log = CollectiveLog()
    for _ in range(2):
        log.add_group(WORLD)
        assert [log.issue("all_reduce", WORLD, (), (), None).seq for _ in range(2)] == [1, 2]
    tenth = Group("10", "", (0, 1))
    assert log.issue("all_reduce", tenth, (), (), None).seq == 1
    log.add_group(Group("1", "", (0, 1)))  # another group, although its name begins the other's
    assert log.issue("all_reduce", tenth, (), (), None).seq == 2


def test_the_log_gives_each_entry_once_and_in_order() -> None:
    log = CollectiveLog(latest=deque(maxlen=2))
    first, second, third = (log.issue("all_reduce", WORLD, (), (), None) for _ in range(3))
    log.complete(second)
    assert log.drain() == []  # the first still runs
    assert log.pending() == [first, third]
    log.complete(first)
    assert log.drain() == [first, second]
    log.complete(third)
    assert log.drain() == [third]
    assert [entry.seq for entry in log.recent()] == [2, 3]  # the capacity's worth


@pytest.mark.parametrize("tensors", ["one", "pair", "lists", "none"])
def test_the_core_logs_a_call_as_python_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tensors: str) -> None:
    """Entries, numbers, the page that outlives the process, and the thread's times, of calls of two groups in turn."""
    first, second = torch.ones(3, 2), torch.ones(6, dtype=torch.float64)
    inputs, outputs = {
        "one": ([first], [first]),
        "pair": (first, second),
        "lists": ([first], [second, second]),
        "none": ((), ()),
    }[tensors]
    outputs = inputs if tensors in ("one", "none") else outputs
    told = []
    for note_issue in (native.note_issue, fallback.note_issue):
        monkeypatch.setattr(collective_log, "note_issue", note_issue)
        page, issues = nvml_samples.page(tmp_path, 0), list[Any]()
        log = CollectiveLog(page=page, issues=issues)
        before = time.time_ns()
        entries = [
            log.issue(op, group, inputs, outputs, peer)
            for group in (WORLD, Group("tp", "", (1, 0)), WORLD)
            for op, peer in (("all_gather", None), ("all_gather", None), ("send", 1), ("send", 1))
        ]
        assert log.pending() == entries
        assert [wall for wall, _, _ in issues] == [entry.issued_ns for entry in entries]
        assert {thread for *_, thread in issues} == {threading.get_ident()}
        cpu = [ran for _, ran, _ in issues]
        assert 0 < cpu[0] <= cpu[-1] <= time.thread_time_ns()
        assert before <= entries[0].issued_ns <= entries[-1].issued_ns <= time.time_ns()
        place, seq, issued = collective_log.LAST.unpack_from(page)
        assert (seq, issued) == (entries[-3].seq, entries[-3].issued_ns)  # no message
        told.append(([replace(entry, issued_ns=0) for entry in entries], place, page[collective_log.LAST.size :]))
    assert told[0] == told[1]
    by_core = native.note_issue(log._core, "all_gather", WORLD, inputs, outputs)
    assert (by_core is not None) == (native.COMPILED and tensors in ("one", "pair"))
    assert [entry.seq for entry in told[0][0]] == [1, 2, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0]


@pytest.mark.parametrize("note_end", [native.note_end, fallback.note_end])
def test_a_collective_ends_as_its_future_does(note_end: Any) -> None:
    """On any thread, also where nothing is compiled; its failure stays with it, and its result does not."""
    log = CollectiveLog()
    good, bad, told, running = (log.issue("all_reduce", WORLD, (), (), None) for _ in range(4))
    futures: list[Any] = [torch.futures.Future() for _ in range(4)]
    for entry, future in zip((good, bad, told, running), futures, strict=True):
        note_end(entry, failed, future)
    log.complete(told)
    before, ended = time.time_ns(), told.completed_ns
    result = torch.ones(1)
    gone = ref(result)
    ending = threading.Thread(target=futures[0].set_result, args=(result,))
    ending.start()
    ending.join()
    futures[1].set_exception(RuntimeError("Connection closed by peer"))
    futures[2].set_result(1)
    assert log.pending() == [running]
    assert before <= (good.completed_ns or 0) <= (bad.completed_ns or 0) <= time.time_ns()
    assert (good.error, bad.error) == (None, "Connection closed by peer")
    assert told.completed_ns == ended
    del result, ending, futures, future
    assert gone() is None


@pytest.mark.parametrize(("op", "source"), [("reduce_scatter", None), ("recv", 1)])
def test_a_work_that_was_waited_for_keeps_no_tensors(op: str, source: int | None) -> None:
    """gloo's own holds them as long as it lives, and ours is held on: a job would grow with each step."""

    class Inner:
        def get_future(self) -> None:
            raise RuntimeError("gloo's reduce-scatter has none")

        def wait(self) -> bool:
            return True

        def _source_rank(self) -> int:
            return 1

    entry, inner = gloo_trace.LOG.issue(op, WORLD, (), (), None), Inner()
    work, gone = gloo_trace._with_logged_end(inner, entry, "without a future"), ref(inner)
    del inner
    assert (gone() is None, entry.completed_ns) == (False, None)
    assert work.wait()
    assert (gone(), bool(entry.completed_ns), entry.src) == (None, True, source)
    assert (work.wait(), work.is_completed(), work.exception(), work._source_rank()) == (True, True, None, source)
