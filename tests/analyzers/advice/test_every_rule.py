"""Every setting that a rule may suggest is tried somewhere."""

from __future__ import annotations

from pathlib import Path

from gpuscope.analyzers.advice.rule import rules

TESTS = Path(__file__).parents[2]


def test_every_setting_is_named_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert not [knob.code for rule in rules() for knob in rule.knobs if f'"{knob.code}"' not in tests]
