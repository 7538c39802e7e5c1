"""The digest of a rank: what is made of the training thread's marks, the file and its bounds, and jobs under
`gpuscope record --always`."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuscope
from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record import digest_digest, nsys_capture
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.collective_log import Collective, Group
from gpuscope.instrumented_runtime.record.digest_digest import Digest, DigestFile, _Ended, timed
from gpuscope.instrumented_runtime.record.nsys_capture import ThreadMarks

Run = Callable[..., SimpleNamespace]
MS = 1_000_000
WORLD = Group("0", "default_pg", (0, 1))


def collective(seq: int, issued_ms: int, ended_ms: int | None) -> Collective:
    return Collective(
        "all_reduce",
        WORLD,
        seq,
        0,
        1,
        1,
        "float32",
        4,
        [],
        [],
        None,
        None,
        issued_ms * MS,
        None,
        None if ended_ms is None else ended_ms * MS,
    )


@pytest.mark.parametrize(
    ("phase", "core_ms", "collectives", "waits", "pauses"),
    [
        # Of 30 ms the thread ran 10: it waited for the collective that ended in them.
        ("backward", 0, [(5, 28)], [[8, 20]], []),
        ("backward", 0, [(20, 28)], [[20, 8]], [[0, 12]]),  # nobody waits for a collective before it is issued
        ("backward", 15, [(5, 28)], [[23, 5]], []),  # for 15 ms it was ready and had no core
        ("backward", 0, [(5, None)], [], [[0, 20]]),
        ("backward", 0, [(5, 40)], [], [[0, 20]]),
        ("host", 0, [(5, 28)], [], [[0, 20]]),  # a checkpoint that syncs its file beside a collective
        ("input", 0, [(5, 28)], [], []),  # waiting for data is a phase of its own
    ],
)
def test_blocked_time_belongs_to_the_collective_that_ended_in_it(
    phase: str, core_ms: int, collectives: list[tuple[int, int | None]], waits: Any, pauses: Any
) -> None:
    marks = [(0, 0, 0, phase), (30 * MS, 10 * MS, core_ms * MS, "forward")]
    found = digest_digest.blocked(marks, [collective(1, *one) for one in collectives])
    told = [[[start * MS, ns * MS] for start, ns in spans] for spans in (waits, pauses)]
    assert [found.waits, found.others] == told
    assert sum(found.exposed.values()) == sum(ns for _, ns in found.waits)


def test_a_call_is_a_mark_within_the_phase_it_falls_into() -> None:
    marks = [(10, 0, 7, "forward"), (20, 5, 7, "backward"), (30, 9, 8, "forward")]
    issues = [(9, 0, 1), (25, 7, 1), (12, 1, 1), (30, 9, 1)]  # of a thread whose clock was set back; outside the step
    assert digest_digest.with_issues(marks, issues) == [
        marks[0],
        (12, 1, None, "forward"),
        marks[1],
        (25, 7, None, "backward"),
        marks[2],
    ]


def test_time_without_a_core_is_shared_out_by_the_time_off_the_core() -> None:
    """Asked at 0 and 30, not at 10 and 20: of 12 off the core 9 and 3, the kernel says that 4 were without one."""
    marks = [(0, 0, 7, "backward"), (10, 1, None, "backward"), (20, 11, None, "backward"), (30, 18, 11, "forward")]
    assert [core for _, _, core, _ in digest_digest.with_core_time(marks)] == [7, 10, 10, 11]
    assert digest_digest.with_core_time(marks)[1][:2] == (10, 1)


def test_phases_tile_the_step_and_collectives_are_chosen_alike() -> None:
    marks = [(0, 0, 0, "forward"), (3, 0, 0, "forward"), (5, 0, 0, "input"), (5, 0, 0, "forward"), (9, 0, 0, "forward")]
    assert digest_digest.step_line_phases(marks) == [["forward", 9]]
    many = [collective(seq, seq, seq + 1) for seq in range(1, 201)]
    chosen = digest_digest.listed(many, 0, 4)
    assert [one.seq for one in chosen] == [*range(4, 201, 4)]
    assert digest_digest.listed(many[1:], 4, 4) == chosen
    assert {*map(id, chosen)} < {*map(id, digest_digest.listed(many, 0, 2))}
    assert sorted(one.seq for step in range(4) for one in digest_digest.listed(many, step, 4)) == [*range(1, 201)]
    busy = [(number * 10, 0, 0, "gc" if number % 2 else "forward") for number in range(101)]
    busy[-1] = (9_000, 0, 0, "forward")
    folded = digest_digest.step_line_phases(busy)
    assert len(folded) <= digest_digest.MOST_PHASES
    assert sum(ns for _, ns in folded) == 9_000


@pytest.mark.parametrize(("count", "every"), [(0, 1), (44, 1), (200, 4), (5_000, 128)])
def test_a_line_lists_the_collectives_that_fit_into_3_kb(tmp_path: Path, count: int, every: int) -> None:
    """Beside as many waits, pauses and sums as there can be, and as many phases as tensor parallelism has."""
    marks = [(number * 10**8, number * 10**7, 0, ("forward", "optimizer")[number % 40 == 0]) for number in range(301)]
    many = [collective(10**6 + seq, seq * 100, seq * 100 + 60) for seq in range(count)]
    digest = Digest(None)
    digest._rank, digest._marks = 0, ThreadMarks()
    digest._file = DigestFile(tmp_path / "rank0.digest", {"rank": 0})
    digest._write(_Ended(10**6, marks, [], many, [], None, {"peak_host_bytes": 10**12}, None, 0))
    digest._file.close()
    line = digest._file.path.read_bytes().splitlines()[-1]
    found = json.loads(line)
    assert (len(found["waits"]), len(found["pauses"])) == (
        min(count, digest_digest.MOST_WAITS),
        digest_digest.MOST_PAUSES,
    )
    assert len(line) < 3_000
    assert found["collectives_every"] == every
    assert len(found["collectives"]) == pytest.approx(count / every, abs=1)


def test_marks_of_loader_backward_optimizer_and_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils.data import DataLoader

    monkeypatch.setattr(nsys_capture, "LEAST_GC_NS", 0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    marks = ThreadMarks()
    marks.hook()
    try:
        for batch in DataLoader([torch.ones(4)], batch_size=1):
            model(batch).sum().backward()
            gc.collect()
            optimizer.step()
        taken = marks.take()
    finally:
        marks.unhook()
    told = list(dict.fromkeys(phase for *_, phase in taken))
    told.remove("gc")  # Python may have collected before, too
    assert told == ["forward", "input", "backward", "optimizer"]
    assert [wall for wall, *_ in taken] == sorted(wall for wall, *_ in taken)
    before = len(marks.marks)
    model(torch.ones(4)).sum().backward()  # no longer hooked
    assert len(marks.marks) == before


def test_a_file_is_bounded_and_each_explains_its_own_lines(tmp_path: Path) -> None:
    file = DigestFile(tmp_path / "rank0.digest", {"rank": 0}, limit=4_000)
    for step in range(400):
        file.rotate_if_full()
        file.line({"step": step, "collectives": [[file.kind(collective(step, 0, 1)), step, 0, 1]]})
        file.flush()
    file.close()
    for path in (file.path, file.older):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [next(iter(line)) for line in lines[:4]] == ["gpuscope_digest", "group", "kind", "step"]
        assert path.stat().st_size < 4_200
    assert json.loads(file.path.read_text().splitlines()[-1])["step"] == 399
    assert len(list(tmp_path.iterdir())) == 2


def test_of_flight_recorders_ring_what_is_new_and_timed_is_taken() -> None:
    def entry(seq: int, took: float | None) -> dict[str, Any]:
        return {
            "profiling_name": "nccl:all_reduce",
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "state": "completed",
            "retired": True,
            "input_sizes": [[8]],
            "output_sizes": [[8]],
            "input_dtypes": ["Float"],
            "time_created_ns": seq * MS,
            "duration_ms": took,
        }

    told: dict[str, int] = {}
    first = timed({"entries": [entry(1, 2.5), entry(2, None)]}, told)
    assert [(one.seq, (one.completed_ns or 0) - one.issued_ns) for one in first] == [(1, 2_500_000)]
    assert [one.seq for one in timed({"entries": [entry(1, 2.5), entry(2, 1.0), entry(3, 1.0)]}, told)] == [2, 3]


def test_always_and_whole_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="always and whole"):
        RecordOptions(always=True, whole=True).check()


def test_a_job_that_is_killed_leaves_its_digest(record: Run, torchrun: tuple[str, ...], ddp_script: Path) -> None:
    now = "import gpuscope.instrumented_runtime.record.digest_digest as digest; digest.HELD_NS = 0\n"
    ddp_script.write_text(now + ddp_script.read_text())
    done = record("--always", "--", *torchrun, ddp_script, FAIL="kill")
    assert done.code == 1
    lines = [json.loads(line) for line in (done.folder / "digest/rank1.digest").read_text().splitlines()]
    steps = [line for line in lines if "step" in line]
    assert [line["step"] for line in steps] == [*range(7)]
    for line in steps[1:]:
        assert len(json.dumps(line, separators=(",", ":"))) < 3_000
        assert sum(ns for _, ns in line["phases"]) == line["step_ns"]
        assert {"forward", "backward", "optimizer"} <= {phase for phase, _ in line["phases"]}
    # One that ends behind its step counts in the next one.
    assert sum(line["collectives_in_all"].get("all_reduce 0", [0])[0] for line in steps) >= len(steps) - 1
    assert not list(done.folder.glob("rank*.json.gz"))
    report = gpuscope.analyze(done.folder).report
    assert report["trace"]["ranks_present"] == [0, 1]
    assert not report["verdict"]["abstained"]
    assert "all_reduce" in {one["op"] for one in report["collectives"]}
