"""Findings by their facts: the record comes back from a report, and a report that was changed breaks nothing."""

from __future__ import annotations

import json

import pytest

from gpuscope.catalogue.finding import Finding, headline, kinds, made, severity_of, shows, words_of
from gpuscope.catalogue.findings.network import LinkAtPeak
from gpuscope.catalogue.findings.pipelines import SlowStage
from gpuscope.catalogue.findings.steps import Startup

SLOW = SlowStage(3, 4, 2, 1.219, True, ("forward", 6, 144_000_000, 85_000_000))


def test_every_kind_says_how_it_is_recognised_and_what_helps() -> None:
    assert len(kinds()) > 40
    assert [code for code, kind in kinds().items() if not (kind.__doc__ and kind.recognised and kind.helps)] == []


@pytest.mark.parametrize(
    "words", [SLOW, Startup([("cuModuleLoadData", 0.4)], 0.5, 0), LinkAtPeak([("NVLink", "tx", 0.9)])]
)
def test_a_record_comes_back_from_json(words: Finding) -> None:
    entry = json.loads(json.dumps(made(words, ranks=[1, 0], share=0.05)))
    again = words_of(entry)
    assert again is not None
    assert (again.message(), headline(entry), shows(entry)) == (entry["message"], words.headline(), words.shows())
    assert (entry["ranks"], entry["severity"]) == ([0, 1], words.severity or "medium")


@pytest.mark.parametrize("facts", [None, {}, {"stage": 3}, {**vars(SLOW), "slowest": 5}, {**vars(SLOW), "more": 1}])
def test_facts_that_do_not_fit_leave_the_message(facts: dict[str, object] | None) -> None:
    entry = made(SLOW, ranks=[1])
    entry["facts"] = facts  # type: ignore[typeddict-item]
    assert shows(entry) == entry["message"]


def test_a_share_has_a_severity() -> None:
    assert [severity_of(share) for share in (0.0, 0.0299, 0.03, 0.0999, 0.1, 1.0)] == [
        "low",
        "low",
        "medium",
        "medium",
        "high",
        "high",
    ]
