"""Following a run: steps as they are written, who is late, and alerts, on measures written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuscope.analyzers.commands.watch import command
from gpuscope.analyzers.watching.alerts import alerts, common_steps, exposed_frac, late_ranks
from gpuscope.analyzers.watching.measures import RunWatcher
from gpuscope.errors import InputError

MS = 1_000_000


def write(folder: Path, rank: int, steps: range, *, own_ms: int, step_ms: int = 100, status: str = "running") -> None:
    """Steps of `step_ms`, of which the rank needs `own_ms` itself; step k ends at 100 · (k + 1) ms."""
    (folder / "measures").mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"run_id": "r", "status": status}))
    with (folder / "measures" / f"rank{rank}.jsonl").open("a") as file:
        for step in steps:
            line = {
                "step": step, "rank": rank, "first": step == 0, "end_ns": 100 * (step + 1) * MS,
                "step_ns": step_ms * MS, "exposed_communication_ns": (step_ms - own_ms) * MS, "data_wait_ns": 0,
                "tokens_per_s": 5.0, "loss": 1.0,
            }  # fmt: skip
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


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="folder"):
            RunWatcher(folder)
