"""The report on one screen: what it says, in what order, and that it fits."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from helpers.cli import call as run
from rich.cells import cell_len
from rich.console import Console

from gpuscope.report.schema.document import Report
from gpuscope.report.terminal import first_screen
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view.summary import sentence, summary

LINES, COLUMNS = 40, 80
SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"

INPUT_BOUND = """\
The device waits for the data loader (enumerate(DataLoader)#_M…erIter.__next__):
31.00 ms (31.0 %) of each 100.0 ms step. Fix: load batches in worker processes;
predicted 100.0 → 69.00 ms (-31.0 %).
CPU-bound: 34.5 % of the step, confidence 0.8

2 files (kineto) · 2 ranks · NVIDIA A100-SXM4-80GB · window 1.000 s · 10 steps
of 100.0 ms (from ProfilerStep)

██ compute   ▒▒ exposed communication   ▚▚ exposed memory   ·· idle
rank                                    compute  comm.  memory    idle      step
0     ███████████████████▒▒···········   58.0 %  8.0 %     0 %  34.0 %  100.0 ms
1     ███████████████████▒▒···········   58.0 %  7.0 %     0 %  35.0 %  100.0 ms

Not compute, mean over ranks  per step   share
data loader                   31.00 ms  31.0 %  enumerate(DataLoade…ter.__next__
link bandwidth                7.500 ms   7.5 %
kernel launch overhead        3.500 ms   3.5 %

What to change                 step     gain      90 % range
DataLoader(num_workers)=4  69.00 ms  -31.0 %  69.00–80.00 ms

Limits  kernels without a launch in run/rank1.json.gz

More: --full. In a browser: --html FILE, or gpuscope dashboard PATH.
"""


def written(report: Report, width: int = COLUMNS, encoding: str = "utf-8", top: int = 3) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    first_screen.render(report, Writer(Console(file=file, width=width, _environ={}, force_terminal=False)), top)
    file.flush()
    return raw.getvalue().decode(encoding)


def test_one_screen(input_bound: Report) -> None:
    assert written(input_bound) == INPUT_BOUND


@pytest.mark.parametrize("example", ["healthy", "input_bound", "abstained", "many_ranks", "hostile"])
@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_fits(example: str, width: int, encoding: str, request: pytest.FixtureRequest) -> None:
    lines = written(request.getfixturevalue(example), width, encoding).splitlines()
    assert len(lines) <= LINES
    assert max(map(cell_len, lines)) <= width


def test_ranks_are_folded_to_the_least_the_median_and_the_most(many_ranks: Report) -> None:
    lines = written(many_ranks).splitlines()
    assert [line.split("█")[0].split() for line in lines if "█▒" in line] == [
        ["0", "least", "compute"],
        ["32", "median"],
        ["63", "most"],
    ]
    assert "61 other ranks between these: --full" in lines


def test_a_late_rank_is_named_and_has_its_bar(many_ranks: Report) -> None:
    many_ranks["findings"] = [
        {
            "code": "straggler", "severity": "high", "message": "", "ranks": [7], "cost_ns_per_step": 92_120_000,
            "cost_ns": None, "share_frac": 0.369, "evidence": [],
        }
    ]  # fmt: skip
    many_ranks["verdict"]["cause"] = "straggler"
    assert sentence(many_ranks).startswith(
        "Rank 7 is late, and the others wait in collectives: 92.12 ms (36.9 %) of each 250.0 ms step."
    )
    assert [line.label for line in summary(many_ranks).ranks if line.note == "named above"] == ["7"]


def test_top_asks_for_more_or_less(input_bound: Report) -> None:
    assert "2 smaller causes: --full" in written(input_bound, top=1).splitlines()


def test_what_lowers_the_confidence_is_told_and_no_more_than_three_things(input_bound: Report) -> None:
    input_bound["verdict"]["limits"] = ["one", "two", "three", "four"]
    assert summary(input_bound).limits == "one; two; three; and 2 more"


def test_without_a_verdict_it_says_what_to_record(abstained: Report) -> None:
    assert sentence(abstained) == (
        "No verdict from this trace: the trace holds no device events, so nothing can be said about the GPU. "
        "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
    )


def test_an_older_report_is_still_shown(input_bound: Report) -> None:
    del input_bound["verdict"]["limits"]  # type: ignore[misc]
    assert "Limits  kernels without a launch" in written(input_bound)


def test_on_a_sample_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """The late rank and the remedy of a job whose fault is known; `--quiet` is that sentence alone."""
    told = json.loads((SAMPLES / "ddp_slow_rank" / "manifest.json").read_text())["faults"]
    assert told
    shown = run(capsys, "analyze", SAMPLES / "ddp_slow_rank", "--no-store").stdout
    assert len(shown.splitlines()) <= LINES
    first = " ".join(shown.split("Communication-bound")[0].split())
    assert first.startswith("Rank 1 is late, and the others wait in collectives: ")
    assert "give every rank the same amount of work (rank 1 has more); predicted 119.6 → " in first
    quiet = run(capsys, "analyze", SAMPLES / "ddp_slow_rank", "--no-store", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (first + "\n", "")
