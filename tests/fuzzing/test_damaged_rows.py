"""Rows that end before they start, or lack a time, in every table of every format: counted and told, never silent."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuscope
from fuzzing.damaged_rows import TURNED, damaged
from fuzzing.inputs import Mutator
from fuzzing.judge import analysed, compared
from fuzzing.seeds import SEEDS

TIMELINES = ("kineto", "kineto gz", "pftrace", "ascend", "nsys SQLite", "nsys parquetdir", "nsys arrowdir", "operations")


@pytest.mark.parametrize("name", TIMELINES)
def test_damaged_rows_are_told(tmp_path: Path, name: str) -> None:
    seed = next(seed for seed in SEEDS if seed.name == name)
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
