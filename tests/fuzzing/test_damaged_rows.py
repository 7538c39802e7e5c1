"""Rows that end before they start, or lack a time, in every table of every format: counted and told, never silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.nsys_schemas import everything

import gpuscope
from fuzzing.damaged_rows import TURNED, damaged
from fuzzing.inputs import Mutator
from fuzzing.judge import analysed, compared
from fuzzing.seeds import SEEDS, Seed
from gpuscope.analyzers.verdict.verdict import MAX_CONFIDENCE, Doubt, _confidence

TIMELINES = (
    "kineto",
    "kineto gz",
    "pftrace",
    "ascend",
    "nsys SQLite",
    "nsys parquetdir",
    "nsys arrowdir",
    "operations",
)

EVERY_TABLE = Seed("every table of nsys", "export.sqlite", lambda _: everything(), tabular="sqlite")


@pytest.mark.parametrize("name", [*TIMELINES, EVERY_TABLE.name])
def test_damaged_rows_are_told(tmp_path: Path, name: str) -> None:
    seed = next(seed for seed in (*SEEDS, EVERY_TABLE) if seed.name == name)
    mutator = Mutator(seed, tmp_path)
    whole = analysed(mutator.whole)
    lost = {problem.code for problem in gpuscope.open_trace(mutator.whole).problems if problem.severity == "data_loss"}
    silent = []
    for kind, damage, data in damaged(seed, mutator.data):
        path = mutator.write(data, tmp_path / "damaged")
        if compared(analysed(path), whole, is_edit=False).is_bad:
            silent.append((kind, damage))
        told = {problem.code for problem in gpuscope.open_trace(path).problems if problem.severity == "data_loss"}
        if damage == TURNED and told <= lost:
            silent.append((kind, damage, "no data loss"))
    assert silent == []


def test_the_least_loss_takes_confidence() -> None:
    """Also from a verdict that is otherwise as certain as one can be."""
    certain = [Doubt(1.0, "nothing"), Doubt(1.0, "nothing lost", of_loss=True)]
    assert _confidence(certain) == MAX_CONFIDENCE
    assert _confidence([*certain, Doubt(2_000 / 2_001, "one event of 2,001", of_loss=True)]) < MAX_CONFIDENCE
