"""Digests written by hand: what of them becomes which part of a step, torn and hostile lines, the file before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import gpuscope
from gpuscope.analyzers.commands.watch import command
from gpuscope.errors import InputError, UsageError

MS = 1_000_000
HEADER = {"gpuscope_digest": 2, "world_size": 2, "host": "node", "pid": 7}
GROUP = {"group": "0", "description": "default_pg", "ranks": [0, 1]}
KIND = {"kind": 0, "op": "all_reduce", "group": "0", "bytes": 4 << 20, "dtype": "float32"}


def line(rank: int, step: int, *, own_ms: int, host_ms: int = 0, gpu: bool = False) -> dict[str, Any]:
    """A step of 100 ms: 10 ms for data, the rank's own computation, an all-reduce that ends at 96 ms, the optimizer."""
    wait = 96 - own_ms - host_ms
    listed = [[0, step + 1, (96 - wait) * MS, wait * MS]]
    return {
        "step": step,
        "rank": rank,
        "first": step == 0,
        "end_ns": (step + 1) * 100 * MS,
        "step_ns": 100 * MS,
        "exposed_communication_ns": None if gpu else wait * MS,
        "data_wait_ns": 10 * MS,
        "ran_ns": own_ms * MS,
        "core_wait_ns": 0,
        "phases": [["input", 10 * MS], ["forward", 20 * MS], ["backward", 66 * MS], ["optimizer", 4 * MS]],
        "waits": [[(96 - wait) * MS, wait * MS]],
        "pauses": [[12 * MS, host_ms * MS]] if host_ms else [],
        "collectives": [] if gpu else listed,
        "collectives_in_all": {"all_reduce 0": [1, 4 << 20, wait * MS]},
        **({"on_device": listed} if gpu else {}),
    }


def write(folder: Path, own_ms: tuple[int, ...], steps: int = 30, **more: Any) -> Path:
    """A run folder with a digest per rank."""
    (folder / "digest").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "completed"}))
    for rank, own in enumerate(own_ms):
        rows = [HEADER | {"rank": rank}, GROUP, KIND, *(line(rank, step, own_ms=own, **more) for step in range(steps))]
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (folder / "digest" / f"rank{rank}.digest").write_text(text)
    return folder


def test_every_part_of_a_step_is_what_it_was(tmp_path: Path) -> None:
    report = gpuscope.analyze(write(tmp_path / "run", (80, 40))).report
    assert report["verdict"]["cause"] == "straggler"
    assert [one["rank"] for one in report["stragglers"] if one["recurrent"]] == [0]
    late, waiting = report["ranks"]
    assert waiting["breakdown_ns"]["exposed_communication"] == waiting["steps"] * 56 * MS
    assert late["breakdown_ns"]["compute"] == late["steps"] * (80 - 10 + 4) * MS
    assert late["stall_ns"]["cpu"]["input"] == late["steps"] * 10 * MS
    assert {one["code"] for one in report["problems"]} >= {"digest_only"}


def test_a_pause_that_no_collective_ends_is_host_work(tmp_path: Path) -> None:
    report = gpuscope.analyze(write(tmp_path / "run", (60, 60), host_ms=30)).report
    assert (report["verdict"]["bound_by"], report["verdict"]["cause"]) == ("cpu", "host_other")


def test_a_digest_of_gpus_has_no_verdict_but_who_comes_last(tmp_path: Path) -> None:
    report = gpuscope.analyze(write(tmp_path / "run", (80, 40), gpu=True)).report
    assert report["verdict"]["abstained"]
    assert "touch RUN/record" in report["verdict"]["record"]
    assert [one["ranks"] for one in report["findings"] if one["code"] == "late_in_dumps"] == [[0]]


def test_a_torn_line_and_lines_of_another_kind_are_counted(tmp_path: Path) -> None:
    run = write(tmp_path / "run", (60, 60))
    path = run / "digest" / "rank0.digest"
    whole = path.read_text()
    bad = ['{"step":"x"}', '{"step":1,"end_ns":1,"step_ns":-5}', "[]", '{"kind":1,"op":2}']
    path.write_text(whole + "\n".join(bad) + '\n{"step":30,"rank":0,"end')
    (problem,) = (one for one in gpuscope.analyze(run).report["problems"] if one["code"] == "record_unreadable")
    assert problem["count"] == len(bad) + 1


def test_the_file_before_is_read_first(tmp_path: Path) -> None:
    run = write(tmp_path / "run", (60, 60))
    for rank in (0, 1):
        path = run / "digest" / f"rank{rank}.digest"
        rows = path.read_text().splitlines(keepends=True)
        path.with_name(path.name + ".older").write_text("".join(rows[:13]))
        path.write_text("".join(rows[:3] + rows[13:]))
    assert len({one["step"] for one in gpuscope.analyze(run).report["steps"] if one["step"] is not None}) == 30


@pytest.mark.parametrize("text", ['{"gpuscope_digest":2,"rank":0}\n', '{"gpuscope_digest":2,"rank":-3}\n{"step":0}\n'])
def test_a_digest_without_a_step_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0.digest"
    path.write_text(text)
    with pytest.raises(InputError, match="holds no step"):
        gpuscope.analyze(path)


def test_beside_a_trace_a_digest_is_left_out(tmp_path: Path, samples: Path) -> None:
    run = write(tmp_path / "run", (60, 60))
    for trace in (samples / "ddp_healthy").glob("rank*.json.gz"):
        (run / trace.name).write_bytes(trace.read_bytes())
    assert {one["format"] for one in gpuscope.analyze(run).report["trace"]["sources"]} == {"kineto"}


def test_watch_follows_digests(tmp_path: Path) -> None:
    run = write(tmp_path / "run", (60, 75, 60))
    (run / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "running"}))
    done = CliRunner().invoke(command, [str(run), "--once", "--record-on-alert"], standalone_mode=False)
    assert "ALERT  rank 1 falls behind" in done.output
    assert "asked  for a window of ranks 1, 0" in done.output
    assert (run / "record").read_text() == "ranks 1 0"
    assert "lines could not be read" not in done.output


def stage_line(step: int, *, sends: bool, own_ms: int, sampled: bool) -> dict[str, Any]:
    """A step of 1F1B with two micro-batches on two stages, 100 ms: forwards of 10 ms, backwards of 20 ms, and before
    them `own_ms` that the first stage (`sends`) computes by itself."""
    at = own_ms
    if sends:  # forward, forward, its gradient awaited, backward, backward
        rows = [[0, at + 10, 1, 0, 1], [0, at + 20, 1, 0, 1], [1, at + 20, 20, 1, 0], [1, at + 60, 10, 1, 0]]
        phases = [["forward", at + 40], ["backward", 20], ["forward", 10], ["backward", 20], ["forward", 10 - at]]
        waits = [[at + 20, 20], [at + 60, 10]]
    else:  # each activation awaited, then forward and backward
        rows = [[0, 0, at + 10, 0, 1], [1, at + 40, 1, 1, 0], [0, at + 40, 1, 0, 1], [1, at + 70, 1, 1, 0]]
        phases = [["forward", at + 20], ["backward", 20], ["forward", 10], ["backward", 20], ["forward", 30 - at]]
        waits = [[0, at + 10]]
    numbers = {0: 2 * step, 1: 2 * step}
    listed = []
    number = at = 0
    for kind, offset, ns, src, dst in rows:
        later = numbers[kind] - number, (offset - at) * MS
        listed.append([kind if sends else 2 + kind, *later, ns * MS, src, dst])
        number, at = numbers[kind], offset
        numbers[kind] += 1
    return {
        "step": step,
        "end_ns": (step + 1) * 100 * MS,
        "step_ns": 100 * MS,
        "collectives": listed,
        "collectives_every": 1 + sampled,
        "phases": [[phase, ns * MS] for phase, ns in phases],
        "waits": [[offset * MS, ns * MS] for offset, ns in waits],
        "pauses": [],
    }


@pytest.mark.parametrize("sampled", [False, True])
def test_messages_show_the_computations_of_a_pipeline_if_all_are_listed(tmp_path: Path, sampled: bool) -> None:
    kinds = [
        {"kind": place, "op": op, "group": "0", "bytes": 64, "dtype": "float32"}
        for place, op in enumerate(("send", "recv", "recv", "send"))
    ]
    for rank in (0, 1):
        steps = [stage_line(step, sends=rank == 0, own_ms=9, sampled=sampled) for step in range(12)]
        rows = [HEADER | {"rank": rank}, GROUP, *kinds, *steps]
        (tmp_path / f"rank{rank}.digest").write_text(
            "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        )
    report = gpuscope.analyze(tmp_path).report
    assert bool(report["pipeline"]["incomplete"]) is sampled
    if not sampled:
        assert report["pipeline"]["schedule"]["micro_batches"] == 2
        assert {one["rank"]: one["compute_ns"] for one in report["pipeline"]["rows"]} == {0: 60 * MS, 1: 60 * MS}


@pytest.mark.parametrize("files", [["a0", "b1"], ["a0", "a1", "b0", "b1"]])
def test_digests_of_two_runs_side_by_side_are_not_one_job(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        late, rank = name[0] == "b", int(name[1])
        rows = [HEADER | {"rank": rank, "pid": 7 + rank + 10 * late}, GROUP, KIND]
        rows += [line(rank, step + 100 * late, own_ms=60) for step in range(8)]
        (tmp_path / f"{name}.digest").write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    with pytest.raises(UsageError, match=r"both hold rank 0|digests of different runs") as error:
        gpuscope.analyze(tmp_path)
    assert "gpuscope diff" in (error.value.hint or "")
