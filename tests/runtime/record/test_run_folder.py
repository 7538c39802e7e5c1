"""The run folder: its manifest from the parts that processes left, whatever became of them."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.record.run_folder import RankFolder, RunFolder, read_manifest


def test_a_run_of_two_ranks(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", command=["torchrun", "train.py"], faults=[{"name": "slow_rank"}])
    for rank in (0, 1):
        folder = RankFolder.join(run.path, rank=rank, world_size=2)
        path = folder.file(f"rank{rank}.json.gz")
        path.write_bytes(b"12345")
        folder.add_file(path, "torch_profiler")
        folder.note(backend="gloo", versions={"torch": "2.13"})
        folder.finish("completed")
    run.finish("completed", exit_code=0)

    manifest = json.loads((run.path / "manifest.json").read_text())
    assert (manifest["schema_version"], manifest["status"], manifest["exit_code"]) == (1, "completed", 0)
    assert (manifest["command"], manifest["world_size"]) == (["torchrun", "train.py"], 2)
    assert (manifest["backend"], manifest["versions"]) == ("gloo", {"torch": "2.13"})
    assert manifest["faults"] == [{"name": "slow_rank"}]
    assert manifest["files"] == [
        {"path": f"rank{rank}.json.gz", "kind": "torch_profiler", "rank": rank, "bytes": 5, "note": None}
        for rank in (0, 1)
    ]
    assert manifest["started_ns"] <= manifest["ranks"][0]["started_ns"] <= manifest["ended_ns"]


def test_a_rank_that_never_closed_was_killed(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", command=["x"])
    RankFolder.join(run.path, rank=0, world_size=2).finish("failed", error="RuntimeError: peer is gone")
    RankFolder.join(run.path, rank=1, world_size=2)
    assert [rank.status for rank in read_manifest(run.path).ranks] == ["failed", "running"]
    manifest = run.finish("failed", exit_code=1)
    assert [(rank.status, rank.error) for rank in manifest.ranks] == [
        ("failed", "RuntimeError: peer is gone"),
        ("killed", None),
    ]


def test_a_rank_that_never_closed_has_ended_well_if_the_command_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only in the last of a job's lives: before a restart it was killed."""
    run = RunFolder.create(tmp_path / "run", command=["x"])
    for life in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", life)
        RankFolder.join(run.path, rank=0, world_size=1)
    manifest = run.finish("completed", exit_code=0)
    assert [(rank.restart, rank.status) for rank in manifest.ranks] == [(0, "killed"), (1, "completed")]


def test_without_a_launcher_the_run_ends_with_its_last_rank(tmp_path: Path) -> None:
    first = RankFolder.join(tmp_path / "run", rank=0, world_size=2)
    second = RankFolder.join(tmp_path / "run", rank=1, world_size=2)
    first.finish("completed")
    assert read_manifest(first.path).status == "running"
    second.finish("interrupted", error="KeyboardInterrupt")
    assert read_manifest(first.path).status == "interrupted"


def test_a_restarted_rank_keeps_its_first_lifes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path / "run", command=["x"])
    first = RankFolder.join(run.path, rank=0, world_size=1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    second = RankFolder.join(run.path, rank=0, world_size=1)
    assert first.file("rank0.json.gz") == run.path / "rank0.json.gz"
    assert second.file("rank0.json.gz") == run.path / "restart1/rank0.json.gz"
    assert [(rank.rank, rank.restart) for rank in read_manifest(run.path).ranks] == [(0, 0), (0, 1)]


def test_nobodys_files_are_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        RunFolder.create(tmp_path, command=["x"])
    RankFolder.join(tmp_path / "run", rank=0, world_size=1)
    with pytest.raises(UsageError, match="already holds a recording of rank 0"):
        RankFolder.join(tmp_path / "run", rank=0, world_size=1)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        read_manifest(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't write the run folder"):
        RankFolder.join(tmp_path / "file" / "run", rank=0, world_size=1)


def test_a_part_cut_off_by_a_kill_hides_no_other(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", command=["x"])
    RankFolder.join(run.path, rank=0, world_size=2)
    (run.path / "manifest.d/rank1.json").touch()  # joined, and killed before its first word
    assert [rank.rank for rank in read_manifest(run.path).ranks] == [0]


def test_on_a_full_disk_the_last_words_still_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the run and its ranks ended, several times over, though no new block can be had for any file."""
    run = RunFolder.create(tmp_path / "run", command=["x"])
    rank = RankFolder.join(run.path, rank=0, world_size=1)

    def write(path: Path, _: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    rank.problem("disk_full", "no space left", severity="info")
    rank.note(steps=7)
    rank.finish("failed", error="OSError: no space left")
    run.problem("disk_full", "no space left")
    told = run.finish("failed", exit_code=1)
    assert json.loads((run.path / "manifest.json").read_text())["exit_code"] == 1
    assert [(one.rank, one.status, one.error) for one in told.ranks] == [(0, "failed", "OSError: no space left")]
    assert [problem.code for problem in told.problems] == ["disk_full", "disk_full"]
    assert not list(run.path.rglob("*.reserve"))


def test_a_full_disk_is_told_once_where_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = RankFolder.join(tmp_path / "run", rank=0, world_size=1)
    rank.note(much="x" * 20_000)  # as large as its reserve, and more

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    for number in range(3):
        rank.note(more="x" * 10_000, number=number)
    assert capsys.readouterr().err.count("No space left") == 1
