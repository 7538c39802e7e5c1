"""Settings of NCCL whose new transfer times are known: the replay makes a step of them, with a range."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

from helpers.nccl_logs import chosen, variables
from helpers.trials import nccl_log
from simulator.catalogue import COMPUTE
from simulator.job import Job

from gpuscope.analyzers.advice.prediction_cache import older_than
from gpuscope.analyzers.advice.rule import Case
from gpuscope.analyzers.nccl.predicted_cost import chosen_unasked, predict
from gpuscope.analyzers.what_if_changes import Refused
from gpuscope.collective_costs.bus_bandwidth import Choice, Place
from gpuscope.collective_costs.message_cost import CostModel
from gpuscope.schema.document import Diagnosis, Report

sys.path[:0] = [str(Path(__file__).parent)]
faults = importlib.import_module("test_faults_put_in")
analysed, step, suggestion, told = faults.analysed, faults.step, faults.suggestion, faults.told

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


TOPOLOGY = """<system version="1"><cpu numaid="0">
 <pci busid="0000:20:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" rank="0"/></pci>
 <pci busid="0000:21:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
  <nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic></pci></cpu></system>"""
"""One GPU beside a card of 50 GB/s."""


def test_gpudirect_switched_off_and_on_again(tmp_path: Path) -> None:
    """Through host memory at 15 GB/s; healthy cards carry half to 85 % of their line rate."""
    log = nccl_log(variables(NCCL_NET_GDR_LEVEL="LOC"), nodes=2, via="NET/IB/0")
    predicted = suggestion(analysed(TWO_SIZES, tmp_path, log=log, topology=TOPOLOGY), "nccl_gpu_direct")["predicted"]
    assert predicted["step_ns_after"] < predicted["step_ns_before"]
    mended = analysed(replace(TWO_SIZES, rate=0.7 * 50), tmp_path, log=nccl_log(nodes=2, via="NET/IB/0/GDRDMA"))
    assert predicted["low_ns"] <= step(mended) <= predicted["high_ns"]
    assert "nccl_gpu_direct" not in told(mended)


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


def test_switches_that_reduce_are_given_back(tmp_path: Path) -> None:
    """Eight H100 behind switches: NCCL would reduce large messages in them."""
    eight = replace(TWO_SIZES, ranks=8)
    small, large = sizes_of(eight, tmp_path)
    log = nccl_log(
        chosen({small: "RING SIMPLE", large: "RING SIMPLE"}, channels=16), variables(NCCL_NVLS_ENABLE="0"), ranks=8
    )
    predicted = suggestion(analysed(eight, tmp_path, log=log), "nccl_nvls")["predicted"]
    assert predicted["step_ns_after"] < predicted["step_ns_before"]


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


def test_versions_of_nccl() -> None:
    report = {"nccl": {"versions": ["2.29.2+cuda13.0", "2.18.3"]}}
    case = Case(cast(Diagnosis, report), lambda _: Refused(""))
    assert older_than(case, (2, 19)) == "2.18.3"
    assert older_than(case, (2, 18)) == ""
