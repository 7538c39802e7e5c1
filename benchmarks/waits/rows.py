"""What is timed: an input, gpuscope's command on it, and what stands beside that."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Beside = Literal["hta", "adbc", "one rank", "analyze", "reading"]

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp_healthy"
TRACE = Path(os.environ.get("GPUSCOPE_TRACE", SAMPLE / "rank0.json.gz"))
"""The Kineto trace that is repeated. HTA's analyses need a GPU's; ours is a CPU's."""
GPUSCOPE = (sys.executable, "-c", "import sys; from gpuscope.cli import main; sys.exit(main())")
WHOLE = ("--no-store", "--no-cache")
RANKS, MANY = 8, 64


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    aim: str
    make: Callable[[Path], Path]
    """Writes the input into a folder, unless it is there."""
    words: Callable[[Path], Sequence[str]]
    """Of gpuscope's command on it."""
    beside: Beside | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def _kineto(size: int, suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from benchmarks.waits.enlarge import enlarge
        from benchmarks.waits.template import read_template

        path = folder / f"kineto-{size}{suffix}"
        if not path.exists():
            enlarge(read_template(TRACE), path, size * 1_000_000)
        return path

    return make


def _nsys(kernels: int, ranges: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from benchmarks.waits.nsys_export import synthetic_export

        path = folder / f"nsys-{kernels}.sqlite"
        return path if path.exists() else synthetic_export(path, kernels, ranges)

    return make


def _packets(folder: Path) -> Path:
    from benchmarks.waits.packets import synthetic_packets

    path = folder / "packets.pftrace"
    return path if path.exists() else synthetic_packets(path, 1_200_000)


def _ranks(folder: Path) -> Path:
    """Eight ranks of 60 MB, gzipped."""
    from benchmarks.ranks import copies

    path = folder / "ranks"
    if not path.exists():
        path.mkdir()
        copies(SAMPLE / "rank0.json.gz", path, RANKS, 60_000_000)
        for file in path.glob("*.json"):
            _gzip(file)
    return path


def _many(folder: Path) -> Path:
    """More ranks, each the sample's."""
    from benchmarks.ranks import copies

    path = folder / "many"
    if not path.exists():
        path.mkdir()
        copies(SAMPLE / "rank0.json.gz", path, MANY, 1)
    return path


def _gzip(file: Path) -> None:
    import gzip

    with file.open("rb") as plain, gzip.open(file.with_name(f"{file.name}.gz"), "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
    file.unlink()


def _analyze(path: Path) -> Sequence[str]:
    return ("analyze", str(path), *WHOLE)


def _sample(_: Path) -> Path:
    return SAMPLE


ROWS = (
    Row("kineto", "Kineto JSON, 480 MB", "≥ 45 ×, memory ≤ 1/12", _kineto(505, ".json"), _analyze, "hta"),
    Row("gzip", "Kineto JSON, 95 MB, gzipped", "≥ 25 ×", _kineto(100, ".json.gz"), _analyze, "hta"),
    Row(
        "nsys",
        "nsys SQLite: 1 M kernels, 3 M calls, 0.5 M ranges",
        "≤ 2.2 × mere reading, ≤ 350 MB",
        _nsys(1_000_000, 500_000),
        _analyze,
        "adbc",
    ),
    Row(
        "pftrace",
        "`.pftrace`, 174 MB, its tables",
        "≥ 150 MB/s",
        _packets,
        lambda path: ("info", str(path), "--no-cache"),
    ),
    Row(
        "ranks",
        f"{RANKS} ranks of 60 MB, gzipped, two processes",
        "no slower than 8 / 1.8 × one rank",
        _ranks,
        lambda path: (*_analyze(path), "--jobs", "2"),
        "one rank",
    ),
    Row("sample", "a sample of two ranks", "CPU ≤ 0.4 s", _sample, _analyze),
    Row("version", "--version", "≤ 0.07 s", _sample, lambda _: ("--version",)),
    Row("help", "--help", "≤ 0.07 s", _sample, lambda _: ("--help",)),
    Row(
        "completion",
        "a completion in the shell",
        "≤ 0.07 s",
        _sample,
        lambda _: (),
        environment={"_GPUSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": "gpuscope an", "COMP_CWORD": "1"},
    ),
    Row(
        "dashboard",
        "Kineto JSON, 480 MB, until the dashboard is there",
        "≤ 1.5 × `analyze`",
        _kineto(505, ".json"),
        lambda path: ("dashboard", str(path), "--port", "0", "--no-cache"),
        "analyze",
    ),
    Row("what-if", f"one change at {MANY} ranks, once read", "≤ 0.1 s", _many, lambda _: (), "reading"),
    Row("tries", f"all tries of changes at {MANY} ranks", "≤ 15 % of reading", _many, lambda _: (), "reading"),
    Row(
        "second",
        "Kineto JSON, 480 MB, looked at before",
        "≤ 0.4 s",
        _kineto(505, ".json"),
        lambda path: ("analyze", str(path), "--no-store"),
    ),
    Row(
        "large nsys",
        "nsys SQLite: 10 M kernels, 30 M calls, 10 M ranges",
        "≤ 40 s, ≤ 2.5 GB",
        _nsys(10_000_000, 10_000_000),
        _analyze,
    ),
)
