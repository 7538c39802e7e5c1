"""The profile tables on a terminal: which rank, which units, narrow and plain."""

from __future__ import annotations

from io import StringIO

import pytest
from helpers.kineto import call, copy, kernel, note, op, write
from rich.console import Console

import gpuscope
from gpuscope.report.terminal.profile_text import sections, spark
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("run")
    for rank, length in ((0, 100), (1, 150)):
        events = [
            note(0, 4_000, "## forward ##"),
            op(0, 30, "aten::linear"),
            call(1_000, 5, 90, "cudaMemcpyAsync"),
            copy(3_000, 100, 90, bytes=1_000_000),
        ]
        for i in range(12):
            events += [op(10 * i, 9), call(10 * i + 1, 5, i + 1), kernel(20 + 200 * i, length, i + 1)]
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=2)
    return gpuscope.analyze(folder).report


def printed(report: Report, width: int = 80, encoding: str = "utf-8") -> str:
    out = StringIO()
    console = Console(file=out, width=width)
    writer = Writer(console)
    writer.plain = encoding == "ascii"
    sections(report, writer)
    return out.getvalue()


def test_every_table_has_its_heading_and_the_rank_it_shows(report: Report) -> None:
    text = printed(report)
    headings = ("Longest kernels by rank (mean of a call)", "Operators (self: without those in them)", "Launches")
    of_rank = (
        "Phases",
        "Ranges and modules",
        "Longest idle gaps",
        "Streams",
        "Launch queue",
        "Copies",
        "Runtime calls",
    )
    assert [
        one for one in (*headings, *(f"{name} of rank 0 (others: --csv)" for name in of_rank)) if one not in text
    ] == []
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_fastest_and_the_slowest_rank_of_a_kernel(report: Report) -> None:
    line = next(line for line in printed(report).splitlines() if line.endswith("gemm"))
    assert line.split() == ["100.0", "µs", "0", "125.0", "µs", "150.0", "µs", "1", "gemm"]


def test_copies_by_size_are_in_readable_units(report: Report) -> None:
    [line] = [line for line in printed(report).splitlines() if line.startswith("HtoD")]
    assert " ".join(line.split()) == "HtoD 64 KiB to 1 MiB 1 1.000 MB 100.0 µs 10.00 GB/s"


def test_a_queue_over_time_is_a_line_of_blocks() -> None:
    writer = Writer(Console(file=StringIO()))
    queue = {"mean_by_bin": [0, 0, 8, 4, 1, 0, 4, 4]}
    assert spark(queue, writer) == " █▂▅"
    writer.plain = True
    assert spark(queue, writer) == " @.+"


def test_a_report_of_before_these_tables_prints_none(report: Report) -> None:
    old = {key: value for key, value in report.items() if key in ("ranks", "steps", "findings")}
    assert printed(old) == ""  # type: ignore[arg-type]
