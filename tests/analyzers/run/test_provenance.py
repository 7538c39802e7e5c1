"""Where figures come from stands beside them: measured, inferred or assumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import call, kernel, write

import gpuscope
from gpuscope.analyzers.facts.call_order import Host, Placed, Wire
from gpuscope.analyzers.topology.counter_means import peak
from gpuscope.analyzers.what_if_changes import LinkSpeed, Overlap, Predicted
from gpuscope.collective_costs.message_cost import assume
from gpuscope.trace.schema import NA

TWO = Placed(2, 1, ("NVIDIA A100-SXM4-80GB",), (0, 1))


def wires(link: str, width: int, rate: int) -> tuple[Wire, ...]:
    return tuple(Wire(f"GPU{own}", f"GPU{1 - own}", link, width, rate) for own in (0, 1))


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ((), "assumed"),  # the model alone says which links it has
        ((Host("topo.xml", wires("nvlink", 12, NA)),), "inferred"),  # its links are recorded, their rate is the model's
        ((Host("topo.xml", wires("pcie", 16, 31_500_000_000)),), "measured"),
        ((Host("topo.xml", wires("nvlink", 12, NA)[:1]),), None),  # one of the two GPUs has none: no peak
    ],
)
def test_of_a_links_peak(hosts: tuple[Host, ...], expected: str | None) -> None:
    found = peak(TWO, hosts)
    assert (found.provenance, found.gbps is None) == (expected, expected is None)


def test_of_a_prediction_that_rests_on_a_links_figures(samples: Path) -> None:
    """gloo's messages of one size give no fit; what overlap costs is in the trace."""
    replayer = gpuscope.analyze(samples / "ddp_healthy").replayer
    assert replayer is not None
    assert assume("gloo", "", 2).assumed
    link, late = LinkSpeed(2.0), Overlap(False)
    outcomes = [replayer.predict(change) for change in (link, late, [link, late])]
    found = [outcome.provenance for outcome in outcomes if isinstance(outcome, Predicted)]
    assert found == ["assumed", "inferred", "assumed"]


def test_of_steps_and_clocks(samples: Path, tmp_path: Path) -> None:
    report = gpuscope.analyze(samples / "ddp_healthy").report
    assert (report["steps_provenance"], report["trace"]["clock_provenance"]) == ("measured", "measured")
    assert report["slowdown"]["provenance"] == "inferred"  # operations found from ranges
    names = ("gemm", "relu", "norm", "softmax", "adam")
    repeated = [
        part
        for step in range(12)
        for place, name in enumerate(names)
        for at in [step * 100 + place * 15]
        for part in (call(at - 5, 2, step * 10 + place + 1), kernel(at, 10, step * 10 + place + 1, name))
    ]
    alone = gpuscope.analyze(write(tmp_path / "rank0.json", *repeated)).report
    assert (alone["steps_basis"], alone["steps_provenance"]) == ("repetition of the kernel sequence", "inferred")
    assert alone["trace"]["clock_provenance"] is None


def test_bandwidth_of_unmatched_collectives_is_a_lower_bound(samples: Path) -> None:
    whole = gpuscope.analyze(samples / "ddp_healthy").report["collectives"]
    alone = gpuscope.analyze(samples / "ddp_healthy", ranks=[0]).report["collectives"]
    assert {entry["lower_bound"] for entry in whole if entry["algbw_gbps"]} == {False}
    assert {entry["lower_bound"] for entry in alone if entry["algbw_gbps"]} == {True}
