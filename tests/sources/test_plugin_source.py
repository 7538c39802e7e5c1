"""A source of another distribution: found by entry point, and its files in folders by the suffixes it declares."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope import plugins
from gpuscope.errors import InputError, UsageError
from gpuscope.sources.opening import inputs, open_trace
from gpuscope.sources.source import Files, ReadOptions, Role, all_sources, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import Kind

US = 1_000
Install = Callable[[object], None]


class Lines:
    """A timeline: a kernel a line, times in microseconds."""

    name = "lines"
    files = Files(Role.TIMELINE, (".kernels",), unmistakable=(".kernels",))

    def sniff(self, path: Path, head: bytes) -> bool:
        return path.is_file() and head.startswith(b'{"kernel"')

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        return rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:  # noqa: ARG002
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rank, start = rank_in_name(path) or 0, np.array([row["start"] for row in rows]) * US
        source = builder.source(path, self.name, "1", len(rows), {})
        builder.add("ranks", 1, {"rank": rank, "device": 0, "source": source})
        builder.add(
            "device_events",
            len(rows),
            {
                "rank": rank,
                "device": 0,
                "stream": 7,
                "start": start,
                "kind": Kind.COMPUTE,
                "end": start + np.array([row["dur"] for row in rows]) * US,
                "name": builder.names.codes([row["kernel"] for row in rows]),
            },
        )


class Notes(Lines):
    """A record: read with the timelines of a folder."""

    name = "notes"
    files = Files(Role.RECORD, (".note",), alone="notes say nothing of time")

    def sniff(self, path: Path, head: bytes) -> bool:
        return path.is_file() and head.startswith(b"note")

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:  # noqa: ARG002
        if b"broken" in path.read_bytes():
            raise InputError(f"{path}: is broken")
        builder.source(path, self.name, "", 0, {})


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions that each bring one source."""
    entries: list[tuple[str, str, str]] = []
    real = plugins.installed()

    def add(source: object) -> None:
        module: Any = ModuleType(f"distribution{len(entries)}")
        module.SOURCE = source
        monkeypatch.setitem(sys.modules, module.__name__, module)
        entries.append((plugins.SOURCES, module.__name__, f"{module.__name__}:SOURCE"))
        forget()

    def forget() -> None:
        plugins.plugins.cache_clear()
        all_sources.cache_clear()

    monkeypatch.setattr(plugins, "installed", lambda: (*real, *entries))
    yield add
    forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks under `run/`, beside a note and what is nobody's."""
    for rank in (0, 1):
        line = {"kernel": "gemm", "start": 10 * rank, "dur": 5}
        (tmp_path / f"rank{rank}.kernels").write_text(json.dumps(line) + "\n")
    (tmp_path / "lab.note").write_text("note: the fan is loud")
    (tmp_path / "lab.txt").write_text("note: of another name")
    (tmp_path / "README").write_text("not a trace")
    return tmp_path


def test_its_files_are_found_in_a_folder(install: Install, folder: Path) -> None:
    install(Lines())
    assert [(item.path.name, item.rank) for item in inputs([folder])] == [("rank0.kernels", 0), ("rank1.kernels", 1)]
    trace = open_trace(folder)
    assert trace.ranks == [0, 1]
    assert trace.tables["device_events"]["end"].tolist() == [5_000, 15_000]


def test_without_it_they_are_not(folder: Path) -> None:
    with pytest.raises(InputError, match="no trace in this folder"):
        inputs([folder])


def test_the_hint_names_its_suffix(install: Install, tmp_path: Path) -> None:
    install(Lines())
    with pytest.raises(InputError, match=r"\*\.nsys-rep, .*\*\.kernels"):
        inputs([tmp_path])


def test_an_unmistakable_name_is_an_error_where_nothing_reads_it(install: Install, folder: Path) -> None:
    install(Lines())
    (folder / "rank2.kernels").write_bytes(b"\x00\x01")
    with pytest.raises(InputError, match=r"rank2\.kernels"):
        inputs([folder])


def test_its_records_are_read_beside_the_timelines(install: Install, folder: Path) -> None:
    """`lab.note` by its suffix; `lab.txt` too, since such files may be records; a broken one is a problem."""
    install(Lines())
    install(Notes())
    (folder / "old.note").write_text("note: broken")
    (folder / "memo").write_text("note: of a name that no record has")
    found = {item.path.name: item.beside for item in inputs([folder])}
    assert found == {
        "rank0.kernels": False,
        "rank1.kernels": False,
        "lab.note": True,
        "lab.txt": True,
        "old.note": True,
    }
    assert [problem.code for problem in open_trace(folder).problems] == ["record_unreadable"]


def test_records_alone_are_found_by_content(install: Install, tmp_path: Path) -> None:
    install(Notes())
    (tmp_path / "memo").write_text("note: of any name")
    assert [(item.path.name, item.beside) for item in inputs([tmp_path])] == [("memo", False)]


def test_two_timelines_of_a_rank_contradict_each_other(install: Install, folder: Path) -> None:
    install(Lines())
    (folder / "again").mkdir()
    (folder / "again" / "rank1.kernels").write_text((folder / "rank1.kernels").read_text())
    with pytest.raises(UsageError, match="both hold rank 1"):
        open_trace(folder)


def test_what_is_no_source_is_named(install: Install, tmp_path: Path) -> None:
    install(SimpleNamespace(name="half", sniff=lambda *_: False))
    with pytest.raises(UsageError, match=r"distribution0.*lacks files, peek_rank, read"):
        inputs([tmp_path])


def test_every_source_of_gpuscope_declares_its_files() -> None:
    sources = {source.name: source.files for source in all_sources()}
    assert sources["kineto"].role is sources["nsys report"].role is Role.TIMELINE
    assert all(files.suffixes for files in sources.values() if files.role is not Role.HANG_RECORD)
    assert all(set(files.unmistakable) <= set(files.suffixes) for files in sources.values())
    assert all(set(files.suffixes) <= set(files.forms) for files in sources.values() if files.forms)
    assert all(bool(files.alone) is (files.role is not Role.TIMELINE) for files in sources.values())
