"""Each suggestion has a job on which it fires and one on which it is silent, and no two rules suggest one setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.analysed import report
from helpers.trials import ELSEWHERE, Elsewhere, table
from simulator.catalogue import CASES
from simulator.judged import Case as SimulatedJob

from gpuscope.analyzers.advice.rule import Case, rules, suggestions
from gpuscope.analyzers.run.runner import analyze
from gpuscope.analyzers.what_if_changes import Refused
from gpuscope.schema.document import Report

TESTS = Path(__file__).parents[2]
SIMULATED = ("fsdp_no_prefetch", "allocator_strong", "pageable_copies", "latency_strong", "bubble_strong")


def test_every_suggestion_has_a_job_on_which_it_fires_and_one_on_which_it_is_silent() -> None:
    assert list(table()) == list(suggestions())


@pytest.mark.parametrize("one", ELSEWHERE, ids=lambda one: one.code)
def test_what_a_row_names_is_a_test_of_that_suggestion(one: Elsewhere) -> None:
    for place in filter(None, (one.fires, one.silent)):
        file, _, name = place.partition("::")
        (path,) = TESTS.rglob(file)
        text = path.read_text(encoding="utf-8")
        assert f"\ndef {name}(" in text
        if place == one.fires:
            assert f'"{one.code}"' in text


def proposed_twice(found: Report) -> list[tuple[str, str, str]]:
    """(setting, rule, other rule) of settings that two rules propose for one finding: one of them would be lost."""
    case = Case(found, lambda _: Refused("not tried"))
    twice = []
    for finding in found["findings"]:
        by_setting: dict[tuple[str, str], str] = {}
        for rule in rules():
            for proposal in rule.propose(case, finding) if finding["code"] in rule.answers else ():
                setting = proposal.setting["name"], proposal.setting["value"]
                if by_setting.setdefault(setting, rule.name) != rule.name:
                    twice.append((setting[0], by_setting[setting], rule.name))
    return twice


@pytest.mark.parametrize("sample", ["ddp_slow_loader", "ddp_tiny_buckets", "pp_few_micro_batches", "ddp_slow_rank"])
def test_no_two_rules_propose_one_setting_for_a_sample(sample: str, samples: Path) -> None:
    assert proposed_twice(report(samples / sample)) == []


@pytest.mark.parametrize("case", [case for case in CASES if case.name in SIMULATED], ids=lambda case: case.name)
def test_no_two_rules_propose_one_setting_for_a_job(case: SimulatedJob, tmp_path: Path) -> None:
    assert proposed_twice(analyze(case.write(tmp_path)).report) == []
