"""What is kept for a second look: the same report, and nothing that is damaged, foreign or of another content."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import click
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.kineto import call, kernel, note, write

import gpuscope
from gpuscope import cache as cache_folder
from gpuscope.plugins import COMMANDS, load
from gpuscope.trace.trace import Trace

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are those of POSIX")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own, in which files of any size are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_folder, "WORTH", 1)
    monkeypatch.delenv("GPUSCOPE_NO_CACHE", raising=False)
    return cache_folder.folder()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = [note(i * 1000, 1000, f"ProfilerStep#{i}") for i in range(4)]
    for i in range(40):
        events += [call(i * 100, 5, i + 1), kernel(i * 100 + 20, 50, i + 1)]
    path = tmp_path / "rank0.json"
    write(path, *events)
    return path


def kept_files() -> list[Path]:
    return [entry.path for entry in cache_folder.entries()]


def _written(size: int) -> Callable[[IO[bytes]], None]:
    def write(file: IO[bytes]) -> None:
        file.write(b"x" * size)

    return write


def look(path: Path, **options: object) -> dict[str, object]:
    """The report of one look, once what it keeps is kept."""
    waits = []
    keep = cache_folder.keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_folder, "keep", lambda key, made: waits.append(keep(key, made)))
        report = gpuscope.analyze(path, cache=True, **options).report  # type: ignore[arg-type]
        for wait in waits:
            wait()
    return dict(report)


def test_a_second_look_reads_nothing_and_reports_the_same(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = look(trace)
    assert first == gpuscope.analyze(trace).report
    assert len(kept_files()) == 2  # its columns, and what became of them
    monkeypatch.setattr("gpuscope.sources.opening._read", None)
    assert look(trace) == first
    assert look(trace, steps=(1, 2)) != first  # other steps: from the kept columns
    monkeypatch.setattr("gpuscope.analyzers.run.file_part.reduce_trace", None)
    assert look(trace) == first


def test_a_changed_file_is_read_again(trace: Path) -> None:
    first = look(trace)
    text = trace.read_text()
    trace.write_text(text.replace('"dur": 50', '"dur": 30'))
    assert look(trace) != first
    trace.write_text(text)
    os.utime(trace, ns=(1, 1))  # the same content at another time: not worth a risk
    assert look(trace) == first
    assert len(kept_files()) == 6


def test_a_change_that_neither_size_nor_time_nor_samples_show_is_one(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(4 << 20))
    before, key = path.stat(), cache_folder.content_key(path)
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(b"1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # of a coarse clock
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert cache_folder.content_key(path) != key


def test_other_code_is_another_program(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look(trace)
    monkeypatch.setattr(cache_folder, "program", lambda: "another")
    look(trace)
    assert len(kept_files()) == 4


@pytest.mark.parametrize("damage", ["half", "zeros", "longer", "pickle", "empty"])
def test_a_damaged_file_is_removed_and_made_again(damage: str, trace: Path) -> None:
    first = look(trace)
    for path in kept_files():
        data = bytearray(path.read_bytes())
        if damage == "pickle":
            at = cache_folder._HEAD.unpack_from(data)[3] * 8 + cache_folder._HEAD.size
            data[at : at + 40] = b"\x00" * 40
        changed = {"half": data[: len(data) // 2], "zeros": bytes(len(data)), "longer": data + b"x", "empty": b""}
        path.write_bytes(changed.get(damage, data))
    assert look(trace) == first
    assert all(isinstance(cache_folder.read(path), object) for path in kept_files())


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_to_is_not_used(mode: int, trace: Path, cache: Path) -> None:
    first = look(trace)
    cache.chmod(mode)
    assert cache_folder.load(kept_files()[0].stem) is None
    assert not cache_folder.store("key", _written(1))
    assert look(trace) == first


def test_a_file_that_others_can_write_to_or_a_link_is_not_used(trace: Path, tmp_path: Path) -> None:
    look(trace)
    one, other = kept_files()
    one.chmod(0o666)
    moved = tmp_path / "elsewhere"
    other.rename(moved)
    other.symlink_to(moved)
    assert cache_folder.load(one.stem) is None
    assert cache_folder.load(other.stem) is None


def test_a_full_disk_keeps_nothing_and_harms_nothing(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    expected = gpuscope.analyze(trace).report
    monkeypatch.setattr("gpuscope.cache.os.replace", full)
    assert look(trace) == expected
    assert kept_files() == []


def test_what_was_not_used_for_longest_goes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCOPE_CACHE_GB", "0.00001")  # 10 kB
    for number in range(4):
        assert cache_folder.store(f"k{number}", _written(3000))
        os.utime(cache / f"k{number}.kept", (number + 10, number + 10))
    assert sorted(path.stem for path in kept_files()) == ["k1", "k2", "k3"]
    assert not cache_folder.store("large", _written(6000))
    assert sorted(path.stem for path in kept_files()) == ["k1", "k2", "k3"]


def test_objects_come_back_as_they_were(tmp_path: Path) -> None:
    kept = {"a": np.arange(1000), "b": [np.zeros((3, 4)), "text", None], "c": np.empty(0, np.int8)}
    path = tmp_path / "x"
    with path.open("wb") as file:
        cache_folder.prepared(kept)(file)
    found = cache_folder.read(path)
    assert found["a"].tolist() == list(range(1000))
    assert found["b"][0].shape == (3, 4)
    assert found["c"].dtype == np.int8
    found["a"][0] = 7  # the process's own
    assert cache_folder.read(path)["a"][0] == 0


def test_the_command_line_keeps_unless_told_not_to(trace: Path) -> None:
    run = CliRunner().invoke
    expected = run(_command("analyze"), ["--no-cache", "--json", "--no-store", str(trace)])
    assert kept_files() == []
    for _ in range(2):
        done = run(_command("analyze"), ["--json", "--no-store", str(trace)])
        assert (done.exit_code, done.stdout) == (0, expected.stdout)
    _settled()
    assert len(kept_files()) == 3  # its columns, what became of them, and the report
    shown = run(_command("cache"), [])
    assert "3 files" in shown.stdout
    assert run(_command("cache"), ["--clear"]).stdout.startswith("Removed 3 files")
    assert kept_files() == []


def _command(name: str) -> click.Command:
    command: click.Command = load(COMMANDS, name)
    return command


def _settled() -> None:
    for thread in threading.enumerate():
        if thread.name == "gpuscope-keep":
            thread.join()


def test_a_trace_is_kept_with_its_names_and_sources(trace: Path) -> None:
    own = gpuscope.open_trace(trace, cache=True)
    _settled()
    [kept] = kept_files()
    found = cache_folder.read(kept)
    assert isinstance(found, Trace)
    assert found.names.names == own.names.names
    assert found.names.matching(lambda name: name == "gemm").sum() == 1
    assert found.sources == own.sources
    found.check()
