"""Tries: what is taken, dropped, combined, and said where nothing helps. The replay is a table of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.advice import finding, report, suggestion

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, python
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import (
    UNMATCHED,
    CapturedGraphs,
    Change,
    NoCollector,
    PinnedCopies,
    Predicted,
    Refused,
    RemovedSyncs,
    ReplacedRank,
    WireBytes,
)
from gpuscope.catalogue import prediction_sentences
from gpuscope.schema.document import FindingEntry, Report

SYNCS, PINNED, GRAPHS, GC = RemovedSyncs(), PinnedCopies(), CapturedGraphs(), NoCollector()
Steps = Mapping[frozenset[Change], int]


def replayed(steps: Steps, spread: int = 0) -> Callable[[Sequence[Change]], Predicted | Refused]:
    """A step of 1,000 ns, and what it becomes with each set of changes; others can't be made."""

    def predict(changes: Sequence[Change]) -> Predicted | Refused:
        after = steps.get(frozenset(changes))
        if after is None:
            return Refused("not in the table")
        return Predicted(1_000, after, after - spread, after + spread, "a table")

    return predict


def proposal(code: str, change: Change, *, subject: str = "", alters_training: bool = False, **given: Any) -> Proposal:
    words = suggestion(code, subject=subject, alters_training=alters_training)
    return Proposal(finding("sync"), words, python(code, subject), (change,), **given)


def rule(*proposals: tuple[str, Proposal]) -> list[Rule]:
    """One rule that answers findings, each with its proposals."""

    def propose(_: Case, of: FindingEntry) -> list[Proposal]:
        return [replace(one, finding=of) for code, one in proposals if code == of["code"]]

    records = tuple(type(suggestion(one.code, code)) for code, one in proposals)
    return [Rule("tests", records, propose)]


def test_the_plan_is_one_replay_of_all_changes_and_no_sum() -> None:
    """300 and 200 gained alone are 400 together."""
    predict = replayed({frozenset([SYNCS]): 700, frozenset([GC]): 800, frozenset([SYNCS, GC]): 600}, spread=10)
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    suggestions, advice = advise(report(finding("sync"), finding("gc")), predict, among)
    assert [one["code"] for one in suggestions] == ["remove_syncs", "manual_gc"]
    plan = advice["plan"]
    assert [(one["code"], one["step_ns_after"]) for one in plan["steps"]] == [("remove_syncs", 700), ("manual_gc", 600)]
    predicted = plan["predicted"]
    assert (predicted["step_ns_after"], predicted["low_ns"], predicted["high_ns"]) == (600, 590, 610)


def test_a_plan_is_as_careful_as_a_suggestion_where_the_trace_does_not_show_what_its_gain_hangs_on() -> None:
    """50 are certain: a quarter more than that and 2 % are promised."""
    exact = replayed({frozenset([SYNCS]): 700, frozenset([GC]): 800, frozenset([SYNCS, GC]): 600})

    def predict(changes: Sequence[Change]) -> Predicted | Refused:
        told = exact(changes)
        both = isinstance(told, Predicted) and len(changes) > 1
        return replace(told, low=500, high=950, unshown=True) if both else told

    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    plan = advise(report(finding("sync"), finding("gc")), predict, among)[1]["plan"]
    assert (plan["predicted"]["step_ns_after"], plan["predicted"]["low_ns"]) == (918, 500)
    assert [one["step_ns_after"] for one in plan["steps"]] == [918, 918]


@pytest.mark.parametrize(("altered", "told"), [(698, ["tf32"]), (600, ["autocast", "tf32"])])
def test_training_is_altered_only_where_nothing_else_leads_as_far(altered: int, told: list[str]) -> None:
    predict = replayed({frozenset([SYNCS]): altered, frozenset([GC]): 700, frozenset([SYNCS, GC]): altered})
    among = rule(("sync", proposal("autocast", SYNCS, alters_training=True)), ("sync", proposal("tf32", GC)))
    assert [one["code"] for one in advise(report(finding("sync")), predict, among)[0]] == told


def test_no_plan_where_a_second_change_adds_nothing() -> None:
    predict = replayed({frozenset([SYNCS]): 700, frozenset([GC]): 800, frozenset([SYNCS, GC]): 695})
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    suggestions, advice = advise(report(finding("sync"), finding("gc")), predict, among)
    assert len(suggestions) == 2  # each alone helps against its own finding
    assert "plan" not in advice


def test_what_another_change_for_the_same_finding_contains_is_dropped() -> None:
    predict = replayed({frozenset([SYNCS]): 700, frozenset([PINNED]): 800, frozenset([SYNCS, PINNED]): 700})
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("sync", proposal("pinned_copies", PINNED)))
    suggestions, _ = advise(report(finding("sync")), predict, among)
    assert [one["code"] for one in suggestions] == ["remove_syncs"]


def test_what_changes_the_numbers_of_training_does_not_displace_what_does_not() -> None:
    half = WireBytes(0.5)
    predict = replayed({frozenset([half]): 600, frozenset([SYNCS]): 800, frozenset([SYNCS, half]): 600})
    among = rule(
        ("bandwidth", proposal("wire_bytes", half, alters_training=True)),
        ("bandwidth", proposal("bucket_size", SYNCS)),
    )
    suggestions, _ = advise(report(finding("bandwidth")), predict, among)
    assert [one["code"] for one in suggestions] == ["wire_bytes", "bucket_size"]


def test_two_late_ranks_hide_behind_each_other() -> None:
    """Neither gains alone, both together do."""
    first, second = ReplacedRank(1), ReplacedRank(2)
    predict = replayed({frozenset([first]): 1_000, frozenset([second]): 1_000, frozenset([first, second]): 500})
    among = rule(
        ("straggler", proposal("slow_rank", first, subject="rank 1")),
        ("straggler", proposal("slow_rank", second, subject="rank 2")),
    )
    suggestions, advice = advise(report(finding("straggler")), predict, among)
    assert not suggestions
    assert [one["step_ns_after"] for one in advice["plan"]["steps"]] == [1_000, 500]
    assert advice["nothing_gains"] == []


def test_what_another_change_makes_possible_is_part_of_the_plan_alone() -> None:
    predict = replayed({frozenset([SYNCS]): 800, frozenset([GRAPHS]): 300, frozenset([SYNCS, GRAPHS]): 400})
    blocked = Refused("first remove what blocks")
    graphs = proposal("cuda_graphs", GRAPHS, outcome=blocked, possible_after=("remove_syncs",))
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("launch", graphs))
    suggestions, advice = advise(report(finding("sync"), finding("launch")), predict, among)
    assert [one["code"] for one in suggestions] == ["remove_syncs"]
    assert [one["why_not"] for one in advice["unpredicted"]] == ["first remove what blocks"]
    assert [one["step_ns_after"] for one in advice["plan"]["steps"]] == [800, 400]


def test_changes_that_exclude_each_other_make_no_plan() -> None:
    predict = replayed({frozenset([SYNCS]): 700, frozenset([GC]): 600})
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    suggestions, advice = advise(report(finding("sync"), finding("gc")), predict, among)
    assert [one["code"] for one in suggestions] == ["manual_gc", "remove_syncs"]
    assert "plan" not in advice


def test_steps_that_lack_messages_make_no_plan_and_the_report_says_so() -> None:
    alone = replayed({frozenset([SYNCS]): 700, frozenset([GC]): 800})

    def predict(changes: Sequence[Change]) -> Predicted | Refused:
        return alone(changes) if len(changes) < 2 else Refused("2 messages lack their other end", UNMATCHED)

    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    _, advice = advise(report(finding("sync"), finding("gc")), predict, among)
    assert "plan" not in advice
    assert advice["no_plan"] == "2 messages lack their other end"


def _of_200(**stalls: int) -> Report:
    """Of a window of 200 ms, of which the finding `sync` takes 40."""
    case = report(finding("sync"))
    case["ranks"][0]["stall_ns"]["cpu"] = {name: ns * 1_000_000 for name, ns in {"sync": 40, **stalls}.items()}
    case["ranks"][0]["breakdown_ns"] |= {
        "compute": 100_000_000,
        "exposed_communication": 20_000_000,
        "idle": 80_000_000,
    }  # type: ignore[typeddict-item]
    return case


def test_a_gain_beyond_what_its_finding_costs_says_where_it_comes_from() -> None:
    """A step of 1,000, of which `sync` costs 200; 350 are saved: 300 idle, where `launch` stands too, 50 elsewhere."""
    told = Predicted(1_000, 650, 640, 660, "", saved={"idle": 300, "exposed_communication": 50, "compute": 0})
    case = _of_200(launch=30)
    [one], _ = advise(case, lambda _: told, rule(("sync", proposal("remove_syncs", SYNCS))))
    assert one["beyond"] == {
        "ns": 150,
        "cost_ns": 200,
        "saved_ns": {"exposed_communication": 50},
        "causes": ["launch"],
    }
    assert prediction_sentences.besides(one).startswith(
        "; 150 ns of it beyond what blocking synchronisation costs (200 ns): what counts as"
    )
    within = replace(told, after=900, low=890, high=910, saved={"idle": 100})
    [one], _ = advise(case, lambda _: within, rule(("sync", proposal("remove_syncs", SYNCS))))
    assert "beyond" not in one


def test_no_more_is_promised_than_the_breakdown_holds() -> None:
    """The replayed steps idle for 600 of 1,000 and more, but half of all that is judged is compute."""
    told = Predicted(1_000, 400, 390, 410, "", saved={"idle": 600})
    [one], _ = advise(_of_200(launch=40), lambda _: told, rule(("sync", proposal("remove_syncs", SYNCS))))
    assert (one["predicted"]["step_ns_after"], one["predicted"]["high_ns"]) == (500, 510)


def test_a_value_that_may_not_be_needed_has_two_figures() -> None:
    careful, free = RemovedSyncs(sites=("here",), needed=True), RemovedSyncs(sites=("here",))
    predict = replayed({frozenset([careful]): 800, frozenset([free]): 700}, spread=10)
    [one], _ = advise(report(finding("sync")), predict, rule(("sync", proposal("x", careful, if_unused=(free,)))))
    assert (one["predicted"]["step_ns_after"], one["if_unused"]["step_ns_after"]) == (800, 700)
    assert "700 ns (690 ns to 710 ns) where the work behind the calls needs none" in prediction_sentences.gain(one)


def test_a_costly_cause_that_nothing_helps_against_says_what_was_tried() -> None:
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    predict = replayed({frozenset([SYNCS]): 998, frozenset([GC]): 700, frozenset([SYNCS, GC]): 700})
    _, advice = advise(report(finding("sync"), finding("gc")), predict, among)
    [entry] = advice["nothing_gains"]
    assert (entry["finding"], entry["share_frac"]) == ("sync", 0.2)
    assert [(one["code"], one["step_ns_after"]) for one in entry["tried"]] == [("remove_syncs", 998)]
    assert (entry["bound"]["step_ns_before"], entry["bound"]["step_ns_low"]) == (100_000_000, 80_000_000)
    assert "any other change gains up to 20 % (step 100.0 ms → 80.00 ms at" in prediction_sentences.nothing_gains(entry)


def test_of_a_small_cause_nothing_is_said() -> None:
    small = {**finding("sync", "medium"), "share_frac": 0.05}
    _, advice = advise(report(small), replayed({frozenset([SYNCS]): 998}), rule(("sync", proposal("x", SYNCS))))  # type: ignore[arg-type]
    assert advice["nothing_gains"] == []


def test_a_likely_gain_that_is_not_certain_is_marked_and_comes_last() -> None:
    steps = {frozenset([SYNCS]): 950, frozenset([GC]): 930, frozenset([SYNCS, GC]): 930}
    wide, narrow = replayed(steps, spread=100), replayed(steps, spread=1)
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    predict = lambda changes: (wide if GC in changes else narrow)(changes)  # noqa: E731
    suggestions, _ = advise(report(finding("sync"), finding("gc")), predict, among)
    assert [(one["code"], one["certain"]) for one in suggestions] == [("remove_syncs", True), ("manual_gc", False)]
    bound, _ = advise(report(finding("sync"), finding("gc"), bound_by="compute"), predict, among)
    assert [one["code"] for one in bound] == ["remove_syncs"]


def test_what_may_gain_is_part_of_a_plan_that_gains_for_certain() -> None:
    """Alone the range holds no gain as well; with the other change every case gains, and more than that one alone."""
    steps = {frozenset([SYNCS]): 700, frozenset([GC]): 930, frozenset([SYNCS, GC]): 640}
    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    suggestions, advice = advise(report(finding("sync"), finding("gc")), replayed(steps, spread=100), among)
    assert [one["certain"] for one in suggestions] == [True, False]
    assert [one["code"] for one in advice["plan"]["steps"]] == ["remove_syncs", "manual_gc"]
    steps[frozenset([SYNCS])] = steps[frozenset([SYNCS, GC])] = 950
    assert "plan" not in advise(report(finding("sync"), finding("gc")), replayed(steps, spread=100), among)[1]


def test_estimates_are_enough_for_what_does_not_gain() -> None:
    """Ranges take several replays: they are asked for only where a gain is to be shown."""
    asked: list[frozenset[Change]] = []
    steps = {frozenset(): 1_000, frozenset([SYNCS]): 700, frozenset([GC]): 999, frozenset([SYNCS, GC]): 699}
    predict = replayed(steps)

    def full(changes: Sequence[Change]) -> Predicted | Refused:
        asked.append(frozenset(changes))
        return predict(changes)

    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("manual_gc", GC)))
    advise(report(finding("sync"), finding("gc")), full, among, estimate=lambda changes: steps[frozenset(changes)])
    assert asked == [frozenset([SYNCS])]


def test_what_estimates_but_can_not_be_predicted_is_neither_suggested_nor_planned() -> None:
    """Its range says nothing: what to record is said instead."""
    steps = {frozenset(): 1_000, frozenset([SYNCS]): 700, frozenset([GC]): 800, frozenset([SYNCS, GC]): 500}
    predict = replayed(steps)

    def unclear(changes: Sequence[Change]) -> Predicted | Refused:
        return Refused("between 300 and 1,100: record a second size") if GC in changes else predict(changes)

    among = rule(("sync", proposal("remove_syncs", SYNCS)), ("gc", proposal("bucket_size", GC)))
    estimate = lambda changes: steps[frozenset(changes)]  # noqa: E731
    suggestions, advice = advise(report(finding("sync"), finding("gc")), unclear, among, estimate=estimate)
    assert [one["code"] for one in suggestions] == ["remove_syncs"]
    assert [(one["code"], one["why_not"]) for one in advice["unpredicted"]] == [
        ("bucket_size", "between 300 and 1,100: record a second size")
    ]
    assert "plan" not in advice
    assert advice["nothing_gains"] == []
