"""Following a run: steps as they are written, who is late, and alerts, on measures written by hand."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.cli import call

from gpuscope.analyzers.commands.watch import command
from gpuscope.analyzers.watching.alerts import alerts, common_steps, exposed_frac, late_ranks
from gpuscope.analyzers.watching.measures import BLOCK, RunWatcher
from gpuscope.errors import InputError

MS = 1_000_000


@contextmanager
def limited() -> Iterator[None]:
    """At most 20 s, and 1 GiB more than now: a reader that is caught fails here instead of the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else None
    if pages is not None:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), before[1]))
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("not done after 20 s"))
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, before)


def write(folder: Path, rank: int, steps: range, *, own_ms: int, step_ms: int = 100, status: str = "running") -> None:
    """Steps of `step_ms`, of which the rank needs `own_ms` itself; step k ends at 100 · (k + 1) ms."""
    (folder / "measures").mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"run_id": "r", "status": status}))
    with (folder / "measures" / f"rank{rank}.jsonl").open("a") as file:
        for step in steps:
            line = {
                "step": step,
                "rank": rank,
                "first": step == 0,
                "end_ns": 100 * (step + 1) * MS,
                "step_ns": step_ms * MS,
                "exposed_communication_ns": (step_ms - own_ms) * MS,
                "data_wait_ns": 0,
                "tokens_per_s": 5.0,
                "loss": 1.0,
            }
            file.write(json.dumps(line) + "\n")


def test_only_what_was_added_is_read_and_half_a_line_waits(tmp_path: Path) -> None:
    write(tmp_path, 0, range(3), own_ms=80)
    watcher = RunWatcher(tmp_path)
    assert common_steps(watcher.look()) == [1, 2]  # the first after a start is left out
    path = tmp_path / "measures" / "rank0.jsonl"
    line = path.read_bytes().splitlines()[-1].replace(b'"step": 2', b'"step": 3')
    with path.open("ab") as file:
        file.write(line[:20])
    assert common_steps(watcher.look()) == [1, 2]
    with path.open("ab") as file:
        file.write(line[20:] + b"\nnot json\n")
    seen = watcher.look()
    assert common_steps(seen) == [1, 2, 3]
    assert seen.lost == 1
    assert exposed_frac(seen, 3) == pytest.approx(0.2)


def test_a_restarted_job_is_followed_into_its_last_attempt(tmp_path: Path) -> None:
    def digest(folder: Path, rank: int, steps: int) -> None:
        (folder / "digest").mkdir(parents=True, exist_ok=True)
        lines = [{"step": step, "rank": rank, "end_ns": step + 1, "step_ns": MS} for step in range(steps)]
        told = [{"gpuscope_digest": 2, "rank": rank}, {"group": "0", "description": "", "ranks": [0, 1]}, *lines]
        (folder / "digest" / f"rank{rank}.digest").write_text("".join(json.dumps(one) + "\n" for one in told))

    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "running"}))
    digest(tmp_path, 0, 9)
    digest(tmp_path, 1, 9)
    watcher = RunWatcher(tmp_path)
    assert {rank: len(own) for rank, own in watcher.look().steps.items()} == {0: 9, 1: 9}
    for attempt in ("restart2", "restart10"):
        digest(tmp_path / attempt, 1, 2)
    seen = watcher.look()
    assert ({rank: len(own) for rank, own in seen.steps.items()}, seen.groups) == ({1: 2}, {"0": (0, 1)})
    digest(tmp_path / "restart10", 1, 4)
    assert [*watcher.look().steps[1]] == [0, 1, 2, 3]
    digest(tmp_path / "restart11", 1, 4)
    newer = tmp_path / "restart11" / "digest" / "rank1.digest"
    newer.write_text(newer.read_text().replace('"gpuscope_digest": 2', '"gpuscope_digest": 3'))
    seen = watcher.look()
    assert (seen.steps, [one.name for one in seen.refused]) == ({}, ["restart11/digest/rank1.digest"])


@pytest.mark.parametrize("own_ms", [-40, 140])
def test_exposed_communication_longer_than_its_step_is_not_known(tmp_path: Path, own_ms: int) -> None:
    """As DDP's reducer reports at times: neither a share of 180 % nor a rank that needs nothing."""
    write(tmp_path, 0, range(3), own_ms=own_ms)
    seen = RunWatcher(tmp_path).look()
    assert [(one.exposed_ns, one.own_ns) for one in seen.steps[0].values()] == [(None, None)] * 3


def test_the_rank_that_needs_most_itself_is_the_one_waited_for(tmp_path: Path) -> None:
    for rank, own in enumerate((60, 60, 90, 62)):
        write(tmp_path, rank, range(12), own_ms=own)
    seen = RunWatcher(tmp_path).look()
    late = late_ranks(seen, common_steps(seen))
    assert {(one.rank, one.late_ns) for one in late} == {(2, 30 * MS)}
    (alert,) = alerts(seen, 1_300 * MS)
    assert (alert.code, alert.ranks) == ("falls_behind", (2,))
    assert "11 of the last 11 measured steps, 30.00 ms each" in alert.message


def test_ranks_that_take_turns_are_no_alert(tmp_path: Path) -> None:
    for rank in range(4):
        for step in range(12):
            write(tmp_path, rank, range(step, step + 1), own_ms=90 if step % 4 == rank else 60)
    seen = RunWatcher(tmp_path).look()
    assert len(late_ranks(seen, common_steps(seen))) == 11
    assert alerts(seen, 1_300 * MS) == []


def test_a_rank_that_stands_still_and_all_of_them(tmp_path: Path) -> None:
    write(tmp_path, 0, range(12), own_ms=80)
    write(tmp_path, 1, range(11), own_ms=80)
    seen = RunWatcher(tmp_path).look()
    assert alerts(seen, 5_000 * MS) == []
    (alert,) = alerts(seen, 60_000 * MS)
    assert (alert.code, alert.ranks) == ("stands_still", (1,))
    write(tmp_path, 1, range(11, 12), own_ms=80)
    (alert,) = alerts(RunWatcher(tmp_path).look(), 60_000 * MS)
    assert (alert.code, alert.ranks) == ("stands_still", ())
    write(tmp_path, 1, range(0), own_ms=80, status="completed")
    assert alerts(RunWatcher(tmp_path).look(), 60_000 * MS) == []


def test_steps_that_become_slower(tmp_path: Path) -> None:
    write(tmp_path, 0, range(40), own_ms=80)
    write(tmp_path, 0, range(40, 50), own_ms=100, step_ms=130)
    (alert,) = alerts(RunWatcher(tmp_path).look(), 5_100 * MS)
    assert alert.code == "slower"
    assert "130.0 ms" in alert.message


def test_the_command(tmp_path: Path) -> None:
    for rank, own in enumerate((60, 90, 60)):
        write(tmp_path, rank, range(12), own_ms=own, status="completed")
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "step 11  100.0 ms  exposed communication 30 %  last: rank 1 (+30.00 ms)" in done.output
    assert "ALERT  rank 1 falls behind" in done.output
    assert "completed: 3 ranks, 12 steps" in done.output
    once = CliRunner().invoke(command, [str(tmp_path), "--once"], standalone_mode=False)
    assert once.return_value == 1
    ranks = [
        {"rank": 0, "status": "failed", "error": "RuntimeError: Connection closed by peer"},
        {"rank": 1, "status": "killed"},
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "failed", "ranks": ranks}))
    failed = CliRunner().invoke(command, [str(tmp_path)]).output.splitlines()[-1]
    assert failed == "failed: rank 1 killed; rank 0 then lost the connection; 3 ranks, 12 steps"


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="folder"):
            RunWatcher(folder)


def no_plain_file(path: Path, kind: str, elsewhere: Path) -> None:
    """What an attacker, or an accident, puts in a file's place."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, chdir(path.parent):  # the name of a socket is short
            made.bind(path.name)
    elif kind == "too large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "link out":
        elsewhere.write_text("{}\n")
        path.symlink_to(elsewhere)
    else:
        path.symlink_to("/dev/zero")


HOSTILE = ("/dev/zero", "pipe", "socket", "too large", "link out")


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", ["measures/rank1.jsonl", "manifest.json", "manifest.d/rank0.json"])
def test_what_is_no_plain_file_of_the_run_folder_is_not_read_and_told(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "run"
    write(folder, 0, range(5), own_ms=80, status="completed")
    (folder / "manifest.d").mkdir()
    no_plain_file(folder / name, kind, tmp_path / "elsewhere")
    with limited():
        seen = RunWatcher(folder).look()
        said = CliRunner().invoke(command, [str(folder), "--once"]).output
    assert [refused.name for refused in seen.refused] == [name]
    assert common_steps(seen) == [1, 2, 3, 4]
    assert name in said


@pytest.mark.parametrize("name", ["measures", "manifest.d"])
def test_a_folder_that_leads_out_of_the_run_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    write(other, 0, range(5), own_ms=80, status="completed")
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "completed"}))
    (folder / name).symlink_to(other / "measures")
    seen = RunWatcher(folder).look()
    assert ([(one.name, one.reason) for one in seen.refused], dict(seen.steps)) == ([(name, "leads_out")], {})


@pytest.mark.parametrize("path", ["../trace.json", "/dev/zero", "link.json"])
def test_a_finished_window_outside_the_run_folder_is_not_read_and_told(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    files = [{"kind": "torch_profiler", "path": path}]
    (folder / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "completed", "files": files}))
    (tmp_path / "trace.json").write_text("[]")
    (folder / "link.json").symlink_to(tmp_path / "trace.json")
    seen = RunWatcher(folder).look()
    assert (seen.windows, [refused.name for refused in seen.refused]) == ((), [path])


def test_links_inside_the_run_folder_are_followed(tmp_path: Path) -> None:
    write(tmp_path, 0, range(5), own_ms=80)
    (tmp_path / "measures" / "rank0.jsonl").rename(tmp_path / "kept.jsonl")
    (tmp_path / "measures" / "rank0.jsonl").symlink_to("../kept.jsonl")
    seen = RunWatcher(tmp_path).look()
    assert (common_steps(seen), seen.refused) == ([1, 2, 3, 4], ())


def test_a_line_without_an_end_is_one_lost_line(tmp_path: Path) -> None:
    """However long it is, and also while it is being written."""
    write(tmp_path, 0, range(3), own_ms=80)
    path = tmp_path / "measures" / "rank0.jsonl"
    watcher = RunWatcher(tmp_path)
    with path.open("ab") as file:
        file.write(b"x" * (3 * BLOCK + 5))
    with limited():
        assert (common_steps(watcher.look()), watcher.look().lost) == ([1, 2], 1)
    with path.open("ab") as file:
        file.write(b"x\n")
    write(tmp_path, 0, range(3, 5), own_ms=80)
    seen = watcher.look()
    assert (common_steps(seen), seen.lost) == ([1, 2, 3, 4], 1)


def test_the_live_page_tells_what_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("dash")
    from gpuscope.dashboards.live import _state

    write(tmp_path, 0, range(5), own_ms=80)
    (tmp_path / "measures" / "rank1.jsonl").symlink_to("/dev/zero")
    seen = RunWatcher(tmp_path).look()
    assert "measures/rank1.jsonl" in str(_state(seen, "", None))


@pytest.mark.parametrize("how", [(), ("--once",)])
def test_a_finished_run_of_traces_alone_is_left_to_analyze(samples: Path, how: tuple[str, ...]) -> None:
    lines = CliRunner().invoke(command, [str(samples / "ddp_slow_rank"), *how]).output.splitlines()
    assert [f"analyze {samples / 'ddp_slow_rank'}" in line for line in lines] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("name", ["again", "watch"])
def test_a_file_is_no_run_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    file.touch()
    done = call(capsys, name, file)
    assert (done.returncode, "not a run folder" in done.stderr, "Hint: " in done.stderr) == (3, True, True)


def test_a_hang_that_the_recorder_has_reported_is_told(tmp_path: Path) -> None:
    """Also where steps are recent; a pause is none."""
    for rank in range(2):
        write(tmp_path, rank, range(12), own_ms=80)
    parts = tmp_path / "manifest.d"
    parts.mkdir(exist_ok=True)
    told = {"severity": "error", "code": "hang", "message": "hang: rank 0 waits in all_reduce #67"}
    (parts / "rank0.json").write_text(json.dumps({"rank": 0, "problems": [told]}))
    seen = RunWatcher(tmp_path).look()
    (alert,) = alerts(seen, 1_300 * MS)
    assert (alert.code, alert.ranks) == ("hang", ())
    assert "rank 0 waits in all_reduce #67" in alert.message
    (parts / "rank0.json").write_text(json.dumps({"rank": 0, "problems": [{**told, "code": "pause"}]}))
    assert alerts(RunWatcher(tmp_path).look(), 1_300 * MS) == []
