"""Suggestions carried out in the simulator: what each does to a job, and what counts as too much promised."""

from __future__ import annotations

from typing import Any

import pytest
from simulator.job import MIB, Job
from simulator.structures import FAULTS

from benchmarks.verdicts.advised import NAMED_BY, Figure, counterpart
from gpuscope.analyzers.advice.rule import suggestions


@pytest.mark.parametrize(
    ("code", "facts", "job", "changed"),
    [
        ("bucket_size", {"bytes": 25 * MIB, "first_bytes": MIB}, Job(), {"first_bucket": MIB}),
        ("wire_bytes", {}, Job(), {"wire": 0.5}),
        ("fsdp_group_modules", {"layers": 2}, Job(), {"layers": 3, "gemms": 8, "smalls": 8, "layer_bytes": 64 * MIB}),
        ("slow_rank", {"rank": 1}, Job(device_slow={1: 1.5}), {"device_slow": {}}),
        ("late_host", {"rank": 1, "ranks": [1]}, Job(gc_ns=9, gc_ranks=(0, 1)), {"gc_ranks": (0,)}),
        ("even_data", {"rank": 0}, Job(data_scale={0: 1.5}), {"data_scale": {0: 1.25, 1: 1.25}}),
        ("loader_workers", {"times": 2.0}, Job(workers=3), {"workers": 6}),
        (
            "remove_syncs",
            {"places": [{"call": "cudaDeviceSynchronize", "copy": None}]},
            Job(device_syncs=3),
            {"device_syncs": 0},
        ),
        (
            "remove_syncs",
            {"places": [{"call": "cudaStreamSynchronize", "copy": "DtoH"}]},
            Job(items=3),
            {"read_late": True},
        ),
    ],
)
def test_a_suggestion_is_carried_out(code: str, facts: dict[str, Any], job: Job, changed: dict[str, Any]) -> None:
    after = counterpart(code, facts, job)
    assert after is not None
    assert {name: value for name, value in vars(after).items() if value != getattr(job, name)} == changed


def test_what_the_simulator_can_not_do_is_left_out() -> None:
    assert counterpart("fp8", {}, Job()) is None
    assert counterpart("fsdp_group_modules", {"layers": 4}, Job(layers=6)) is None
    assert counterpart("slow_rank", {"rank": 0}, Job(device_slow={1: 1.5})) is None


@pytest.mark.parametrize(("told", "over"), [(80, False), (86, False), (83, False), (78, True)])
def test_too_much_promised_is_half_as_much_again_and_a_fiftieth_of_the_step(told: int, over: bool) -> None:
    """Of 100 the change saves 12: 12 · 1.5 + 2 is 20."""
    assert Figure("a job", "wire_bytes", 100, 100, told, told - 1, told + 1, 88).overclaims is over


def test_every_fault_is_mended_by_suggestions_that_exist() -> None:
    assert set(NAMED_BY) == set(FAULTS)
    assert {code for codes in NAMED_BY.values() for code in codes} <= set(suggestions())
