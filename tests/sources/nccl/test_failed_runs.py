"""Runs of nccl-tests that failed, warnings of NCCL, sockets in place of RDMA: on the first screen, with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.nccl_logs import MIB, communicator, nccl_tests, said, variables, write

import gpuscope
from gpuscope.cli import cli
from gpuscope.schema.document import Report

WARNING = (
    "n1:702:811 [0] misc/socket.cc:397 NCCL WARN Net : connecting to address  with family 21345 is neither AF_INET(2)"
)
FAILED = ["n1: Test NCCL failure common.cu:1057 'internal error / '", " .. n1 pid 702: Test failure common.cu:893"]
END = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 0", "#"]


def screen(*paths: Path) -> str:
    done = CliRunner().invoke(cli, ["analyze", *map(str, paths), "--no-store"])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def report(*paths: Path) -> Report:
    return gpuscope.analyze(*paths).report


def codes(found: Report) -> list[str]:
    return [one["code"] for one in found["findings"]]


@pytest.mark.parametrize(
    ("before", "said_so"), [({}, "before it measured anything"), ({MIB: 99.0, 2 * MIB: 120.0}, "after 2 rows")]
)
@pytest.mark.parametrize("warning", [WARNING, f"[2026-03-03 12:11:38] {WARNING}"])
def test_a_failed_test_measured_nothing(tmp_path: Path, before: dict[int, float], said_so: str, warning: str) -> None:
    log = write(tmp_path, "all_reduce_perf.log", nccl_tests(before), [warning], FAILED, END)
    shown = screen(log)
    assert shown.startswith(f"nccl-tests failed on n1, {said_so}")
    assert "family 21345" in shown
    assert "NCCL_SOCKET_IFNAME" in shown
    assert "bandwidth: 0" not in shown
    assert "hang" not in report(log)


@pytest.mark.parametrize(
    "failure", ["node3: Test CUDA failure common.cu:892 'out of memory'", " .. n0 pid 7: Test failure all_reduce.cu:90"]
)
def test_without_a_warning_its_own_line_is_told(tmp_path: Path, failure: str) -> None:
    log = write(tmp_path, "t.log", nccl_tests({}), [failure], END)
    shown = screen(log)
    assert shown.startswith("nccl-tests failed")
    assert failure.split("failure ")[1].split(":")[0] in shown


def test_a_test_that_ended_well_keeps_its_average(tmp_path: Path) -> None:
    log = write(tmp_path, "t.log", nccl_tests({MIB: 99.0}), ["# Avg bus bandwidth    : 12.5"])
    found = report(log)
    assert "nccl_tests_failed" not in codes(found)
    assert found["nccl"]["average_busbw_gbps"] == [12.5]


@pytest.mark.parametrize(
    ("warning", "remedy"),
    [
        ("misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9637892 bytes", "--shm-size"),
        (
            "init.cc:801 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
            "a GPU of its own",
        ),
        ("net.cc:626 NCCL WARN Error: network AWS Libfabric not found.", "LD_LIBRARY_PATH"),
        ("graph/x.cc:1 NCCL WARN Something never seen before", "NCCL_DEBUG=INFO"),
    ],
)
def test_warnings_with_what_to_do(tmp_path: Path, warning: str, remedy: str) -> None:
    log = write(tmp_path, "nccl.log", communicator(2), [f"n0:7:9 [0] {warning}"])
    shown = screen(log)
    assert shown.startswith("NCCL warns in 1 line")
    assert warning.partition("WARN ")[2] in shown
    assert remedy in shown
    assert codes(report(log)) == ["nccl_warning"]


def test_a_log_of_warnings_alone(tmp_path: Path) -> None:
    log = write(tmp_path, "err.log", ["n0:7:9 [0] init.cc:801 NCCL WARN Duplicate GPU detected : rank 0 and rank 1"])
    assert "a GPU of its own" in screen(log)


SOCKETS = [said("Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0", host="n1", pid=101)]


@pytest.mark.parametrize(
    ("lines", "why", "remedy"),
    [
        ([said("Failed to open libibverbs.so[.1]", host="n0", pid=100)], "libibverbs could not be opened", "rdma-core"),
        ([said("NET/IB : No device found.", host="n0", pid=100)], "no InfiniBand device was found", "/dev/infiniband"),
        (variables(NCCL_IB_DISABLE="1"), "NCCL_IB_DISABLE=1 is set", "NCCL_IB_DISABLE"),
        ([], "TCP sockets, not InfiniBand", "if the hosts have InfiniBand"),
    ],
)
@pytest.mark.parametrize("connected", [True, False])
def test_sockets_between_hosts(tmp_path: Path, lines: list[str], why: str, remedy: str, connected: bool) -> None:
    """By the connections that are logged, or where none are by the network that NCCL says it uses."""
    network = [said("Using network Socket", host="n0", pid=100)]
    log = write(tmp_path, "nccl.log", lines, network, communicator(2, 2), SOCKETS if connected else [])
    shown = screen(log)
    assert "Between hosts NCCL uses TCP sockets, not InfiniBand or RoCE" in shown or "NCCL_IB_DISABLE" in shown
    assert why in shown
    assert remedy in shown


def test_one_host_has_no_network_to_use(tmp_path: Path) -> None:
    log = write(
        tmp_path, "nccl.log", [said("Using network Socket"), said("NET/IB : No device found.")], communicator(2, 1)
    )
    assert codes(report(log)) == []
    assert screen(log).startswith("No verdict")


def test_hosts_over_infiniband(tmp_path: Path) -> None:
    via = [said("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", host="n1", pid=101)]
    log = write(tmp_path, "nccl.log", [said("Using network IB")], communicator(2, 2), via)
    assert codes(report(log)) == []


def test_the_page_says_it_too(tmp_path: Path) -> None:
    log = write(tmp_path, "nccl.log", [said("Failed to open libibverbs.so[.1]")], communicator(2, 2), SOCKETS)
    page = tmp_path / "page.html"
    assert CliRunner().invoke(cli, ["analyze", str(log), "--no-store", "--html", str(page)]).exit_code == 0
    assert (
        "Between hosts NCCL uses TCP sockets, not InfiniBand or RoCE: libibverbs could not be opened"
        in page.read_text()
    )
