"""The reference of JSON keys is made from the types that declare them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpuscope.report.published import json_schema

DOCS = Path(__file__).resolve().parents[2] / "docs"
"""Words of docs/*.md beside what is generated: a reader's evening, not a week."""


@pytest.fixture(scope="module")
def docs() -> Iterator[tuple[ModuleType, ModuleType]]:
    sys.path.insert(0, str(DOCS))
    try:
        import generate
        import keys

        yield generate, keys
    finally:
        sys.path.remove(str(DOCS))
        for name in ("generate", "keys"):
            sys.modules.pop(name, None)


def test_a_schema_holds_the_text_of_links_alone() -> None:
    """Pages of the manual are not beside a schema."""
    made = json_schema("report")["$defs"]["RankEntry"]
    assert "sums over the judged steps;" in " ".join(made["description"].split())
    linked = json_schema("report", links=True)["$defs"]["RankEntry"]
    assert "](definitions.md#what-is-judged)" in linked["description"]


def test_every_part_of_the_report_has_its_section(docs: tuple[ModuleType, ModuleType]) -> None:
    text = (DOCS / "report.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    headings = set(re.findall(r"^#+ `(\w+)(?:\[\])?`$", text, re.MULTILINE))
    report = json_schema("report")["$defs"]["Report"]["properties"]
    assert named == set(report) - docs[1].PROFILE
    assert headings <= set(report)
    assert headings >= docs[1].PROFILE
    assert {"trace", "verdict", "ranks", "findings", "suggestions", "memory"} <= headings


def test_a_row_has_type_and_meaning_in_the_words_of_json(docs: tuple[ModuleType, ModuleType]) -> None:
    """By hand, from `Verdict` and `FindingEntry` in gpuscope/schema/document.py."""
    text = docs[1].document("report", "##")
    assert "| `verdict.confidence` | number | 0 if it abstains" in text
    assert "| `findings[].severity` | string | `high`, `medium` or `low` |" in text
    assert "None" not in re.sub(r"`[^`]*`", "", docs[1].flat("diff"))


def test_the_words_of_each_page_are_counted(docs: tuple[ModuleType, ModuleType]) -> None:
    counted = docs[0].words()
    assert {"definitions.md", "findings.md", "tutorial.md"} <= set(counted)
    assert all(counted.values())
