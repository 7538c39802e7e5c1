"""What the first screen says of its numbers: sums that add up, evidence, the order of changes, present values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.pipelines import FewMicroBatches, PipelineImbalance, SlowStage
from gpuscope.catalogue.prediction_sentences import gain_cell, setting_words
from gpuscope.report.view.blame import in_order, main_finding
from gpuscope.report.view.headline import context_line, verdict_words
from gpuscope.report.view.summary import sentence, summary
from gpuscope.schema.document import FindingEntry, Report, Setting, StragglerEntry, SuggestionEntry
from gpuscope.schema.pipeline_section import PipelineGain

NOT_TRIED: PipelineGain = {"micro_batches": 4, "predicted": None, "why_not": "a test"}  # type: ignore[typeddict-item]
UNEVEN = PipelineImbalance(1, 2, 75_000_000, 37_000_000, 10_000_000, NOT_TRIED, 1, 1, told_apart=True)


def finding(code: str, share: float, message: str = "", ranks: Sequence[int] = ()) -> FindingEntry:
    return {
        "code": code, "severity": "high", "message": message, "ranks": list(ranks), "cost_ns_per_step": 10_000_000,
        "cost_ns": None, "share_frac": share, "evidence": [], "per_step_ns": 10_000_000,
    }  # fmt: skip


def change(code: str, answers: str, after_ms: int, high_ms: int | None = None) -> SuggestionEntry:
    high = after_ms if high_ms is None else high_ms
    return {
        "code": code, "finding": answers, "action": f"Do {code}", "why": "", "risk": "", "verify": "",
        "setting": {"kind": "config", "name": code, "value": "1"}, "certain": high < 100,
        "predicted": {"step_ns_before": 100_000_000, "step_ns_after": after_ms * 1_000_000,
                      "low_ns": after_ms * 1_000_000, "high_ns": high * 1_000_000, "basis": "",
                      "provenance": "inferred"},
    }  # fmt: skip


def late(rank: int, reason: str | None, why: str) -> StragglerEntry:
    return {
        "rank": rank, "caused_wait_ns": 1, "caused_wait_ns_per_step": 1, "per_step_ns": 1, "root_wait_ns": 1,
        "phase": None, "operation": None, "recurrent": True, "reason": reason, "reason_why": why,
    }  # type: ignore[typeddict-item]  # fmt: skip


def stalls(report: Report, **cpu: float) -> Report:
    """Of every rank the shares of its window that these causes of class cpu take."""
    for entry in report["ranks"]:
        entry["stall_ns"] = {
            "cpu": {cause: round(share * entry["window_ns"]) for cause, share in cpu.items()},
            "communication": {}, "memory": {}, "unattributed": 0,
        }  # fmt: skip
    report["verdict"]["share_frac"] = sum(cpu.values())
    return report


@pytest.mark.parametrize(
    "shares",
    [{"input": 0.3}, {"input": 0.2, "sync": 0.05}, {"input": 0.2004, "sync": 0.0504}, {"input": 0.2, "gc": 0.0004},
     {"input": 0.2, "sync": 0.1, "launch": 0.05, "gc": 0.02}, {"input": 0.2004, "sync": 0.1004, "launch": 0.0004}],
)  # fmt: skip
def test_the_parts_add_up_to_the_share_of_the_class(input_bound: Report, shares: dict[str, float]) -> None:
    said = verdict_words(stalls(input_bound, **shares))
    total, _, parts = said.partition(" of the time = ")
    figures = [float(one) for one in re.findall(r"([\d.]+) %", parts)]
    adds = sum(figures) == pytest.approx(float(re.findall(r"([\d.]+) %", total)[0]), abs=1e-6)
    assert adds != ("(rounded)" in parts)
    assert ("smaller" in parts) == (len(shares) > 2 and "(rounded)" not in parts)
    assert said.endswith("; confidence 0.8 in this class")


def test_the_step_of_the_header_is_a_median(input_bound: Report) -> None:
    assert "10 steps, median 100.0 ms" in context_line(input_bound)


def test_the_rank_that_loses_most_stands_beside_a_mean_that_hides_it(input_bound: Report) -> None:
    assert "31.00 ms per step, 31.0 % of the time, mean over ranks." in sentence(input_bound)
    first, other = input_bound["ranks"]
    first["stall_ns"]["cpu"]["input"] = round(0.58 * first["window_ns"])
    other["stall_ns"]["cpu"]["input"] = round(0.04 * other["window_ns"])
    assert "31.0 % of the time, mean over ranks (rank 0: 58.00 ms, 58.0 %)." in sentence(input_bound)


@pytest.mark.parametrize(
    ("reason", "why", "words"),
    [
        ("data", "it computes 9.000 ms per step more", "measured: more work, not a slower device"),
        ("device", "the same operations take longer", "measured: its device is slower"),
        ("host", "its host keeps its device idle", "measured: its host is late, not its device"),
        ("cores", "its training thread had no core", "no sign that the rank itself is slow"),
    ],
)
def test_an_accusation_has_its_evidence(many_ranks: Report, reason: str, why: str, words: str) -> None:
    many_ranks["findings"] = [finding("straggler", 0.3, ranks=[7])]
    many_ranks["verdict"]["cause"] = "straggler"
    many_ranks["stragglers"] = [late(7, reason, why)]
    shown = summary(many_ranks).evidence
    assert shown.startswith("rank 7")
    assert why.removeprefix("it ") in shown
    assert shown.endswith(f" ({words})")


def test_a_late_rank_without_a_reason_is_not_accused_of_one(many_ranks: Report) -> None:
    many_ranks["findings"] = [finding("straggler", 0.3, ranks=[7])]
    many_ranks["verdict"]["cause"] = "straggler"
    many_ranks["stragglers"] = [late(7, None, "no shapes")]
    assert summary(many_ranks).evidence == "why rank 7 is late is not known: no shapes"


def test_what_a_rule_infers_is_said_to_be_inferred(input_bound: Report) -> None:
    assert summary(input_bound).evidence == ""
    input_bound["suggestions"][0]["grounds"] = "inferred: no cache"
    assert summary(input_bound).evidence == "inferred: no cache"


def test_why_the_first_change_is_first(input_bound: Report) -> None:
    changes = [change("compile", "unfused_kernels", 60), change("loader", "input", 70)]
    input_bound["suggestions"] = in_order(input_bound, changes)
    found = summary(input_bound)
    assert [line.typed for line in found.changes] == ["loader=1", "compile=1"]
    assert found.order.startswith("Row 2 gains more")
    input_bound["suggestions"] = [change("loader", "input", 60), change("compile", "unfused_kernels", 70)]
    assert summary(input_bound).order == ""


def test_an_unknown_gain_stands_only_where_nothing_else_answers(input_bound: Report) -> None:
    aside = {"code": "try", "finding": "input", "action": "Try", "why_not": "", "setting": {
        "kind": "config", "name": "try", "value": "1"}}  # fmt: skip
    input_bound["advice"]["unpredicted"] = [aside]  # type: ignore[list-item]
    input_bound["suggestions"] = [change("loader", "input", 70)]
    assert ([line.typed for line in summary(input_bound).changes], summary(input_bound).more_changes) == (
        ["loader=1"], 1,
    )  # fmt: skip
    input_bound["suggestions"] = [change("compile", "unfused_kernels", 70)]
    assert [line.typed for line in summary(input_bound).changes] == ["compile=1", "try=1"]
    aside["finding"] = "latency"
    assert [line.typed for line in summary(input_bound).changes] == ["compile=1"]
    input_bound["suggestions"] = []
    assert [line.typed for line in summary(input_bound).changes] == ["try=1"]


def test_a_gain_that_may_be_none_says_so() -> None:
    one = change("a", "b", 90, high_ms=120)
    assert gain_cell(one["predicted"], certain=False) == "10.0 % or less"
    assert gain_cell(one["predicted"], certain=True) == "10.0 %"


@pytest.mark.parametrize(
    ("setting", "typed", "shown"),
    [
        (
            {"kind": "python", "name": "DataLoader.num_workers", "value": "1", "now": "0",
             "besides": "persistent_workers=True"},
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
)  # fmt: skip
def test_a_setting_shows_the_present_value_and_is_copied_without_it(setting: Setting, typed: str, shown: str) -> None:
    one = change("x", "y", 1)
    one["setting"] = setting
    assert (setting_words(one), setting_words(one, now=True)) == (typed, shown)


def test_what_the_sentence_begins_with_is_no_evidence_of_its_own(input_bound: Report) -> None:
    """A stage with more work explains the bubble, and the change answers it; with few micro-batches it is evidence."""
    uneven = made(UNEVEN, ranks=[1], share=0.2)
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "pipeline_bubble"}  # type: ignore[typeddict-item]
    input_bound["findings"] = [finding("pipeline_bubble", 0.3), uneven]
    input_bound["suggestions"] = [change("even_stages", "pipeline_imbalance", 80)]
    assert summary(input_bound).evidence == ""
    few = FewMicroBatches(2, 2, "1f1b", 10_000_000, 0.3, NOT_TRIED)
    input_bound["findings"].append(made(few, ranks=[0, 1], share=0.3))
    shown = summary(input_bound).evidence
    assert shown == "pipeline stage 1 (the last) computes 75.00 ms per micro-batch, the other one 37.00 ms"


def test_a_slow_stage_says_what_is_measured_and_what_is_calculated(input_bound: Report) -> None:
    slow = SlowStage(3, 5, 2, 0.9, True, ("forward", 6, 144_000_000, 85_000_000))
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "straggler"}  # type: ignore[typeddict-item]
    input_bound["ranks"], input_bound["steps"] = [], []
    input_bound["findings"] = [made(slow, ranks=[6, 7], share=0.2)]
    found = summary(input_bound)
    assert found.sentence.startswith("Pipeline stage 3 is slow (ranks 6-7), which costs 20.0 % of the time.")
    assert found.evidence == "forward of rank 6: 144.0 ms vs. 85.00 ms of its peers (measured)"
    input_bound["findings"] = [made(replace(slow, slowest=None), ranks=[6, 7], share=0.2)]
    assert summary(input_bound).evidence.endswith("(calculated)")


def test_an_uncertain_change_against_another_cause_says_against_which(input_bound: Report) -> None:
    input_bound["suggestions"] = [change("collect", "gc", 90, high_ms=120)]
    assert "May help against Python garbage collection: do collect; expected 100.0 → 90.00 ms" in sentence(input_bound)
    input_bound["suggestions"] = [change("loader", "input", 90, high_ms=120)]
    assert "May help: do loader" in sentence(input_bound)


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
        finding("straggler", 0.28, ranks=[1]), finding("small_messages", 0.27), finding("input", 0.3),
        finding("exposed_communication", open_part),
    ]  # fmt: skip
    main = main_finding(input_bound)
    assert main is not None
    assert main["code"] == first


@pytest.mark.parametrize(
    ("recurrent", "ranks", "begins"),
    [(True, [1], "Rank 1 is late"), (False, [1], "Collectives wait for the last rank"),
     (False, [0, 1], "Ranks take turns")],
)  # fmt: skip
def test_only_who_is_late_again_and_again_is_named_first(
    input_bound: Report, recurrent: bool, ranks: list[int], begins: str
) -> None:
    input_bound["trace"]["ranks_present"] = [0, 1]
    input_bound["verdict"] |= {"bound_by": "communication", "cause": "straggler", "share_frac": 0.28}
    input_bound["findings"] = [finding("straggler", 0.28, ranks=ranks)]
    input_bound["stragglers"] = [{**late(rank, None, ""), "recurrent": recurrent} for rank in ranks]
    assert sentence(input_bound).startswith(begins)
