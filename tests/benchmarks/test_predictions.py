"""Predicted against measured: every case is a job that can run, and what its numbers say."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")  # the faults of a case are the runtime's

from benchmarks.advice.cases import CASES, Case
from benchmarks.advice.compare import Outcome, summary, table
from gpuscope.instrumented_runtime.train.faults import parse_faults
from gpuscope.instrumented_runtime.train.settings.parallel_spec import assemble, validate


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_sides_of_a_case_can_run_and_differ(case: Case) -> None:
    configs = []
    for side in (case.before, case.after):
        config = assemble(parallel=case.parallel, world_size=2, settings=[*case.common, *side.settings])
        for fault in parse_faults(side.faults):
            config = fault.configure(config, 2)
        validate(config, 2)
        configs.append((config, side))
    assert configs[0] != configs[1]


def test_what_the_numbers_say() -> None:
    good = Outcome(CASES[0], 100e6, 80e6, predicted=84e6, low=79e6, high=90e6, rounds=7)
    bad = Outcome(CASES[1], 100e6, 50e6, predicted=60e6, low=58e6, high=62e6, rounds=7)
    none = Outcome(CASES[2], 100e6, 50e6, refused="no loader")
    assert (good.held, good.error, bad.held, bad.error) == (True, pytest.approx(0.05), False, pytest.approx(0.2))
    # The median of 5 % and 20 %.
    assert summary([good, bad, none]) == (
        "1 of 2 ranges hold the measured time, 1 refused; median error 12.5%, worst 20.0%."
    )
    assert "refused: no loader" in table([good, bad, none])
