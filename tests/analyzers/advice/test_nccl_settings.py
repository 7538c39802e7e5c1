"""Advice from NCCL's log and from measured times: what is unset, and which sizes get another choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.collectives import collective, run_of
from helpers.kineto import call, kernel, note
from helpers.nccl_logs import MIB, chosen, communicator, nccl_tests, said, variables, write

import gpuscope
from gpuscope.analyzers.nccl.nccl_grammar import wrong
from gpuscope.schema.document import Report

KIB = 1 << 10


def report(*paths: Path) -> Report:
    return gpuscope.analyze(*paths).report


def unset(found: Report) -> dict[str, str]:
    """What is to be unset, with the codes."""
    return {
        one["setting"]["name"]: one["code"]
        for one in found["advice"]["unpredicted"]
        if one["setting"]["value"] == "unset"
    }


INSIDE = [said("Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct", pid=100)]


@pytest.mark.parametrize(
    ("set_to", "taken"),
    [
        ({"NCCL_NET": "FasTrak", "NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple"}, set()),
        ({"NCCL_FASTRAK_CTRL_DEV": "eth0", "NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple"}, set()),
        ({"NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}, set()),
        ({"NCCL_NET": "gIB", "NCCL_NET_GDR_LEVEL": "PIX"}, set()),
        ({"NCCL_NET": "gIB", "NCCL_ALGO": "Ring"}, {"NCCL_ALGO"}),  # no part of that recipe
        ({"NCCL_NET": "AWS Libfabric", "NCCL_PROTO": "simple", "NCCL_IB_DISABLE": "1"}, set()),
        ({"NCCL_SOCKET_IFNAME": "hsn0,hsn1", "NCCL_PROTO": "^LL128", "NCCL_CROSS_NIC": "1"}, set()),
        ({"NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml", "NCCL_NET_GDR_LEVEL": "0"}, set()),
        ({"NCCL_NET": "FasTrak", "NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "Simple"}, {"NCCL_P2P_DISABLE"}),
        ({"NCCL_NET": "Socket", "NCCL_FASTRAK_CTRL_DEV": "eth0", "NCCL_ALGO": "Ring"}, {"NCCL_NET", "NCCL_ALGO"}),
        (
            {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_PROTO": "Simple", "NCCL_IB_DISABLE": "1"},
            {"NCCL_PROTO", "NCCL_IB_DISABLE"},
        ),
    ],
)
def test_what_the_vendor_of_the_network_sets_is_left(tmp_path: Path, set_to: dict[str, str], taken: set[str]) -> None:
    """Two hosts of two ranks."""
    found = report(write(tmp_path, "nccl.log", variables(**set_to), communicator(4, 2), nccl_tests({MIB: 99.0})))
    assert set(unset(found)) == taken


@pytest.mark.parametrize(
    ("set_to", "nodes", "taken", "left"),
    [
        ({"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"}, 1, {"NCCL_P2P_DISABLE": "nccl_transport"}, "NCCL_DEBUG"),
        ({"NCCL_P2P_LEVEL": "LOC"}, 1, {"NCCL_P2P_LEVEL": "nccl_transport"}, ""),
        ({"NCCL_P2P_LEVEL": "SYS"}, 1, {}, "already as far as it goes"),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_IB_DISABLE": "0"}, 2, {}, "off already"),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}, 1, {}, "one host has no network to use"),
        (
            {"NCCL_IB_DISABLE": "1", "NCCL_NET_GDR_LEVEL": "LOC", "NCCL_PXN_DISABLE": "1"},
            2,
            {
                "NCCL_IB_DISABLE": "nccl_transport",
                "NCCL_NET_GDR_LEVEL": "nccl_gpu_direct",
            },
            "",
        ),
        ({"NCCL_P2P_DISABLE": "1"}, 2, {}, "one rank per host"),
        ({"NCCL_NVLS_ENABLE": "0"}, 1, {}, "A100 has no NVLS"),
        ({"NCCL_PROTO": "LL128"}, 1, {"NCCL_PROTO": "nccl_choice"}, ""),
        ({"NCCL_PAT_ENABLE": "0"}, 2, {"NCCL_PAT_ENABLE": "nccl_choice"}, ""),
        ({"NCCL_PAT_ENABLE": "0"}, 1, {}, "PAT is for hosts of one rank each"),
        ({"NCCL_TOPO_FILE": "/etc/topo.xml", "NCCL_CHECK_POINTERS": "1"}, 1, {}, "what they cost nothing tells"),
        ({"NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "INFO", "NCCL_TOPO_DUMP_FILE": "t.xml"}, 2, {}, "no loss"),
    ],
)
def test_what_a_log_shows_to_be_forced_is_unset(
    tmp_path: Path, set_to: dict[str, str], nodes: int, taken: dict[str, str], left: str
) -> None:
    """Two ranks on A100s; never is another value set in place of the default."""
    found = report(write(tmp_path, "nccl.log", variables(**set_to), communicator(2, nodes), nccl_tests({MIB: 99.0})))
    assert unset(found) == taken, left
    severe = [finding["severity"] for finding in found["findings"] if finding["code"] == "forced_setting"]
    assert len(severe) == bool(taken)
    for one in found["advice"]["unpredicted"]:
        assert wrong(one["setting"]["name"], one["setting"]["value"]) == ""


def test_forced_ll128_is_called_unsafe(tmp_path: Path) -> None:
    found = report(write(tmp_path, "nccl.log", variables(NCCL_PROTO="LL128"), communicator(2)))
    (finding,) = [one for one in found["findings"] if one["code"] == "forced_setting"]
    assert finding["severity"] == "high"
    assert "corrupts data" in finding["message"]


@pytest.mark.parametrize(
    ("gpu", "severity"),
    [("NVIDIA H100 80GB HBM3", "high"), ("NVIDIA L40S", "medium"), ("NVIDIA GeForce RTX 4090", None)],
)
def test_host_memory_between_gpus_that_have_better(tmp_path: Path, gpu: str, severity: str | None) -> None:
    """Consumer cards of the 40 series have no peer access: nothing to find."""
    log = write(tmp_path, "nccl.log", communicator(2), INSIDE, nccl_tests({MIB: 99.0}, gpu=gpu))
    found = [finding["severity"] for finding in report(log)["findings"] if finding["code"] == "slow_transport"]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(("nodes", "severity"), [(1, "low"), (2, "medium")])
def test_cards_without_gpudirect_cost_between_hosts_only(tmp_path: Path, nodes: int, severity: str) -> None:
    line = said("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
    found = report(write(tmp_path, "nccl.log", communicator(2, nodes), [line]))
    assert [f["severity"] for f in found["findings"] if f["code"] == "no_gpu_direct"] == [severity]
    told = [one["code"] for one in found["advice"]["unpredicted"]]
    assert ("nccl_gpu_direct" in told) == (nodes > 1)
    assert found["nccl"]["ports"] == [{"name": "mlx5_0", "link_layer": None, "gpu_direct": False}]


TIMES = {32 * KIB: 90.0, 64 * KIB: 160.0, 128 * KIB: 110.0, 256 * KIB: 150.0}
CHOSEN = dict.fromkeys([32 * KIB, 64 * KIB], "TREE LL") | dict.fromkeys([128 * KIB, 256 * KIB], "RING LL")


def test_measurements_alone_name_the_choice_the_gain_and_the_commands(tmp_path: Path) -> None:
    found = report(write(tmp_path, "t.log", communicator(2), chosen(CHOSEN), nccl_tests(TIMES)))
    (one,) = found["suggestions"]
    assert (one["code"], one["setting"]["name"]) == ("nccl_by_size", "NCCL_TUNER_CONFIG_FILE")
    assert "64 KiB by ring/ll" in one["action"]
    assert one["predicted"]["basis"] == "measured: 64 KiB: 160.0 µs → at most 110.0 µs"
    assert "-x NCCL_ALGO=Ring -x NCCL_PROTO=LL all_reduce_perf -b 32K -e 128K" in one["verify"]
    assert "gpuscope tune --nccl -- COMMAND" in one["verify"]


def test_without_nccl_s_choices_the_search_is_advised(tmp_path: Path) -> None:
    found = report(write(tmp_path, "t.log", nccl_tests(TIMES)))
    assert [one["code"] for one in found["advice"]["unpredicted"]] == ["nccl_choice_search"]


def test_ll128_is_not_suggested_though_it_was_faster(tmp_path: Path) -> None:
    log = chosen(CHOSEN | dict.fromkeys([128 * KIB, 256 * KIB], "RING LL128"))
    found = report(write(tmp_path, "t.log", communicator(2), log, nccl_tests(TIMES)))
    assert found["suggestions"] == []
    assert [one["code"] for one in found["advice"]["unpredicted"]] == ["nccl_choice_search"]


def job(folder: Path, nbytes: int, us: int) -> Path:
    """Two A100: each of four steps computes 100 µs, then ten all-reduces in turn, then the host waits."""
    events: list[Any] = []
    at = 1000
    for step in range(4):
        end, own = at + 110, []
        for number in range(10):
            launch = 100 * step + 2 + number
            own += [
                call(at + 4 + 3 * number, 2, launch),
                collective(end, us, nbytes, 10 * step + number, launch=launch),
            ]
            end += us
        own += [
            call(at + 1, 2, 100 * step + 1),
            kernel(at + 10, 100, 100 * step + 1),
            call(at + 90, end - at - 88, 100 * step + 50, "cudaDeviceSynchronize"),
        ]
        events += [note(at, end + 5 - at, f"ProfilerStep#{step}"), *own]
        at = end + 5
    return run_of(folder, events, events, compute=False, gpu="NVIDIA A100-SXM4-80GB")


def test_a_job_whose_messages_have_that_size_gets_its_step_predicted(tmp_path: Path) -> None:
    """Ten messages of 64 KiB take 160 µs each; by a ring at most 110 µs, as the larger ones, and at best half of that:
    77.5 µs less, in the middle. The job as it is after the fix, every message in 90 µs, lies within the range."""
    run = job(tmp_path / "run", 64 * KIB, 160)
    log = write(tmp_path, "t.log", communicator(2), chosen(CHOSEN), nccl_tests(TIMES))
    (one,) = [one for one in report(run, log)["suggestions"] if one["code"] == "nccl_by_size"]
    predicted = one["predicted"]
    assert predicted["step_ns_before"] - predicted["step_ns_after"] == pytest.approx(775_000, rel=0.1)
    after = report(job(tmp_path / "fixed", 64 * KIB, 90))["step_time"]
    assert after is not None
    assert predicted["low_ns"] <= after["median_ns"] <= predicted["high_ns"]


def test_sizes_that_the_job_does_not_send_are_none_of_its_business(tmp_path: Path) -> None:
    run = job(tmp_path / "run", 8 * MIB, 160)
    log = write(tmp_path, "t.log", communicator(2), chosen(CHOSEN), nccl_tests(TIMES))
    found = report(run, log)
    codes = [one["code"] for one in [*found["suggestions"], *found["advice"]["unpredicted"]]]
    assert not {"nccl_by_size", "nccl_choice_search"} & set(codes)


def test_the_faster_of_two_runs_is_named(tmp_path: Path) -> None:
    write(tmp_path, "as_is.log", nccl_tests({64 * KIB: 30.0, MIB: 200.0}))
    write(tmp_path, "other.log", nccl_tests({64 * KIB: 30.5, MIB: 150.0}))
    (one,) = report(tmp_path)["suggestions"]
    assert (one["code"], one["action"]) == ("nccl_faster_run", "Run all_reduce of 1 MiB as in other, not as in as_is")


def test_of_two_equal_runs_none_is_faster(tmp_path: Path) -> None:
    for name in ("as_is.log", "other.log"):
        write(tmp_path, name, nccl_tests({64 * KIB: 30.0, MIB: 200.0}))
    assert report(tmp_path)["suggestions"] == []
