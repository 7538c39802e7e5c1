"""The table of causes: complete, unambiguous, and the only place where a cause's words and colours stand."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.analyzers.advice.rule import rules
from gpuscope.analyzers.device_time.host_cause import host_causes
from gpuscope.report.schema.document import StragglerEntry
from gpuscope.report.view import palette
from gpuscope.report.view.causes import BY_CODE, CAUSES, UNATTRIBUTED, Cause, FindingFacts, cause_label, class_of

ROOT = Path(__file__).resolve().parents[2]
TABLE = "gpuscope/report/view/causes.py"
COLOURS = {name: value for name, value in vars(palette).items() if name.isupper()}
IDS = {"ids": lambda cause: cause.code}


def files(*suffixes: str) -> Iterator[Path]:
    """The files of the program that are not tests, each once (the links in gpuscope/ lead to the other folders)."""
    for folder in ("gpuscope", "analyzers", "instrumented_runtime", "dashboards"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and (folder != "gpuscope" or path.parts[len(ROOT.parts) + 1] not in
                                            ("analyzers", "instrumented_runtime", "dashboards")):  # fmt: skip
                yield path


def texts(path: Path) -> Iterator[str]:
    """String constants of a Python file; of a template or script, all of it."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield source
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def said(path: Path) -> set[str]:
    return {re.sub(r"^idle: ", "", text.strip()) for text in texts(path)}


@pytest.mark.parametrize("cause", CAUSES, **IDS)
def test_no_other_file_spells_its_label_or_message(cause: Cause) -> None:
    """A label that a whole string consists of, or a message anywhere in one."""
    found = [
        str(path.relative_to(ROOT))
        for path in files(".py", ".j2", ".js")
        if cause.label in said(path)
        or f"{cause.label} ({cause.code})" in said(path)
        or any(cause.message in text for text in texts(path))
    ]
    assert found == [TABLE]


@pytest.mark.parametrize("name", sorted(COLOURS))
def test_colours_stand_in_the_palette_alone(name: str) -> None:
    """But for the style sheet, which can't read it: there only the colour of what has the focus."""
    found = {
        str(path.relative_to(ROOT))
        for path in files(".py", ".j2", ".js", ".css")
        if COLOURS[name].lower() in path.read_text(encoding="utf-8").lower()
    }
    assert found - {"dashboards/assets/gpuscope.css"} == {"gpuscope/report/view/palette.py"}


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
    assert {cause.code for cause in host_causes()} <= set(BY_CODE)
    assert all(BY_CODE[cause.code].idle for cause in host_causes())
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
        "rank": 3, "caused_wait_ns": 5, "root_wait_ns": 5, "phase": "forward", "operation": None, "recurrent": True,
        "reason": None,
    }  # type: ignore[typeddict-item]  # fmt: skip
    assert BY_CODE["gc"].text(FindingFacts(0.25)).endswith("idles: 25.0 % of the time")
    assert (
        BY_CODE["copy"]
        .text(FindingFacts(0.5, operations=1200, busy_ns=3_000_000))
        .endswith(": 50.0 % of the time; 1,200 copies and memsets took 3.000 ms in all, hidden or not")
    )
    straggler, facts = BY_CODE["straggler"], FindingFacts(0.5, stragglers=[late])
    assert straggler.text(facts).endswith("of the time; rank 3 is consistently last; it falls behind in forward")
    assert straggler.ranks is not None
    assert straggler.ranks(facts) == [3]
