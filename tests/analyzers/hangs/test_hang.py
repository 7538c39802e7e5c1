"""First cause and waiting ranks, from dumps written by hand and from real ones with known faults."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.flight_recorder import Group, dump, entry

import gpuscope
from gpuscope.catalogue.hang_sentences import CIRCULAR
from gpuscope.cli import cli
from gpuscope.report.view.first_lines import first_lines
from gpuscope.schema.document import Report

WORLD: Group = ("0", "default_pg", [0, 1])
FOUR: Group = ("0", "default_pg", [0, 1, 2, 3])


def report(folder: Path) -> Report:
    return gpuscope.analyze(folder).report


def causes(found: Report) -> list[tuple[int, str]]:
    return [(cause["rank"], cause["kind"]) for cause in found["hang"]["first_cause"]]


def write(folder: Path, group: Group, of_ranks: Sequence[Sequence[dict[str, Any]]]) -> None:
    for rank, entries in enumerate(of_ranks):
        dump(folder, rank, [group], entries)


def test_a_rank_that_never_came_is_the_first_cause(tmp_path: Path) -> None:
    write(tmp_path, WORLD, [[entry(WORLD, 1, done=True), entry(WORLD, 2)], [entry(WORLD, 1, done=True)]])
    found = report(tmp_path)
    assert causes(found) == [(1, "never_arrived")]
    assert found["hang"]["only_waited"] == [0]
    (finding,) = found["findings"]
    assert (finding["code"], finding["severity"], finding["ranks"]) == ("hang", "high", [1])
    assert found["verdict"]["abstained"]
    assert found["hang"]["last"][1]["frames"] == ["step (train.py:11)"]


@pytest.mark.parametrize(("status", "told"), [("running", (0, 1)), ("completed", (1, 0))])
def test_nothing_hangs_where_all_have_finished(tmp_path: Path, status: str, told: tuple[int, int]) -> None:
    """Of a job that came to its end that is certain."""
    write(tmp_path, WORLD, [[entry(WORLD, 1, done=True)]] * 2)
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "r", "status": status}))
    found = report(tmp_path)
    assert not found["hang"]["hung"]
    assert found["findings"] == []
    assert (len(found["hang"]["certain"]), len(found["hang"]["uncertain"])) == told


def test_a_chain_over_two_groups_ends_at_its_first_cause(tmp_path: Path) -> None:
    """0 waits for 1 in group a; 1 waits for 2 in group b, so it has an excuse; 2 waits for nobody."""
    a, b = ("1", "tp", [0, 1]), ("2", "dp", [1, 2])
    dump(tmp_path, 0, [a], [entry(a, 1)])
    dump(tmp_path, 1, [a, b], [entry(b, 1)])
    # Rank 2's dump holds no entry; what it enqueued in b stands in its status.
    dump(tmp_path, 2, [b], [], pg_status={"0": {"last_enqueued_collective": 0, "last_completed_collective": 0}})
    found = report(tmp_path)
    assert causes(found) == [(2, "never_arrived")]
    assert found["hang"]["only_waited"] == [0, 1]


def test_two_ranks_that_wait_for_each_other_are_both_the_cause(tmp_path: Path) -> None:
    """Rank 0 is in group a first, rank 1 in group b: neither gets on."""
    a, b = ("1", "tp", [0, 1]), ("2", "dp", [0, 1])
    dump(tmp_path, 0, [a, b], [entry(a, 1)])
    dump(tmp_path, 1, [a, b], [entry(b, 1)])
    found = report(tmp_path)
    assert causes(found) == [(0, "circular"), (1, "circular")]
    assert [found["hang"]["first_cause"][0].get("remedy"), found["hang"]["first_cause"][0]["why"]] == [
        CIRCULAR,
        "ranks 0-1 wait for each other: rank 1 waits in all_reduce 1 of group 2 (dp), this one in all_reduce 1 of "
        "group 1 (tp)",
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_rank_that_left_out_a_call_is_the_cause_though_it_waits_too(tmp_path: Path, ranks: int) -> None:
    """All but rank 1 enter a; rank 1 leaves it out and later waits in b for the others."""
    a, b = ("1", "extra", list(range(ranks))), ("0", "default_pg", list(range(ranks)))
    for rank in range(ranks):
        late = entry(b, 5) | {"time_created_ns": 1_700_000_001_000_000_000}
        dump(tmp_path, rank, [a, b], [late] if rank == 1 else [entry(a, 1)])
    found = report(tmp_path)
    assert causes(found) == [(1, "circular")]
    assert found["hang"]["first_cause"][0]["certain"] is False


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"profiling_name": "nccl:broadcast"}, "operation"),
        ({"input_dtypes": ["Half"]}, "dtype"),
        ({"input_sizes": [[8]]}, "size"),
    ],
)
def test_the_minority_of_a_mismatch_is_the_cause(tmp_path: Path, odd: dict[str, Any], what: str) -> None:
    three: Group = ("0", "default_pg", [0, 1, 2])
    write(tmp_path, three, [[entry(three, 1)], [entry(three, 1)], [entry(three, 1, **odd)]])
    found = report(tmp_path)
    assert causes(found) == [(2, "mismatch")]
    assert found["hang"]["first_cause"][0]["certain"] is True
    assert found["hang"]["mismatches"][0]["what"] == what
    assert found["hang"]["only_waited"] == [0, 1]
    lines = first_lines(found)
    assert (lines.what, lines.label) == ("Ranks called different operations: rank 2 unlike the others", "next")


def test_of_two_that_disagree_neither_is_right(tmp_path: Path) -> None:
    write(tmp_path, WORLD, [[entry(WORLD, 1)], [entry(WORLD, 1, "broadcast")]])
    found = report(tmp_path)
    assert causes(found) == [(0, "mismatch"), (1, "mismatch")]
    assert not any(cause["certain"] for cause in found["hang"]["first_cause"])


def test_of_a_job_that_is_over_nothing_is_asked_that_nobody_can_have(tmp_path: Path) -> None:
    """Rank 1 was killed and left no dump; the stack of rank 1 can't be taken any more either. Frames of the recorder's
    own are left out."""
    ours = {"name": "method", "filename": "/x/instrumented_runtime/record/gloo/gloo_trace.py", "line": 1}
    dump(tmp_path, 0, [WORLD], [entry(WORLD, 1, frames=[ours, {"name": "f", "filename": "train.py", "line": 3}])])
    before = report(tmp_path)["hang"]
    assert {one["source"] for one in before["sources"] if one["missing"]} >= {"flight_recorder", "stacks"}
    assert before["last"][0]["frames"] == ["f (train.py:3)"]
    ranks = [{"rank": 0, "status": "failed", "error": "x"}, {"rank": 1, "status": "killed"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "x", "status": "failed", "ranks": ranks}))
    after = report(tmp_path)["hang"]
    assert [one["source"] for one in after["sources"] if one["missing"]] == []


def test_all_to_all_may_be_uneven(tmp_path: Path) -> None:
    write(tmp_path, WORLD, [[entry(WORLD, 1, "all_to_all", input_sizes=[[n]])] for n in (3, 5)])
    found = report(tmp_path)
    assert found["hang"]["mismatches"] == []
    assert causes(found) == [(0, "transfer"), (1, "transfer")]
    assert not any(cause["certain"] for cause in found["hang"]["first_cause"])


def test_a_device_that_alone_did_not_finish_is_the_cause(tmp_path: Path) -> None:
    done = [entry(WORLD, 1, done=True), entry(WORLD, 2)]
    write(tmp_path, WORLD, [done, [entry(WORLD, 1)]])
    assert causes(report(tmp_path)) == [(1, "device_stuck")]


def test_a_rank_without_dump_is_under_suspicion_only(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        dump(tmp_path, rank, [FOUR], [entry(FOUR, 1)])
    found = report(tmp_path)
    assert causes(found) == [(2, "no_dump")]
    assert found["hang"]["first_cause"][0]["certain"] is False
    assert found["hang"]["without_dump"] == [2]


def test_dumps_of_some_ranks_stay_those_ranks(tmp_path: Path) -> None:
    """Of a job of 16 the dumps of four are at hand; rank 9 never came."""
    group: Group = ("0", "default_pg", list(range(16)))
    for rank in (3, 7, 9, 12):
        late = [] if rank == 9 else [entry(group, 2)]
        dump(tmp_path, rank, [group], [entry(group, 1, done=True), *late])
    found = report(tmp_path)
    assert found["trace"]["ranks_present"] == [3, 7, 9, 12]
    assert causes(found)[0] == (9, "never_arrived")
    assert found["hang"]["only_waited"] == [3, 7, 12]


def test_a_missing_dump_excuses_nobody_who_is_known_to_be_absent(tmp_path: Path) -> None:
    dump(tmp_path, 0, [FOUR], [entry(FOUR, 1, done=True), entry(FOUR, 2)])
    dump(tmp_path, 1, [FOUR], [entry(FOUR, 1, done=True)])
    assert causes(report(tmp_path)) == [(1, "never_arrived")]


def test_a_receive_waits_for_its_sender(tmp_path: Path) -> None:
    """`recv 1<-0` counts within the group: rank 5 waits for rank 3."""
    pair: Group = ("7", "pp", [3, 5])
    dump(tmp_path, 3, [pair], [entry(pair, 1, "send 0->1", done=True)])
    dump(tmp_path, 5, [pair], [entry(pair, 1, "recv 1<-0", done=True), entry(pair, 2, "recv 1<-0")])
    found = report(tmp_path)
    assert causes(found) == [(3, "never_arrived")]
    assert [(o["op"], o["waiting"], o["awaited"]) for o in found["hang"]["operations"]] == [("recv", [5], [3])]


def test_sends_and_receives_are_counted_per_direction(tmp_path: Path) -> None:
    """Rank 0 sent once and waits for an answer; rank 1 received and never answers. Numbers alone would agree."""
    pair: Group = ("7", "pp", [0, 1])
    dump(tmp_path, 0, [pair], [entry(pair, 1, "send 0->1", done=True), entry(pair, 1, "recv 0<-1")])
    dump(tmp_path, 1, [pair], [entry(pair, 1, "recv 1<-0", done=True)])
    assert causes(report(tmp_path)) == [(1, "never_arrived")]


def test_numbers_that_do_not_compare_accuse_nobody_for_certain(tmp_path: Path) -> None:
    """Rank 1 was restarted: its counter is one behind, and no number has the same call on both."""
    ops = ["all_reduce", "broadcast", "reduce"]
    mine = [entry(WORLD, 10 + i, op, record_id=50 + i) for i, op in enumerate(ops)]
    theirs = [entry(WORLD, 9 + i, op, record_id=20 + i) for i, op in enumerate(ops)]
    for rank, entries in enumerate((mine, theirs)):
        dump(tmp_path, rank, [WORLD], entries)
    found = report(tmp_path)
    assert found["hang"]["mismatches"] == []
    assert not any(cause["certain"] for cause in found["hang"]["first_cause"])
    assert any("differently" in sentence for sentence in found["hang"]["uncertain"])


def job_of_16(folder: Path, *, absent: tuple[int, ...] = (), stuck: tuple[int, ...] = ()) -> None:
    """Synthetic: pairs of tensor-parallel ranks, each all-gathers twice; then the data-parallel halves all-reduce, and
    at last the world. `absent` ranks come to nothing after their pair's first; `stuck` ones never finish what all the
    others of a group have finished."""
    world: Group = ("0", "default_pg", list(range(16)))
    for rank in range(16):
        pair: Group = (str(1 + rank // 2), "mesh_tp", [rank - rank % 2, rank - rank % 2 + 1])
        half: Group = (str(9 + rank % 2), "mesh_dp", list(range(rank % 2, 16, 2)))
        waits = any(other in absent for other in pair[2])
        entries = [entry(pair, 1, "all_gather", done=True)]
        if rank not in absent:
            entries.append(entry(pair, 2, "all_gather", done=not waits))
        if stuck:
            entries.append(entry(half, 1, done=rank not in stuck))
        elif not waits:
            entries.append(entry(half, 1))
        dump(folder, rank, [world, pair, half], entries)


@pytest.mark.parametrize(("fault", "kind"), [("absent", "never_arrived"), ("stuck", "device_stuck")])
def test_two_faulty_ranks_of_a_synthetic_job_of_16(tmp_path: Path, fault: str, kind: str) -> None:
    """All wait in groups of two meshes, for ranks 9 and 14 in the end."""
    job_of_16(tmp_path, **{fault: (9, 14)})
    found = report(tmp_path)
    assert causes(found) == [(9, kind), (14, kind)]
    assert found["findings"][0]["ranks"] == [9, 14]
    if fault == "absent":
        assert found["hang"]["only_waited"] == [rank for rank in range(16) if rank not in (9, 14)]


@pytest.mark.parametrize(("case", "kind"), [("lock_gil_1st", "never_arrived"), ("gpu_error_2nd", "device_stuck")])
def test_faulty_ranks_of_a_tp_pp_ep_job(shared_traces: Path, case: str, kind: str) -> None:
    """Its publisher's fault_injection.log: «Fault ranks: [9, 14]»."""
    found = report(shared_traces / "nccl" / "flight_recorder" / case)
    assert causes(found) == [(9, kind), (14, kind)]
    assert found["hang"]["only_waited"] == [rank for rank in range(16) if rank not in (9, 14)]
    assert found["findings"][0]["ranks"] == [9, 14]


def test_command_prints_text_or_the_report(tmp_path: Path) -> None:
    write(tmp_path, WORLD, [[entry(WORLD, 1)], []])
    dump(tmp_path, 1, [WORLD], [], pg_status={"0": {"last_enqueued_collective": 0, "last_completed_collective": 0}})
    (tmp_path / "other.txt").write_text("not a dump")
    text = CliRunner().invoke(cli, ["hang", str(tmp_path)], standalone_mode=False)
    assert "rank 1  never enqueued all_reduce 1 of group 0 (default_pg)" in " ".join(text.stdout.split("\n    "))
    told = CliRunner().invoke(cli, ["hang", str(tmp_path), "--json", "--fail-on-hang"], standalone_mode=False)
    assert json.loads(told.stdout)["findings"][0]["ranks"] == [1]
    assert told.return_value == 1


def test_a_wait_lasts_until_the_dump_where_it_says_when_that_was(tmp_path: Path) -> None:
    begun = 1_700_000_000_000_000_002  # of the second operation, after which nobody enqueues anything
    for rank, entries in enumerate([[entry(WORLD, 1, done=True), entry(WORLD, 2)], [entry(WORLD, 1, done=True)]]):
        dump(tmp_path, rank, [WORLD], entries, dumped_ns=begun + 5_000_000_000 + rank)
    (finding,) = report(tmp_path)["findings"]
    assert [(one["rank"], one["dur_ns"]) for one in finding["evidence"]] == [(0, 5_000_000_001)]


@pytest.mark.parametrize(("waited_s", "hung"), [(0.2, False), (60, True)])
def test_a_dump_on_demand_is_no_hang_unless_something_waits_long(tmp_path: Path, waited_s: float, hung: bool) -> None:
    """Rank 1 wrote its dump a little earlier than rank 0, which had come to the second all-reduce by then."""
    first, second = entry(WORLD, 1, done=True), entry(WORLD, 2)
    asked = {"gpuscope_note": "on demand", "dumped_ns": second["time_created_ns"] + int(waited_s * 1e9)}
    dump(tmp_path, 0, [WORLD], [first, second], **asked)
    dump(tmp_path, 1, [WORLD], [first], **asked)
    assert report(tmp_path)["hang"]["hung"] is hung


@pytest.mark.parametrize("note", ["on demand", "on a hang"])
def test_a_dump_of_the_watch_is_of_a_hang_for_certain(tmp_path: Path, note: str) -> None:
    told = {"gpuscope_note": note, "dumped_ns": entry(WORLD, 2)["time_created_ns"] + 60_000_000_000}
    dump(tmp_path, 0, [WORLD], [entry(WORLD, 1, done=True), entry(WORLD, 2)], **told)
    dump(tmp_path, 1, [WORLD], [entry(WORLD, 1, done=True)], **told)
    hang = report(tmp_path)["hang"]
    assert hang["hung"]
    assert any("hung at all" in one for one in hang["uncertain"]) == (note == "on demand")


def test_a_run_that_failed_without_a_hang_is_told_first(tmp_path: Path) -> None:
    write(tmp_path, ("0", "undefined", [0, 1]), [[entry(WORLD, 1, done=True)], [entry(WORLD, 1, done=True)]])
    ranks = [{"rank": 1, "status": "failed", "error": "ValueError: a bad batch"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "x", "status": "failed", "ranks": ranks}))
    told = CliRunner().invoke(cli, ["hang", str(tmp_path)]).stdout
    assert "the run failed: rank 1 failed: ValueError: a bad batch" in " ".join(
        " ".join(told.splitlines()[1:3]).split()
    )
    assert "undefined" not in told


def test_torch_and_gpuscope_spell_a_dtype_differently(tmp_path: Path) -> None:
    write(tmp_path, WORLD, [[entry(WORLD, 1, input_dtypes=["Float"])], [entry(WORLD, 1, input_dtypes=["float32"])]])
    assert report(tmp_path)["hang"]["mismatches"] == []


def test_the_newest_dump_of_each_rank_is_taken(tmp_path: Path) -> None:
    for age, folder in ((2, "demand1"), (1, "flight_recorder")):
        (tmp_path / folder).mkdir()
        second = [entry(WORLD, 2)] if folder == "flight_recorder" else []
        write(tmp_path / folder, WORLD, [[entry(WORLD, 1, done=True), *second], [entry(WORLD, 1, done=True)]])
        for path in (tmp_path / folder).iterdir():
            os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
    done = CliRunner().invoke(cli, ["hang", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert "older dump of its rank" in done.stderr
    assert causes(json.loads(done.stdout)) == [(1, "never_arrived")]
