"""The report on one screen: what it says, in what order, and that it fits."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Literal

import pytest
from helpers.cli import call as run
from helpers.reports import change, finding
from rich.cells import cell_len
from rich.console import Console

from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.pipelines import FewMicroBatches, PipelineImbalance, SlowStage
from gpuscope.catalogue.prediction_sentences import setting_words
from gpuscope.report.terminal import first_screen
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view.first_lines import first_lines
from gpuscope.report.view.main_finding import in_order
from gpuscope.report.view.summary import summary
from gpuscope.schema.document import Report
from gpuscope.schema.provenance import PipelineGain

LINES, COLUMNS = 40, 80
NOT_TRIED: PipelineGain = {"micro_batches": 4, "predicted": None, "why_not": "a test"}  # type: ignore[typeddict-item]
SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"

INPUT_BOUND = """\
The device waits for the data loader: 31 % of every step, mean of ranks
why   most of it in _MultiProcessingDataLoaderIter.__next__
fix   DataLoader(num_workers)=4: 100.0 → 69.00 ms (69.00–80.00 ms)
sure  0.8; kernels without a launch in run/rank1.json.gz

CPU-bound: 34.5 % of the time = data loader 31.0 % + kernel launch overhead
3.5 %

2 files (kineto) · 2 ranks · NVIDIA A100-SXM4-80GB · 10 steps, median 100.0 ms ·
steps from ProfilerStep

██ compute   ▒▒ exposed communication   ▚▚ exposed memory   ·· idle
rank                                    compute  comm.  memory    idle  own step
0     ███████████████████▒▒···········   58.0 %  8.0 %     0 %  34.0 %  100.0 ms
1     ███████████████████▒▒···········   58.0 %  7.0 %     0 %  35.0 %  100.0 ms

Non-compute, rank mean  part   per step   share
data loader             idle   31.00 ms  31.0 %  _MultiProcessingDa…ter.__next__
link bandwidth          comm.  7.500 ms   7.5 %
kernel launch overhead  idle   3.500 ms   3.5 %

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
        ["63", "most", "compute,", "late"],
    ]
    assert "61 other ranks between these: --full" in lines


def test_a_late_rank_is_named_and_has_its_bar(many_ranks: Report) -> None:
    many_ranks["findings"] = [
        {
            "code": "straggler",
            "severity": "high",
            "message": "",
            "ranks": [7],
            "cost_ns_per_step": 92_120_000,
            "cost_ns": None,
            "share_frac": 0.369,
            "evidence": [],
            "per_step_ns": 92_120_000,
        }
    ]
    many_ranks["verdict"]["cause"] = "straggler"
    assert first_lines(many_ranks).what == "Rank 7 is late, the others wait for it: 37 % of every step, mean of ranks"
    assert [line.label for line in summary(many_ranks).ranks if line.late] == ["63", "7"]


def test_top_asks_for_more_or_less(input_bound: Report) -> None:
    assert "2 smaller causes: --full" in written(input_bound, top=1).splitlines()


def test_what_lowers_the_confidence_is_told_and_no_more_than_three_things(input_bound: Report) -> None:
    input_bound["verdict"]["limits"] = ["one", "two", "three", "four"]
    assert first_lines(input_bound).sure == "0.8; one"
    assert summary(input_bound).limits == "two; three; four; and 1 more"


def test_what_speaks_for_it_where_nothing_limits_it(input_bound: Report) -> None:
    input_bound["verdict"]["limits"] = []
    input_bound["problems"] = []
    assert first_lines(input_bound).sure == "0.8; the 10 steps agree"
    assert input_bound["step_time"] is not None
    input_bound["step_time"]["p90_ns"] = 2 * input_bound["step_time"]["median_ns"]
    input_bound["verdict"]["confidence"] = 0.4
    assert first_lines(input_bound).sure == "0.4 (low)"


def test_without_a_verdict_it_says_what_to_record(abstained: Report) -> None:
    lines = first_lines(abstained)
    assert lines.what == "No verdict"
    assert lines.why.startswith("the trace holds no device events, so nothing can be said about the GPU. Record with")
    abstained["verdict"] |= {"abstain_reason": "no_device_events", "record": "record the device too"}
    lines = first_lines(abstained)
    assert lines.what == "No verdict: no device events are recorded"
    assert lines.below() == [("next", "record the device too")]


def test_an_older_report_is_still_shown(input_bound: Report) -> None:
    del input_bound["verdict"]["limits"]  # type: ignore[misc]
    assert "sure  0.8; kernels without a launch" in written(input_bound)


def test_on_a_sample_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """The late rank and the remedy of a job whose fault is known; `--quiet` is that sentence alone."""
    told = json.loads((SAMPLES / "ddp_slow_rank" / "manifest.json").read_text())["faults"]
    assert told
    shown = run(capsys, "analyze", SAMPLES / "ddp_slow_rank", "--no-store").stdout
    assert len(shown.splitlines()) <= LINES
    what, why, *rest = shown.splitlines()
    assert what == "Rank 1 is late, rank 0 waits for it: 26 % of every step, mean of ranks"
    assert why.endswith("ms per step more: 24 aten::mm that only it runs")
    fix = " ".join("".join(rest[:2]).split())
    assert fix.startswith("fix remove the aten::mm that only rank 1 runs before forward, or share it: ")
    quiet = run(capsys, "analyze", SAMPLES / "ddp_slow_rank", "--no-store", "--quiet")
    assert quiet.stdout.startswith(f"{what}. Fix: remove the aten::mm that only rank 1 runs before forward")
    assert (quiet.stdout.count("\n"), quiet.stderr) == (1, "")


def test_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The largest places of the verdict, each at its place, and what would tip it."""
    shown = run(capsys, "analyze", SAMPLES / "ddp_slow_rank", "--no-store", "--why").stdout
    rows = [line for line in shown.splitlines() if " ms  gloo:all_reduce: waits" in line]
    assert len(rows) == 3
    assert all(row.startswith("0  ") for row in rows)  # rank 0 waits
    tipping = "Else it would be compute-bound if communication stalls took less than 10 % (now 28.6 %)"
    assert tipping in " ".join(shown.split())
    more = run(capsys, "analyze", SAMPLES / "ddp_slow_rank", "--no-store", "--why", "--top", "5").stdout
    assert more.count("gloo:all_reduce: waits") == 5


# ---- which cause, which change ----


def bubble(report: Report) -> Report:
    """A pipeline with few micro-batches, and a split that is uneven by less."""
    report["verdict"] |= {"bound_by": "communication", "cause": "pipeline_bubble"}  # type: ignore[typeddict-item]
    report["findings"] = [
        finding("pipeline_bubble", 0.1),
        made(PipelineImbalance(1, 2, 9, 5, 4, NOT_TRIED, 1, 1, told_apart=True), ranks=[1], share=0.05),
        made(FewMicroBatches(2, 2, "1f1b", 10_000_000, 0.3, NOT_TRIED), ranks=[0, 1], share=0.1),
    ]
    return report


def test_the_change_that_answers_the_reason_comes_first(input_bound: Report) -> None:
    """Though an even split gains more: what is said to be wrong, and what to do, belong together."""
    report = bubble(input_bound)
    changes = [
        change("even_stages", "pipeline_imbalance", 80),
        change("micro_batches", "few_micro_batches", 90),
        change("compile", "unfused_kernels", 70),
    ]
    report["suggestions"] = in_order(report, changes)
    lines = first_lines(report)
    assert lines.what == "Pipeline stages wait for their neighbours: 10 % of every step, mean of ranks"
    assert lines.why == "2 micro-batches on 2 stages (1F1B)"
    assert (lines.label, lines.fix) == ("fix", "micro_batches=1: 100.0 → 90.00 ms (90.00–90.00 ms)")
    assert [line.setting for line in summary(report).changes] == ["even_stages=1", "compile=1"]


def test_what_answers_something_else_is_no_fix(input_bound: Report) -> None:
    report = bubble(input_bound)
    report["suggestions"] = [change("compile", "unfused_kernels", 70)]
    assert first_lines(report).fix == "none known; elsewhere compile=1: 100.0 → 70.00 ms (70.00–70.00 ms)"
    report["suggestions"] = [change("collect", "gc", 70)]
    assert first_lines(report).fix.startswith("none known; against Python garbage collection collect=1: ")


def test_an_uncertain_answer_is_to_be_tried(input_bound: Report) -> None:
    report = bubble(input_bound)
    report["suggestions"] = [
        change("compile", "unfused_kernels", 70),
        change("micro_batches", "few_micro_batches", 90, certain=False),
    ]
    assert (first_lines(report).label, first_lines(report).fix[:13]) == ("try", "micro_batches")
    assert [line.setting for line in summary(report).changes] == ["compile=1"]
    for code, label in (("micro_batches", "try"), ("nccl_log", "next")):  # a recording gains nothing by itself
        report["suggestions"], made = [], change(code, "few_micro_batches", 90)
        report["advice"]["unpredicted"] = [{**made, "why_not": ""}]  # type: ignore[typeddict-item]
        assert (first_lines(report).label, "(gain" in first_lines(report).fix) == (label, label == "try")


def test_of_operations_alone_the_slow_stage_is_named_and_not_the_schedule(input_bound: Report) -> None:
    """A job of timers: its verdict is its stragglers', and the bubble that they make is larger than they are."""
    report = input_bound
    report["verdict"] |= {"bound_by": "communication", "cause": "straggler"}  # type: ignore[typeddict-item]
    report["ranks"], report["steps"], report["step_time"] = [], [], None
    report["findings"] = [
        made(FewMicroBatches(12, 4, "1f1b", 10_000_000, 0.3, NOT_TRIED), ranks=range(4), share=0.3),
        made(SlowStage(3, 4, 2, 0.9, True, None), ranks=(), share=0.2),
    ]
    changes = [change("pipeline_schedule", "few_micro_batches", 80), change("even_stages", "slow_stage", 85)]
    report["suggestions"] = in_order(report, changes)
    lines = first_lines(report)
    assert lines.what == "Pipeline stage 3 (the last) is slow: 20 % of the window"
    assert lines.fix == "even_stages=1: 100.0 → 85.00 ms (85.00–85.00 ms)"
    report["slowdown"] = {
        "total": 1.25,
        "provenance": "measured",
        "by_operation": {},
        "by_rank": {"0": 1.005, "7": 1.2},
        "by_stage": {"0": 1.0, "3": 1.25},
    }
    shown = written(report)
    assert "Communication-bound: stragglers make the step 1.250 times as long (34.5 % of it)\n" in shown
    assert "What each rank's slowness alone costs of the step: rank 7 16.7 %\n" in shown


def test_compute_is_shared_out_by_kernels_of_judged_steps(healthy: Report) -> None:
    """Copies are no compute, and set-up is no step."""
    healthy["compute"] = [
        {
            "rank": 0,
            "device": 0,
            "device_name": None,
            "generation": None,
            "steps": 2,
            "window_ns": 1,
            "reducible": [],
            "why": "",
            "parts": [
                {"category": "gemm", "dur_ns": 75, "known_ns": 0, "floor_ns": 0},
                {"category": "elementwise", "dur_ns": 25, "known_ns": 0, "floor_ns": 0},
            ],
        }
    ]
    assert summary(healthy).compute.startswith("gemm 75.0 %, elementwise 25.0 %")
    del healthy["compute"]
    assert "memory" not in summary(healthy).compute


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        ("env", "PYTORCH_NO_HIP_MEMORY_CACHING", "unset", "unset PYTORCH_NO_HIP_MEMORY_CACHING"),
        ("env", "NCCL_ALGO", "Ring", "NCCL_ALGO=Ring"),
        ("python", "torch.set_float32_matmul_precision", '"high"', 'torch.set_float32_matmul_precision("high")'),
        ("python", "DataLoader.num_workers", "4", "DataLoader(num_workers=4)"),
        ("python", "torch.compile.mode", '"reduce-overhead"', 'torch.compile(mode="reduce-overhead")'),
        ("python", "torch.backends.cudnn.benchmark", "False", "torch.backends.cudnn.benchmark=False"),
        ("python", "torch.distributed.pipelining", "Schedule1F1B", "torch.distributed.pipelining.Schedule1F1B"),
        ("python", "fully_shard", "one call per 4 layers", "fully_shard: one call per 4 layers"),
        ("config", "torchrun --numa-binding", "node", "torchrun --numa-binding node"),
    ],
)
def test_a_setting_as_it_is_typed(kind: Literal["env", "python", "config"], name: str, value: str, words: str) -> None:
    one = change("x", "y", 1)
    one["setting"] = {"kind": kind, "name": name, "value": value}
    assert setting_words(one) == words


def test_a_number_keeps_its_unit_on_its_line() -> None:
    file = io.StringIO()
    Writer(Console(file=file, width=22, _environ={}, force_terminal=False)).line("each step loses 120.7 ms, or 18.3 %")
    assert file.getvalue() == "each step loses\n120.7 ms, or 18.3 %\n"
