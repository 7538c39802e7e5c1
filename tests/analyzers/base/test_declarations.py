"""Analyses declare what they need and give; each section and cause of the report is declared once."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, write

import gpuscope
from gpuscope.analyzers.base.analyzer import Analyzer, FileAnalyzer, Result, analyzers_of
from gpuscope.analyzers.base.lanes import COLLECTIVES, DECLARED, KERNELS, REPLAY, Section, Sections, merged
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, WhatIfAnalyzer
from gpuscope.analyzers.run import reporting
from gpuscope.catalogue.suggestion import BY_CODE
from gpuscope.errors import AnalysisError
from gpuscope.schema.document import Diagnosis, KernelEntry
from gpuscope.trace.schema import SCHEMAS

ANALYZERS: tuple[Analyzer, ...] = tuple(
    analyzer for kind in (FileAnalyzer, RunAnalyzer, WhatIfAnalyzer) for analyzer in analyzers_of(kind)
)
BUILT = {
    "schema_version",
    "gpuscope_version",
    "trace",
    "verdict",
    "ranks",
    "steps",
    "steps_basis",
    "steps_provenance",
    "set_apart",
    "findings",
    "ideal",
    "serving",
    "shared",
}
"""What `reporting` makes itself."""


def test_every_section_of_the_report_is_declared_once() -> None:
    keys = [section.key for section in DECLARED]
    assert len(keys) == len(set(keys))
    assert {section.key for section in DECLARED if section.printed} == Diagnosis.__annotations__.keys() - BUILT


def test_every_section_and_cause_is_given_by_one_analysis() -> None:
    given = Counter(section.key for analyzer in ANALYZERS for section in analyzer.sections)
    assert given == dict.fromkeys({section.key for section in DECLARED} - {REPLAY.key}, 1)
    causes = Counter(cause for analyzer in ANALYZERS for cause in analyzer.causes)
    assert causes == dict.fromkeys(BY_CODE, 1)


@pytest.mark.parametrize("analyzer", ANALYZERS, ids=lambda analyzer: analyzer.name)
def test_every_analysis_says_what_it_needs_and_how_to_record_it(analyzer: Analyzer) -> None:
    assert analyzer.needs
    for need in analyzer.needs:
        assert need.how
        assert need.present is not None or need.what in SCHEMAS


def test_what_is_not_declared_is_an_error_at_import() -> None:
    with pytest.raises(ValueError, match="section 'colectives': declare"):
        Section[int]("colectives")
    with pytest.raises(ValueError, match=r"'mine' gives \['coffee'\]"):
        FileAnalyzer("mine", lambda trace, lanes: Result("mine"), causes=("coffee",))  # noqa: ARG005
    with pytest.raises(ValueError, match=r"'mine' gives \['tea'\]"):
        FileAnalyzer("mine", lambda trace, lanes: Result("mine"), sections=(Section[int]("tea", printed=False),))  # noqa: ARG005


def test_a_run_without_communication_is_no_doubt_but_one_without_a_device_is(tmp_path: Path) -> None:
    entries = {
        entry["name"]: entry
        for entry in gpuscope.analyze(write(tmp_path / "rank0.json", call(-5, 2, 1), kernel(0, 80, 1))).report[
            "analyzers"
        ]
    }
    assert (entries["communication"]["status"], entries["communication"]["applicable"]) == ("skipped", False)
    assert (entries["idle"]["status"], entries["idle"]["applicable"]) == ("ok", True)
    without = gpuscope.analyze(write(tmp_path / "other" / "rank0.json", call(-5, 2, 1))).report["analyzers"]
    (entry,) = [entry for entry in without if entry["name"] == "idle"]
    assert (entry["status"], entry["applicable"]) == ("skipped", True)
    assert entry["why"].startswith("no device events: record the device's activity")


# ---- how several files' sections become one ----


def entry(name: str, count: int, dur: int, rate: float | None, category: str = "matmul") -> KernelEntry:
    return {
        "name": name,
        "category": category,
        "count": count,
        "dur_ns": dur,
        "mean_ns": dur // count,
        "operator": f"op of {dur}",
        "known_by": None,
        "min_ns": dur // count - 1,
        "max_ns": dur // count + 1,
        "share_frac": 1.0,
        "flops_per_s": rate,
        "precision": "bf16" if rate else None,
        "peak_frac": rate / 10 if rate else None,
    }


def of(section: Section[Any], value: Any) -> Sections:
    sections = Sections()
    sections[section] = value
    return sections


def test_kernels_of_several_files_are_added_up() -> None:
    """a: 2 + 3 launches, 100 + 300 ns, (1 × 100 + 3 × 300) / 400 = 2.5 FLOP/s; b: 600 of 1000 ns, never rated."""
    first = [entry("a", 2, 100, 1.0), entry("b", 1, 600, None)]
    assert merged([of(KERNELS, first), of(KERNELS, [entry("a", 3, 300, 3.0)])])[KERNELS] == [
        entry("b", 1, 600, None) | {"share_frac": 0.6},
        entry("a", 5, 400, 2.5)
        | {
            "mean_ns": 80,
            "operator": "op of 300",
            "min_ns": 49,
            "max_ns": 101,
            "share_frac": 0.4,
            "peak_frac": pytest.approx(0.25),
        },
    ]


def test_the_same_name_in_another_category_is_another_kernel() -> None:
    both = [of(KERNELS, [entry("a", 1, 10, None)]), of(KERNELS, [entry("a", 1, 30, None, "other")])]
    assert [(one["category"], one["dur_ns"]) for one in merged(both)[KERNELS]] == [("other", 30), ("matmul", 10)]


def test_a_section_of_one_analysis_is_never_overwritten() -> None:
    assert merged([of(COLLECTIVES, []), Sections()])[COLLECTIVES] == []
    with pytest.raises(AnalysisError, match="2 analyses gave"):
        merged([of(COLLECTIVES, []), of(COLLECTIVES, [])])


# ---- built once ----


def test_the_report_is_not_edited_once_it_is_built(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What advice was given on is what the report says, to the letter."""
    seen: list[Any] = []
    advise = reporting.advise

    def kept(diagnosis: Diagnosis, *rest: Any, **more: Any) -> Any:
        seen.append(copy.deepcopy(diagnosis))
        return advise(diagnosis, *rest, **more)

    monkeypatch.setattr(reporting, "advise", kept)
    report = gpuscope.analyze(samples / "pp_few_micro_batches").report
    assert [{key: report[key] for key in Diagnosis.__annotations__ if key in report}] == seen  # type: ignore[literal-required]
    assert {"suggestions", "advice", "problems", "analyzers"} == report.keys() - seen[0].keys()
