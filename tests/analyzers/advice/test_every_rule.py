"""Every setting that a rule may suggest is tried somewhere, and no two rules suggest one."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.analysed import report
from simulator.catalogue import CASES
from simulator.judged import Case as SimulatedJob

from gpuscope.analyzers.advice.rule import Case, rules, suggestions
from gpuscope.analyzers.changes import Refused
from gpuscope.analyzers.run.runner import analyze
from gpuscope.schema.document import Report

TESTS = Path(__file__).parents[2]
SIMULATED = ("fsdp_no_prefetch", "allocator_strong", "pageable_copies", "latency_strong", "bubble_strong")


def test_every_setting_is_named_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert not [code for code in suggestions() if f'"{code}"' not in tests]


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
