"""A recorded job whose experts take as long as their tokens say: the cost of uneven routing by design."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

import gpuscope

JOB = Path(__file__).with_name("expert_job.py")
EXTRA_NS = 0.6 * 256 * 200_000 * 3
"""The busiest of two ranks has 0.6 times the mean more: of 256 tokens, 200 µs each, in three layers."""


def test_uneven_routing_costs_what_its_tokens_take(
    record: Callable[..., SimpleNamespace], torchrun: tuple[str, ...]
) -> None:
    done = record("--wait", "1", "--active", "13", "--", *torchrun, JOB, LOADS=json.dumps([[1.6, 0.4], [0.4, 1.6]]),
                  STEPS="16")  # fmt: skip
    assert done.code == 0, done.err
    section = gpuscope.analyze(done.folder, steps=(8, 13)).report["experts"]
    assert section["cost"]["imbalance_ns"] == pytest.approx(EXTRA_NS, rel=0.2)
    assert [one["number"] for one in section["passes"]] == [0, 1, 2]
    assert all(one["imbalance"] == pytest.approx(1.6, rel=0.01) for one in section["passes"])


def test_another_placement_is_predicted(record: Callable[..., SimpleNamespace], torchrun: tuple[str, ...]) -> None:
    """The second half of the steps holds the experts as they belong by their tokens: it takes what the first half's
    replay says."""
    held = [[[0.9, 0.6], [0.3, 0.2]], [[0.9, 0.2], [0.6, 0.3]]]
    done = record("--wait", "1", "--active", "13", "--", *torchrun, JOB, EXPERTS=json.dumps(held), STEPS="16")
    assert done.code == 0, done.err
    section = gpuscope.analyze(done.folder, steps=(2, 7)).report["experts"]
    (placement,) = (one["predicted"] for one in section["gains"] if one["kind"] == "placement")
    told = json.loads((done.folder.parent / "told.json").read_text())
    # Other work on the machine slows one half more than the other.
    assert 0.9 * placement["low_ns"] <= median(told[9:14]) <= 1.1 * placement["high_ns"]
    assert placement["step_ns_after"] < 0.9 * placement["step_ns_before"]
