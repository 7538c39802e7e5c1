"""Rules: which proposals become suggestions, in which framework's words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest
from helpers.advice import finding, report, steady, suggestion

from gpuscope.analyzers.advice.rule import Proposal, Rule, python, rules, rules_for
from gpuscope.analyzers.advice.rules.bucket_rules import MIB
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import BucketSize, Change, LoaderWorkers, MicroBatches, Predicted, Refused
from gpuscope.catalogue.suggestion import NAMED, Suggestion, places

BEFORE = 100_000_000


def always(after: int, spread: int = 0) -> Callable[[Sequence[Change]], Predicted]:
    return lambda _: Predicted(BEFORE, after, after - spread, after + spread, "a test")


def test_the_fewest_workers_that_do_are_suggested() -> None:
    """1, 2, 4… workers take 90, 70, 70… ms: two are enough."""

    def predict(changes: Sequence[Change]) -> Predicted:
        [change] = changes
        assert isinstance(change, LoaderWorkers)
        after = 90_000_000 if change.workers == 1 else 70_000_000
        return Predicted(BEFORE, after, after, after, "a test")

    [suggestion], advice = advise(report(finding("input")), predict)
    assert suggestion["setting"] == {
        "kind": "python",
        "name": "DataLoader.num_workers",
        "value": "2",
        "besides": "persistent_workers=True",
    }
    assert suggestion["predicted"]["step_ns_after"] == 70_000_000
    assert advice == {"why": "", "unpredicted": [], "nothing_gains": []}


@pytest.mark.parametrize(("others", "value"), [((), "1"), (("latency",), "4"), (("host_other",), "1")])
def test_workers_are_enough_for_a_step_whose_communication_is_mended(others: Sequence[str], value: str) -> None:
    """One hides the loading now, four if communication costs nothing."""

    def predict(changes: Sequence[Change]) -> Predicted | Refused:
        [workers, *link] = changes
        if not isinstance(workers, LoaderWorkers):
            return Refused("not this one")
        after = max(80_000_000 // workers.workers, 20_000_000 if link else 80_000_000)
        return Predicted(BEFORE, after, after, after, "a test")

    suggestions, _ = advise(report(*map(finding, ("input", *others))), predict)
    assert [one["setting"]["value"] for one in suggestions if one["code"] == "loader_workers"] == [value]


@pytest.mark.parametrize(
    ("iterators", "now"),
    [
        (["_SingleProcessDataLoaderIter"], "0"),
        (["_MultiProcessingDataLoaderIter"], None),
        (["_SingleProcessDataLoaderIter", "my_loader"], None),
        ([], None),
    ],
)
def test_no_workers_are_named_where_every_wait_is_in_their_absence(iterators: list[str], now: str | None) -> None:
    late = finding("input")
    late["evidence"] = [
        {"rank": 0, "start_ns": 0, "dur_ns": 1, "name": f"enumerate(DataLoader)#{name}.__next__", "note": ""}
        for name in iterators
    ]
    [suggestion], _ = advise(report(late), lambda _: Predicted(BEFORE, 1_000_000, 1_000_000, 1_000_000, "a test"))
    assert suggestion["setting"].get("now") == now


@pytest.mark.parametrize(
    ("frameworks", "name", "value"),
    [
        (["ddp"], "DistributedDataParallel.bucket_cap_mb", "50"),
        (["transformers", "ddp"], "TrainingArguments.ddp_bucket_cap_mb", "50"),
        (["deepspeed"], "zero_optimization.reduce_bucket_size", str(25 * MIB)),
        (["megatron", "ddp"], "--ddp-bucket-size", str(50 * MIB // 4)),
        (["horovod"], "HOROVOD_FUSION_THRESHOLD", str(50 * MIB)),
    ],
)
def test_a_bucket_size_in_the_words_of_the_framework(frameworks: list[str], name: str, value: str) -> None:
    def predict(changes: Sequence[Change]) -> Predicted | Refused:
        if changes != (BucketSize(50 * MIB, 50 * MIB),):
            return Refused("not this one")
        return Predicted(BEFORE, 80_000_000, 79_000_000, 81_000_000, "a test")

    suggestions, _ = advise(report(finding("latency"), frameworks=frameworks, bound_by="communication"), predict)
    [one] = [one for one in suggestions if one["code"] == "bucket_size"]
    assert (one["setting"]["name"], one["setting"]["value"]) == (name, value)


@pytest.mark.parametrize("codes", [("pipeline_bubble",), ("pipeline_bubble", "few_micro_batches")])
def test_a_change_answers_what_makes_the_trouble_where_that_was_found(codes: Sequence[str]) -> None:
    """More micro-batches shorten a bubble; they answer that there are few, where an analysis says so."""

    def predict(changes: Sequence[Change]) -> Predicted | Refused:
        if len(changes) > 1 or not isinstance(changes[0], MicroBatches):
            return Refused("not this one")
        return Predicted(BEFORE, 80_000_000, 79_000_000, 81_000_000, "a test")

    [suggestion], _ = advise(report(*map(finding, codes), bound_by="communication", cause="pipeline_bubble"), predict)
    assert (suggestion["code"], suggestion["finding"]) == ("micro_batches", codes[-1])


@pytest.mark.parametrize(("now", "tried"), [(1, {2, 4, 8, 16, 32, 64}), (4, {8, 16, 32, 64}), (32, {64})])
def test_only_more_micro_batches_than_there_are_are_tried(now: int, tried: set[int]) -> None:
    asked: set[int] = set()

    def predict(changes: Sequence[Change]) -> Predicted | Refused:
        asked.update(one.count for one in changes if isinstance(one, MicroBatches))
        return Refused("not this one")

    case = report(finding("pipeline_bubble"), bound_by="communication", cause="pipeline_bubble")
    case["pipeline"] = {"schedule": {"micro_batches": now}, "stages": []}  # type: ignore[typeddict-item]
    advise(case, predict)
    assert asked == tried


def test_no_bucket_size_where_no_framework_has_one() -> None:
    suggestions, advice = advise(report(finding("latency"), frameworks=["torchtitan"]), always(50_000_000))
    assert not [one for one in suggestions if one["code"] == "bucket_size"]
    assert not [one for one in advice["unpredicted"] if one["code"] == "bucket_size"]


@pytest.mark.parametrize(
    ("predicted", "kept"),
    [
        (always(98_000_000), True),
        (always(99_500_000), False),  # half a percent
        (always(98_000_000, spread=3_000_000), False),  # perhaps none
    ],
)
def test_only_gains_that_are_certain_and_worth_it(predicted: Any, kept: bool) -> None:
    suggestions, advice = advise(report(finding("gc")), predicted)
    assert bool(suggestions) is kept
    assert kept or advice["why"] == "no change known to gain at least 1 % of the step with certainty"


def test_no_advice_on_stalls_without_a_verdict() -> None:
    case = report(*map(finding, NAMED), bound_by=None, abstained=True)
    suggestions, advice = advise(case, always(50_000_000))
    assert not suggestions
    assert advice["why"].startswith("no advice without a verdict")


@pytest.mark.parametrize(
    ("severity", "predicted", "kept"),
    [
        ("medium", always(90_000_000), True),  # from 3 % on
        ("medium", always(90_000_000, spread=10_000_001), False),  # perhaps no gain
        ("low", always(97_000_000), True),  # as much as what is worth a look costs
        ("low", always(98_000_000), False),
        ("low", lambda _: Refused("a test"), False),
    ],
)
def test_in_a_run_bound_by_compute_only_certain_gains(severity: str, predicted: Any, kept: bool) -> None:
    case = report(finding("gc", severity), bound_by="compute", cause=None)
    suggestions, advice = advise(case, predicted)
    assert bool(suggestions) is kept
    assert advice["unpredicted"] == []
    assert kept or advice["why"].startswith("compute-bound")


def test_in_a_run_bound_by_compute_nothing_is_named_without_a_gain() -> None:
    _, advice = advise(report(finding("gc"), bound_by="compute"), lambda _: Refused("a test"))
    assert advice["unpredicted"] == []


@pytest.mark.parametrize("program", ["pytorch", "jax", "native"])
def test_no_setting_of_pytorch_in_another_program(program: str) -> None:
    case = report(*map(finding, NAMED))
    case["trace"]["program"] = program  # type: ignore[typeddict-item]
    suggestions, advice = advise(steady(case, 1, 2), always(50_000_000))
    words = " ".join(f"{one['action']} {one['setting']}" for one in (*suggestions, *advice["unpredicted"]))
    assert ("torch" in words or "DataLoader" in words) == (program == "pytorch")


def test_what_cannot_be_predicted_is_said_once_with_the_reason() -> None:
    suggestions, advice = advise(report(finding("input")), lambda _: Refused("record the host"))
    assert not suggestions
    [untold] = advice["unpredicted"]
    assert (untold["code"], untold["why_not"]) == ("loader_workers", "record the host")


def test_a_setting_that_answers_two_causes_is_listed_once() -> None:
    case = report(finding("latency"), finding("bandwidth"), frameworks=["ddp"])
    _, advice = advise(case, lambda _: Refused("a test"))
    buckets = [one for one in advice["unpredicted"] if one["code"] == "bucket_size"]
    assert [one["finding"] for one in buckets] == ["latency"]


def test_a_loader_that_has_workers_is_given_more_not_one() -> None:
    waiting = finding("input")
    waiting["evidence"] = [
        {
            "rank": 0,
            "start_ns": 0,
            "dur_ns": 1,
            "note": "",
            "name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        }
    ]
    _, advice = advise(report(waiting), lambda _: Refused("not recorded"))
    [one] = advice["unpredicted"]
    assert "times as many worker processes" in one["action"]
    assert "1" not in one["setting"]["value"]


def test_what_saves_memory_alone_is_kept() -> None:
    same = Predicted(BEFORE, BEFORE, BEFORE, BEFORE, "3 GiB less reserved")
    words = suggestion("x", "fragmentation")
    memory = Proposal(finding("fragmentation"), words, python("n", "v"), outcome=same, gains_time=False)
    rule = Rule("memory", (type(words),), lambda *_: [memory])
    [one], _ = advise(report(finding("fragmentation"), bound_by="compute"), always(1), [rule])
    assert one["predicted"]["basis"] == "3 GiB less reserved"


ANSWERED = {
    "input",
    "sync",
    "launch",
    "gc",
    "host_other",
    "straggler",
    "latency",
    "bandwidth",
    "pipeline_bubble",
    "copy",
    "allocator",
}


def test_these_causes_have_a_rule() -> None:
    assert {code for rule in rules() for code in rule.answers} >= ANSWERED


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_a_rule_is_found_by_each_code_it_answers(rule: Rule) -> None:
    """Its file names them: others are not imported."""
    assert [code for code in rule.answers if rule not in rules_for([code])] == []


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_a_rule_declares_the_records_of_its_file(rule: Rule) -> None:
    """The table of docs/advice.md is made of them. What only others derive from lacks a code or a risk."""
    file = rule.propose.__module__
    made_here = [one for one in vars(sys.modules[file]).values() if isinstance(one, type) and one.__module__ == file]
    complete = {one for one in made_here if issubclass(one, Suggestion) and {"code", "risk"} <= set(dir(one))}
    of_file = (one for one in rules() if one.propose.__module__ == file)
    assert complete == {record for one in of_file for record in one.records}


@pytest.mark.parametrize("record", [record for rule in rules() for record in rule.records])
def test_words_ask_for_facts_that_there_are(record: type[Suggestion]) -> None:
    given = {field.name for field in fields(record)} | {"cost", "message", "finding"}
    assert [place for place in places(record) if place not in given and not hasattr(record, place)] == []
    assert record.answers
    assert record.sets
    assert record.action
    assert record.verify


def test_rules_of_one_place_stand_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is dropped in needs no place of its own."""
    same = [Rule(name, (), lambda *_: []) for name in ("b", "a")]
    monkeypatch.setattr(
        "gpuscope.analyzers.advice.rule.listed", lambda *_: [*same, Rule("c", (), lambda *_: [], place=1)]
    )
    assert [rule.name for rule in rules.__wrapped__()] == ["c", "a", "b"]


def test_the_costliest_late_rank_first() -> None:
    asked: list[Change] = []

    def predict(changes: Sequence[Change]) -> Refused:
        asked.extend(changes)
        return Refused("a test")

    case = report(finding("straggler", ranks=(3, 5)), bound_by="communication")
    case["stragglers"] = [
        {
            "rank": 5,
            "caused_wait_ns": 9,
            "root_wait_ns": 9,
            "phase": None,
            "recurrent": True,
            "reason": "device",
            "reason_why": "",
        },
        {
            "rank": 3,
            "caused_wait_ns": 1,
            "root_wait_ns": 1,
            "phase": None,
            "recurrent": True,
            "reason": "device",
            "reason_why": "",
        },
    ]
    advise(case, predict)
    assert [getattr(change, "rank", None) for change in asked] == [5, 3]


def test_a_rank_that_is_last_by_chance_is_not_to_blame() -> None:
    case = report(finding("straggler", ranks=(3,)), bound_by="communication")
    late = {"rank": 3, "caused_wait_ns": 9, "phase": None, "recurrent": False, "reason": None, "reason_why": ""}
    case["stragglers"] = [late]  # type: ignore[list-item]
    suggestions, advice = advise(case, always(50_000_000))
    assert not suggestions
    assert not advice["unpredicted"]
