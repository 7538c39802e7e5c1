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


def test_on_a_full_disk_the_last_word_still_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path / "run", command=["x"])
    reserve = run.path / "manifest.d/reserve"
    write = Path.write_bytes

    def write_if_room(path: Path, data: bytes) -> int:
        if reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_if_room)
    run.problem("disk_full", "no space left")
    assert run.finish("failed").problems[0].code == "disk_full"
