"""The table of causes: complete and unambiguous."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpuscope.analyzers.advice.rule import rules
from gpuscope.catalogue.cause import UNATTRIBUTED, Cause, FindingFacts
from gpuscope.catalogue.suggestion import BY_CODE, CAUSES, SHOWN_BY_NAME, cause_label, class_of
from gpuscope.schema.document import StragglerEntry
from gpuscope.words import vocabulary

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {name: value for name, value in vars(vocabulary).items() if name.isupper() and isinstance(value, str)}
IDS = {"ids": lambda cause: cause.code}


def test_codes_labels_and_looks_are_distinct() -> None:
    for values in (
        [cause.code for cause in CAUSES],
        [cause.label for cause in CAUSES],
        [cause.finding_code for cause in CAUSES],
        [(cause.look.colour, cause.look.fill) for cause in CAUSES],
    ):
        assert max(Counter(values).values()) == 1  # type: ignore[arg-type]


def test_looks_are_of_the_palette() -> None:
    assert {cause.look.colour for cause in CAUSES} <= set(COLOURS.values())


@pytest.mark.parametrize("cause", CAUSES, **IDS)
def test_the_documentation_has_a_section_at_its_anchor(cause: Cause) -> None:
    page, _, heading = cause.anchor.partition("#")
    assert f"\n### `{heading}`\n" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_host_causes_and_rules_refer_to_it() -> None:
    assert {cause.code for cause in SHOWN_BY_NAME} <= set(BY_CODE)
    assert all(BY_CODE[cause.code].idle for cause in SHOWN_BY_NAME)
    causes_answered = {code for rule in rules() for code in rule.answers} & set(BY_CODE)
    assert UNATTRIBUTED not in causes_answered


@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("input", "data loader (input)"),
        ("launch", "kernel launch overhead"),  # the code is one of its words
        ("latency", "small messages (latency)"),
        ("sync", "blocking synchronisation (sync)"),  # a part of a word is not the code
        ("host_other", "other host work (host_other)"),
        ("pipeline_bubble", "pipeline bubble"),
        ("tomorrow", "tomorrow"),
    ],
)
def test_a_label_ends_with_the_code_where_its_words_lack_it(code: str, label: str) -> None:
    assert cause_label(code) == label


def test_classes() -> None:
    assert (class_of("allocator"), class_of("gc"), class_of(UNATTRIBUTED)) == ("memory", "cpu", None)
    with pytest.raises(KeyError):
        class_of("tomorrow")


def test_messages_say_what_the_facts_add() -> None:
    late: StragglerEntry = {
        "rank": 3,
        "caused_wait_ns": 5,
        "root_wait_ns": 5,
        "phase": "forward",
        "operation": None,
        "recurrent": True,
        "reason": None,
    }  # type: ignore[typeddict-item]
    assert BY_CODE["gc"].text(FindingFacts(0.25)).endswith("idle: 25.0 % of the time")
    assert (
        BY_CODE["copy"]
        .text(FindingFacts(0.5, operations=1200, busy_ns=3_000_000))
        .endswith(": 50.0 % of the time; 1,200 copies and memsets took 3.000 ms in all, hidden or not")
    )
    straggler, facts = BY_CODE["straggler"], FindingFacts(0.5, stragglers=[late])
    assert straggler.text(facts).endswith("of the time; rank 3 is consistently late; it falls behind in forward")
    assert straggler.ranks is not None
    assert straggler.ranks(facts) == [3]
