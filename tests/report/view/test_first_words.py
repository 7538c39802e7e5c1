"""What the first screen says of its numbers: sums that add up, evidence, the order of changes, present values."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from helpers.reports import change, finding

from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.pipelines import FewMicroBatches, PipelineImbalance, SlowStage
from gpuscope.catalogue.prediction_sentences import gain_cell, setting_words
from gpuscope.report.view.first_lines import first_lines
from gpuscope.report.view.headline import context_line, verdict_words, why_it_is_so
from gpuscope.report.view.main_finding import answers, in_order, main_finding
from gpuscope.report.view.summary import summary
from gpuscope.schema.document import Report, Setting, StragglerEntry
from gpuscope.schema.provenance import PipelineGain

NOT_TRIED: PipelineGain = {"micro_batches": 4, "predicted": None, "why_not": "a test"}  # type: ignore[typeddict-item]
UNEVEN = PipelineImbalance(1, 2, 75_000_000, 37_000_000, 10_000_000, NOT_TRIED, 1, 1, told_apart=True)


def late(rank: int, reason: str | None, why: str) -> StragglerEntry:
    return {
        "rank": rank,
        "caused_wait_ns": 1,
        "caused_wait_ns_per_step": 1,
        "per_step_ns": 1,
        "root_wait_ns": 1,
        "phase": None,
        "operation": None,
        "recurrent": True,
        "reason": reason,
        "reason_why": why,
    }  # type: ignore[typeddict-item]


def stalls(report: Report, **cpu: float) -> Report:
    """Of every rank the shares of its window that these causes of class cpu take."""
    for entry in report["ranks"]:
        entry["stall_ns"] = {
            "cpu": {cause: round(share * entry["window_ns"]) for cause, share in cpu.items()},
            "communication": {},
            "memory": {},
            "unattributed": 0,
        }
    report["verdict"]["share_frac"] = sum(cpu.values())
    return report


@pytest.mark.parametrize(
    "shares",
    [
        {"input": 0.3},
        {"input": 0.2, "sync": 0.05},
        {"input": 0.2004, "sync": 0.0504},
        {"input": 0.2, "gc": 0.0004},
        {"input": 0.2, "sync": 0.1, "launch": 0.05, "gc": 0.02},
        {"input": 0.2004, "sync": 0.1004, "launch": 0.0004},
    ],
)
def test_the_parts_add_up_to_the_share_of_the_class(input_bound: Report, shares: dict[str, float]) -> None:
    said = verdict_words(stalls(input_bound, **shares))
    total, _, parts = said.partition(" of the time = ")
    figures = [float(one) for one in re.findall(r"([\d.]+) %", parts)]
    adds = sum(figures) == pytest.approx(float(re.findall(r"([\d.]+) %", total)[0]), abs=1e-6)
    assert adds != ("(rounded)" in parts)
    assert ("smaller" in parts) == (len(shares) > 2 and "(rounded)" not in parts)


def test_the_step_of_the_header_is_a_median(input_bound: Report) -> None:
    assert "10 steps, median 100.0 ms" in context_line(input_bound)


@pytest.mark.parametrize("reason", ["data", "device", "host", "cores", None])
def test_an_accusation_has_its_evidence(many_ranks: Report, reason: str | None) -> None:
    many_ranks["findings"] = [finding("straggler", 0.3, ranks=[7])]
    many_ranks["verdict"]["cause"] = "straggler"
    many_ranks["stragglers"] = [late(7, reason, "it computes 9.000 ms per step more")]
    assert why_it_is_so(many_ranks) == "it computes 9.000 ms per step more"
    many_ranks["stragglers"][0]["more_work"] = "9.000 ms per step more: 24 aten::mm that only it runs"
    assert why_it_is_so(many_ranks) == "it computes 9.000 ms per step more: 24 aten::mm that only it runs"


def test_of_several_late_ranks_the_reason_that_they_share(many_ranks: Report) -> None:
    many_ranks["findings"] = [finding("straggler", 0.3, ranks=[7, 9])]
    many_ranks["verdict"]["cause"] = "straggler"
    many_ranks["stragglers"] = [late(7, "device", "slower"), late(9, "device", "slower too")]
    assert why_it_is_so(many_ranks) == "all alike; rank 7: slower"
    many_ranks["stragglers"][1]["reason"] = "host"
    assert why_it_is_so(many_ranks) == ""


def test_where_ranks_take_turns_each_ones_share_of_the_waiting(many_ranks: Report) -> None:
    many_ranks["findings"] = [finding("straggler", 0.3, ranks=range(64))]
    many_ranks["verdict"]["cause"] = "straggler"
    many_ranks["stragglers"] = [late(7, None, ""), late(9, None, "")]
    many_ranks["stragglers"][0]["root_wait_ns"] = 3
    assert (
        first_lines(many_ranks).what
        == "Ranks take turns being late, the others wait: 30 % of every step, mean of ranks"
    )
    assert why_it_is_so(many_ranks) == "rank 7 75 %, rank 9 25 % of the waiting"


def test_what_a_rule_infers_is_said_to_be_inferred(input_bound: Report) -> None:
    assert why_it_is_so(input_bound) == "most of it in _MultiProcessingDataLoaderIter.__next__"
    input_bound["suggestions"][0]["grounds"] = "inferred: no cache"
    assert why_it_is_so(input_bound) == "inferred: no cache"


def test_why_the_first_change_is_first(input_bound: Report) -> None:
    changes = [change("compile", "unfused_kernels", 60), change("loader", "input", 70)]
    input_bound["suggestions"] = in_order(input_bound, changes)
    found = summary(input_bound)
    assert found.lines.fix.startswith("loader=1: ")
    assert [line.typed for line in found.changes] == ["compile=1"]
    assert found.order.startswith("Row 2 gains more")
    input_bound["suggestions"] = [change("loader", "input", 60), change("compile", "unfused_kernels", 70)]
    assert summary(input_bound).order == ""


@pytest.mark.parametrize(("host_cause", "ranks", "closely"), [("launch", [1], 1), ("launch", [0], 0), ("gc", [1], 0)])
def test_what_makes_hosts_late_answers_the_waiting_for_them(
    input_bound: Report, host_cause: str, ranks: list[int], closely: int
) -> None:
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "straggler"}
    input_bound["findings"][0] |= {"code": "straggler", "ranks": ranks}
    input_bound["stragglers"] = [{"rank": 1, "host_cause": host_cause}]  # type: ignore[typeddict-item]
    assert answers(input_bound, change("graphs", "launch", 60)) == closely


def test_an_unknown_gain_stands_only_where_nothing_else_answers(input_bound: Report) -> None:
    aside = {
        "code": "try",
        "finding": "input",
        "action": "Try",
        "why_not": "",
        "setting": {"kind": "config", "name": "try", "value": "1"},
    }
    input_bound["advice"]["unpredicted"] = [aside]  # type: ignore[list-item]
    input_bound["suggestions"] = [change("loader", "input", 70)]
    assert (summary(input_bound).changes, summary(input_bound).more_changes) == ([], 1)
    input_bound["suggestions"] = [change("compile", "unfused_kernels", 70)]
    assert first_lines(input_bound).fix == "try=1 (gain unknown)"
    assert [line.typed for line in summary(input_bound).changes] == ["compile=1"]
    aside["finding"] = "latency"
    assert first_lines(input_bound).fix.startswith("none known; elsewhere compile=1: ")
    assert (summary(input_bound).changes, summary(input_bound).more_changes) == ([], 1)
    input_bound["suggestions"] = []
    assert first_lines(input_bound).fix == "try=1 (gain unknown)"


def test_a_gain_that_may_be_none_says_so() -> None:
    one = change("a", "b", 90, high_ms=120)
    assert gain_cell(one["predicted"], certain=False) == "10.0 %, unsure"
    assert gain_cell(one["predicted"], certain=True) == "10.0 %"


@pytest.mark.parametrize(
    ("setting", "typed", "shown"),
    [
        (
            {
                "kind": "python",
                "name": "DataLoader.num_workers",
                "value": "1",
                "now": "0",
                "besides": "persistent_workers=True",
            },
            "DataLoader(num_workers=1, persistent_workers=True)",
            "DataLoader(num_workers=0 → 1, persistent_workers=True)",
        ),
        (
            {"kind": "python", "name": "pipelining schedule.n_microbatches", "value": "8", "now": "4"},
            "pipelining schedule.n_microbatches: 8",
            "pipelining schedule.n_microbatches: 4 → 8",
        ),
        (
            {"kind": "python", "name": "DistributedDataParallel.bucket_cap_mb", "value": "None  # the default: 25 MiB"},
            "DistributedDataParallel(bucket_cap_mb=None)  # the default: 25 MiB",
            "DistributedDataParallel(bucket_cap_mb=None)  # the default: 25 MiB",
        ),
    ],
)
def test_a_setting_shows_the_present_value_and_is_copied_without_it(setting: Setting, typed: str, shown: str) -> None:
    one = change("x", "y", 1)
    one["setting"] = setting
    assert (setting_words(one), setting_words(one, now=True)) == (typed, shown)


def test_why_says_what_is_wrong_rather_than_why_a_gain_is_unknown(input_bound: Report) -> None:
    input_bound["verdict"] |= {"cause": "launch"}  # type: ignore[typeddict-item]
    input_bound["findings"] = [finding("launch", 0.3, ranks=[0])]
    untried = {**change("cuda_graphs", "launch", 80), "grounds": "inferred: one step"}
    input_bound["advice"]["unpredicted"] = [untried]  # type: ignore[list-item]
    input_bound["launches"] = [{"rank": 0, "launches": 1200, "kernel_median_ns": 9000}]  # type: ignore[typeddict-item]
    assert why_it_is_so(input_bound) == "1,200 launches in the window, the median runs 9.000 µs"


@pytest.mark.parametrize(("covered", "why"), [(0.6, "most of it in read"), (0.2, "no recorded event covers most of")])
def test_an_event_that_covers_little_of_a_gap_is_not_its_place(input_bound: Report, covered: float, why: str) -> None:
    input_bound["verdict"] |= {"cause": "host_other"}  # type: ignore[typeddict-item]
    other = finding("host_other", 0.3)
    gap = {"rank": 0, "start_ns": 0, "dur_ns": 9, "name": "read", "note": "", "covered_frac": covered}
    other["evidence"] = [gap]  # type: ignore[list-item]
    input_bound["findings"] = [other]
    assert why_it_is_so(input_bound).startswith(why)


def test_what_makes_the_bubble_is_why(input_bound: Report) -> None:
    """A stage with more work, or few micro-batches if these cost more; a change against either is a fix."""
    uneven = made(UNEVEN, ranks=[1], share=0.2)
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "pipeline_bubble"}  # type: ignore[typeddict-item]
    input_bound["findings"] = [finding("pipeline_bubble", 0.3), uneven]
    input_bound["suggestions"] = [change("even_stages", "pipeline_imbalance", 80)]
    assert why_it_is_so(input_bound) == (
        "pipeline stage 1 (the last) computes 75.00 ms per micro-batch, the other one 37.00 ms"
    )
    few = FewMicroBatches(2, 2, "1f1b", 10_000_000, 0.3, NOT_TRIED)
    input_bound["findings"].append(made(few, ranks=[0, 1], share=0.3))
    assert why_it_is_so(input_bound) == "2 micro-batches on 2 stages (1F1B)"
    operations_alone: Report = {**input_bound, "ranks": [], "findings": input_bound["findings"][2:]}
    said = first_lines(operations_alone)
    assert said.what.startswith("2 micro-batches on 2 stages (1F1B): 30 %")
    assert said.why == "a stage idles 10.00 ms of a step on average while the pipeline fills and drains"
    assert first_lines(input_bound).fix.startswith("even_stages=1: ")


def test_a_slow_stage_says_what_is_measured_and_what_is_calculated(input_bound: Report) -> None:
    slow = SlowStage(3, 5, 2, 0.9, True, ("forward", 6, 144_000_000, 85_000_000))
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "straggler"}  # type: ignore[typeddict-item]
    input_bound["ranks"], input_bound["steps"] = [], []
    input_bound["findings"] = [made(slow, ranks=[6, 7], share=0.2)]
    assert first_lines(input_bound).what == "Pipeline stage 3 is slow (ranks 6-7): 20 % of the window"
    assert why_it_is_so(input_bound) == "forward of rank 6: 144.0 ms vs. 85.00 ms of its peers (measured)"
    input_bound["findings"] = [made(replace(slow, slowest=None), ranks=[6, 7], share=0.2)]
    assert why_it_is_so(input_bound).endswith("(calculated)")


def test_each_cause_says_what_a_figure_shows_of_it(input_bound: Report) -> None:
    input_bound["suggestions"], input_bound["verdict"]["cause"] = [], "launch"
    input_bound["findings"] = [finding("launch", 0.3, ranks=[0])]
    input_bound["launches"] = [
        {
            "rank": 0,
            "device": 0,
            "launches": 760,
            "call_ns": 1,
            "call_median_ns": 1,
            "call_max_ns": 1,
            "delay_median_ns": 1,
            "delay_max_ns": 1,
            "kernel_median_ns": 10_080,
            "short_kernels": 0,
            "slow_calls": 0,
            "late_starts": 0,
        },
    ]  # type: ignore[typeddict-item]
    assert why_it_is_so(input_bound) == "760 launches in the window, the median runs 10.08 µs"
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "latency"}  # type: ignore[typeddict-item]
    input_bound["findings"] = [finding("latency", 0.3)]
    told = "40 all_reduce in the recording, of 26.21 MB each on average"
    assert why_it_is_so(input_bound) == told
    # Of a rank that was killed most all-reduces match none of the other's: how long they transferred is not known.
    first = input_bound["collectives"][0]
    once = first | {"op": "all_gather", "count": 1, "bytes": 16, "dur_ns": 1, "transfer_ns": 1}
    input_bound["collectives"] = [first | {"transfer_ns": None}, once]  # type: ignore[typeddict-item, list-item]
    assert why_it_is_so(input_bound) == told


@pytest.mark.parametrize(
    ("open_part", "first"),
    [(0.11, "straggler"), (0.022, "straggler"), (0.28, "straggler"), (0.5, "exposed_communication")],
)
def test_where_the_cause_is_open_the_largest_that_has_a_name_leads(
    input_bound: Report, open_part: float, first: str
) -> None:
    """Late ranks may have lacked cores, so the cause stays open: that 2 to 11 % of the time is undivided is no reason
    to begin with that."""
    input_bound["verdict"] |= {"bound_by": "communication", "cause": None, "cause_abstained": True, "share_frac": 0.6}
    input_bound["findings"] = [
        finding("straggler", 0.28, ranks=[1]),
        finding("small_messages", 0.27),
        finding("input", 0.3),
        finding("exposed_communication", open_part),
    ]
    main = main_finding(input_bound)
    assert main is not None
    assert main["code"] == first


@pytest.mark.parametrize(
    ("recurrent", "ranks", "begins"),
    [
        (True, [1], "Rank 1 is late"),
        (False, [1], "Collectives wait for the last rank to arrive: "),
        (False, [0, 1], "Ranks take turns"),
    ],
)
def test_only_who_is_late_again_and_again_is_named_first(
    input_bound: Report, recurrent: bool, ranks: list[int], begins: str
) -> None:
    input_bound["trace"]["ranks_present"] = [0, 1]
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "straggler", "share_frac": 0.28}
    input_bound["findings"] = [finding("straggler", 0.28, ranks=ranks)]
    input_bound["stragglers"] = [{**late(rank, None, ""), "recurrent": recurrent} for rank in ranks]
    assert first_lines(input_bound).what.startswith(begins)
