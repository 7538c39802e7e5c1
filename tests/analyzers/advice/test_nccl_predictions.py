"""Settings of NCCL whose new transfer times are known: the replay makes a step of them, with a range."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from helpers.nccl_logs import chosen, variables
from simulator.catalogue import COMPUTE
from simulator.job import MIB, Job

from gpuscope.analyzers.advice.logged_nccl import at_best, at_least, line_rates, older_than
from gpuscope.analyzers.advice.rule import Case
from gpuscope.analyzers.collectives.message_cost import CostModel
from gpuscope.analyzers.frame.changes import Change, LineRate, Predicted, Refused
from gpuscope.analyzers.nccl.cost.cost_model import Choice, Place
from gpuscope.analyzers.nccl.cost.predicted_cost import chosen_unasked, predict
from gpuscope.report.schema.document import Diagnosis, Report

sys.path[:0] = [str(Path(__file__).parent)]
faults = importlib.import_module("test_faults_put_in")
analysed, nccl_log, step, suggestion, told = (
    faults.analysed, faults.nccl_log, faults.step, faults.suggestion, faults.told,
)  # fmt: skip

TWO_SIZES = replace(COMPUTE, layers=5, gemms=5, rate=15.0)
"""Buckets of four gradients of 6.4 MiB, the last of one."""
LINE = 450.0
"""GB/s of an H100's 18 NVLinks."""


def test_direct_copies_switched_off_and_on_again(tmp_path: Path) -> None:
    """Through host memory at 15 GB/s; over NVLink healthy links carry half to 85 % of their line rate."""
    slow = nccl_log(variables(NCCL_P2P_DISABLE="1"), via="SHM/direct/direct")
    found = suggestion(analysed(TWO_SIZES, tmp_path, log=slow), "nccl_transport")
    predicted = found["predicted"]
    assert predicted["provenance"] == "assumed"
    for share in (0.55, 0.7, 0.8):
        mended = analysed(replace(TWO_SIZES, rate=share * LINE), tmp_path, log=nccl_log())
        assert predicted["low_ns"] <= step(mended) <= predicted["high_ns"]
        assert "nccl_transport" not in told(mended)


def test_without_the_links_rate_nothing_is_predicted(tmp_path: Path) -> None:
    """Between hosts no topology names the ports: the commands measure both ways."""
    log = nccl_log(variables(NCCL_IB_DISABLE="1"), nodes=2, via="NET/Socket/0")
    report = analysed(TWO_SIZES, tmp_path, log=log)
    assert not [one for one in report["suggestions"] if one["code"] == "nccl_transport"]
    (left,) = [one for one in report["advice"]["unpredicted"] if one["code"] == "nccl_transport"]
    assert "all_reduce_perf" in left["verify"]


def sizes_of(job: Job, folder: Path) -> list[int]:
    return sorted({row["bytes"] for row in analysed(job, folder)["bandwidth"]})


def forced(job: Job, folder: Path, **values: str) -> Report:
    small, large = sizes_of(job, folder)
    choices = chosen({small: "RING LL", large: "RING LL"}, channels=16)
    return analysed(job, folder, log=nccl_log(choices, variables(**values)))


def test_a_forced_protocol_is_taken_away(tmp_path: Path) -> None:
    """LL has half of what the links carry: large messages gain by another protocol, small ones stay."""
    report = forced(TWO_SIZES, tmp_path, NCCL_PROTO="LL")
    predicted = suggestion(report, "nccl_choice")["predicted"]
    assert predicted["step_ns_after"] < 0.95 * predicted["step_ns_before"]
    assert "NCCL 2.29's cost model" in predicted["basis"]
    two = forced(TWO_SIZES, tmp_path, NCCL_PROTO="LL", NCCL_ALGO="Ring")
    assert "nccl_choice" not in {one["code"] for one in two["suggestions"]}
    assert "nccl_choice" in {one["code"] for one in two["advice"]["unpredicted"]}


HGX = Place(8, 1, nvlink=True, generation="hopper")
FITTED = CostModel(20_000.0, 1 / 200, 0.05, "fitted to 4 message sizes")


def test_what_nccl_would_have_chosen() -> None:
    """Small messages by LL, large ones over switches that reduce; what it chooses already is no change."""
    ring = Choice("ring", "simple", 16)
    assert chosen_unasked("all_reduce", 4096, HGX, ring, FITTED).protocol == "ll"
    assert chosen_unasked("all_reduce", 1 << 30, HGX, ring, FITTED).algorithm == "nvls"
    assert chosen_unasked("all_gather", 1 << 30, replace(HGX, nvlink=False), ring, FITTED) == ring
    ll128 = Choice("ring", "ll128", 16)
    assert isinstance(predict("all_reduce", 1 << 20, HGX, ring, ll128, FITTED), Refused)
    assert not isinstance(predict("all_reduce", 1 << 20, HGX, ring, ll128, FITTED, forced=False), Refused)


@pytest.mark.parametrize(("size", "predicted"), [(16 * MIB, True), (512 * MIB, False)])
def test_symmetric_memory_as_published(size: int, predicted: bool, tmp_path: Path) -> None:
    """On the links that were measured, for the sizes that were; a larger one is no advice at all."""
    report = analysed(
        replace(faults.GATHERED, layer_bytes=size, rate=20.0 if predicted else 200.0), tmp_path, log=nccl_log()
    )
    found = [one for one in report["suggestions"] if one["code"] == "nccl_symmetric"]
    assert bool(found) is predicted
    for one in found:
        assert "published" in one["predicted"]["basis"]
        assert one["predicted"]["provenance"] == "assumed"


def case_of(versions: list[str], outcome: Predicted | Refused) -> tuple[Case, list[Change]]:
    asked: list[Change] = []

    def answer(changes: Any) -> Predicted | Refused:
        asked.extend(changes)
        return outcome

    row = {"tool": "trace", "group_size": 16, "peak_gbps": 50.0, "link": "8 network ports"}
    report = {"bandwidth": [row], "nccl": {"versions": versions}}
    return Case(cast(Diagnosis, report), answer), asked


def test_what_no_setting_can_be_better_than() -> None:
    case, asked = case_of(["2.29.2+cuda13.0"], Predicted(100, 80, 70, 90, ""))
    assert "100 ns → 70 ns" in at_best(case)
    assert asked == [LineRate(((16, 50.0),))]
    assert line_rates(case, between=False) == ()
    assert at_best(case_of([], Refused("no"))[0]) == ""


def test_versions_of_nccl() -> None:
    case, _ = case_of(["2.29.2+cuda13.0", "2.18.3"], Refused(""))
    assert older_than(case, (2, 19)) == "2.18.3"
    assert not at_least(case, (2, 19))
    assert at_least(case, (2, 18))
    assert not at_least(case_of([], Refused(""))[0], (2, 0))
