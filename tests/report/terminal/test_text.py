"""The terminal report, character by character."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpuscope.catalogue.straggler_sentences import CAUSED_WAIT, SLOWDOWN
from gpuscope.report.terminal import report_text
from gpuscope.report.terminal.screen import apportion
from gpuscope.schema.document import Report

HEALTHY = """\
Compute-bound: kernels run 95 % of every step
fix   no change tried is predicted to help
sure  0.9; the 5 steps agree

Compute-bound: 95.0 % of the time

run/rank0.json.gz (kineto) · 1 rank · NVIDIA A100-SXM4-80GB · 5 steps, median
100.0 ms · steps from ProfilerStep

██ compute   ▒▒ exposed communication   ▚▚ exposed memory   ·· idle
rank                                     compute  comm.  memory   idle      step
0     ████████████████████████████████·   95.0 %    0 %   1.0 %  4.0 %  100.0 ms

Non-compute time by cause
class   cause                      per step  share  affected ranks
CPU     kernel launch overhead     4.000 ms  4.0 %  0
memory  host–device copies (copy)  1.000 ms  1.0 %  0

Longest kernels
 share      time  count      mean         rate  kernel
62.5 %  300.0 ms    500  600.0 µs  210 TFLOP/s  ampere_fp16_s16816…ges_32x5_tn
 1.0 %  5.000 ms      5  1.000 ms            -  Memcpy HtoD (Pinned -> Device)
"""


def written(report: Report, width: int = 80, encoding: str = "utf-8", colour: bool = False) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    terminal = {"force_terminal": True, "color_system": "truecolor"} if colour else {"force_terminal": False}
    report_text.render(report, Console(file=file, width=width, _environ={}, **terminal))  # type: ignore[arg-type]
    file.flush()
    return raw.getvalue().decode(encoding)


def test_healthy(healthy: Report) -> None:
    assert written(healthy) == HEALTHY


def test_evidence_stands_relative_to_the_window(input_bound: Report) -> None:
    shown = written(input_bound, 120)
    lines = [line.strip() for line in shown.splitlines()]
    at = lines.index(
        "rank 0 at +160.000 ms for 31.00 ms: enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    )
    assert lines[at + 1] == "step 1"
    assert " ns" not in shown
    assert "and 3 more places (--html, --json)" in lines


def test_suggestions_collectives_and_doubts(input_bound: Report) -> None:
    lines = written(input_bound, 120).splitlines()
    assert "  gain    step 100.0 ms → 69.00 ms (69.00 ms to 80.00 ms); the step without waits for input" in lines
    assert "all_reduce  0 (default_pg)     40  1.049 GB  20.00 ms  190.0 ms  5.519 GB/s" in lines
    assert lines[-4:] == [
        "What is uncertain",
        "clocks: times of different ranks are comparable to within 12.40 µs.",
        "data loss: kernels without a launch in run/rank1.json.gz (12 times)",
        "skipped: flops: no shapes recorded: use record_shapes=True",
    ]


def test_many_ranks_are_folded_around_extremes_and_median(many_ranks: Report) -> None:
    lines = written(many_ranks).splitlines()
    drawn = [line.split()[0] for line in lines if re.match(r"\d+ +[█▒]+ ", line)]
    assert drawn == ["0", "1", "2", "3", "32", "61", "62", "63"]
    assert lines[lines.index("and the 3 with the most.") - 1].startswith("56 of 64 ranks are folded")


@pytest.mark.parametrize("example", ["healthy", "input_bound", "abstained", "many_ranks", "hostile"])
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii", "cp437"])
def test_fits_and_shows(example: str, width: int, encoding: str, request: pytest.FixtureRequest) -> None:
    shown = written(request.getfixturevalue(example), width, encoding)
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", shown)
    assert not re.search(r" $", shown, re.MULTILINE)


def test_colour_only_adds_styles(input_bound: Report) -> None:
    coloured = written(input_bound, colour=True)
    assert "\x1b[38;2;0;114;178m█" in coloured  # compute, #0072B2
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == written(input_bound)


def test_hostile_names_are_text_even_on_a_colour_terminal(hostile: Report) -> None:
    coloured = written(hostile, colour=True)
    assert "[bold red]" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == written(hostile)


def test_no_color_leaves_no_colour(input_bound: Report) -> None:
    file = io.StringIO()
    report_text.render(input_bound, Console(file=file, width=80, force_terminal=True, _environ={"NO_COLOR": "1"}))
    assert not re.search(r"\x1b\[[\d;]*3[0-8]", file.getvalue())


def test_ascii_has_its_own_fills(input_bound: Report) -> None:
    shown = written(input_bound, encoding="ascii")
    assert re.search(r"^0 +#+=+\.+ +58\.0 %", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("values", "cells", "shared"),
    [([1, 1, 1], 10, [4, 3, 3]), ([0, 0], 10, [0, 0]), ([99, 1], 10, [10, 0]), ([2**62, 2**62], 3, [2, 1])],
)
def test_apportion_adds_up(values: list[int], cells: int, shared: list[int]) -> None:
    assert apportion(values, cells) == shared


def test_a_class_without_steps_is_a_share_of_the_window(input_bound: Report) -> None:
    for entry in input_bound["ranks"]:
        entry["steps"] = 0
    for straggler in input_bound["stragglers"]:
        straggler["caused_wait_ns_per_step"] = straggler["per_step_ns"] = None
    input_bound["step_time"] = None
    lines = written(input_bound).splitlines()
    table = [line.split("  ") for line in lines]
    assert [cell.strip() for cell in table[lines.index("Non-compute time by cause") + 1] if cell] == [
        "class",
        "cause",
        "in all",
        "share",
        "affected ranks",
    ]
    assert ["CPU", "data loader (input)", "620.0 ms", "31.0 %", "all"] in [
        [cell.strip() for cell in row if cell] for row in table
    ]
    assert any(line.startswith("HIGH input") and " per window, " in line for line in lines)


def test_wait_gain_and_slowdown_are_told_apart(input_bound: Report) -> None:
    """Where a wait or S stands, so does what it is not."""
    input_bound["slowdown"] = {"total": 1.25, "by_operation": {}, "by_rank": {}, "by_stage": {}}
    text = " ".join(written(input_bound).split())
    assert " ".join(CAUSED_WAIT.split()) in text
    assert " ".join(SLOWDOWN.split()) in text


def test_slowdown_names_the_worst_first(input_bound: Report) -> None:
    input_bound["slowdown"] = {
        "total": 1.25,
        "by_operation": {"forward": 1.1, "backward": 1.2},
        "by_rank": {"3": 1.05},
        "by_stage": {},
    }
    lines = written(input_bound).splitlines()
    at = lines.index("Slowdown by stragglers")
    assert lines[at + 1 : at + 4] == [
        "S = 1.250",
        "  by operation: backward 1.200, forward 1.100",
        "  by rank: 3 1.050",
    ]


def test_an_empty_window_no_device_and_a_cause_of_tomorrow(healthy: Report, input_bound: Report) -> None:
    (only,) = healthy["ranks"]
    healthy["ranks"] = [*input_bound["ranks"], {**only, "rank": 2, "device": None, "window_ns": 0, "steps": 0}]
    healthy["ranks"][2]["breakdown_ns"] = dict.fromkeys(only["breakdown_ns"], 0)  # type: ignore[typeddict-item]
    healthy["ranks"][0]["stall_ns"]["cpu"]["tomorrow"] = 1_000_000_000
    shown = written(healthy)
    assert re.search(r"^2 \(CPU\) +-  +-  +-  +-  +-$", shown, re.MULTILINE)
    assert re.search(r"^CPU +tomorrow +50\.00 ms +50\.0 %  0$", shown, re.MULTILINE)
