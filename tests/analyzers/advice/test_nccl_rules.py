"""NCCL's knobs: what is proposed for which evidence, and what the replay says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.advice import finding, report
from helpers.collectives import collective, run_of
from helpers.kineto import call, kernel, note

import gpuscope
from gpuscope.analyzers.advice.rule import Case, Proposal
from gpuscope.analyzers.advice.rules.nccl_rules import RULE
from gpuscope.analyzers.nccl.nccl_grammar import wrong
from gpuscope.analyzers.what_if_changes import Algorithm, Refused
from gpuscope.schema.document import Report

SIZES = (1 << 12, 1 << 14, 1 << 16)


def small_messages(folder: Path, *log: str) -> Path:
    """Two H100; a step computes 100 µs, then all-reduces in turn, each 60 µs + its bytes at 10 GB/s, then the host
    waits for all of it."""
    events: list[Any] = []
    at = 1000
    for step in range(4):
        end, own = at + 110, []
        for number in range(27):
            size, launch = SIZES[number % 3], 100 * step + 2 + number
            own += [
                call(at + 4 + 3 * number, 2, launch),
                collective(end, 60 + size // 10_000, size, 27 * step + number, launch=launch),
            ]
            end += 60 + size // 10_000
        own += [
            call(at + 1, 2, 100 * step + 1),
            kernel(at + 10, 100, 100 * step + 1),
            call(at + 90, end - at - 88, 100 * step + 50, "cudaDeviceSynchronize"),
        ]
        events += [note(at, end + 5 - at, f"ProfilerStep#{step}"), *own]
        at = end + 5
    run_of(folder, events, events, compute=False)
    if log:
        (folder / "nccl.log").write_text("".join(f"n:7:7 [0] NCCL INFO {line}\n" for line in log))
    return folder


CHOSEN = tuple(f"AllReduce: {size} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..7}}" for size in SIZES)


def test_without_a_log_the_advice_is_to_record_it(tmp_path: Path) -> None:
    advice = gpuscope.analyze(small_messages(tmp_path)).report["advice"]
    (one,) = [entry for entry in advice["unpredicted"] if entry["code"].startswith("nccl")]
    assert (one["code"], one["setting"]["value"]) == ("nccl_log", "INIT,ENV,TUNING")


def test_a_protocol_of_less_fixed_cost_is_suggested_with_its_range(tmp_path: Path) -> None:
    """Ring over 2 ranks: Simple 8.4 + 2·3.4 = 15.2 µs, LL 6.6 + 2·0.6 = 7.8. So the 27 · 60 µs become 831 µs and
    the 9 · (0 + 1 + 6) µs for the bytes twice as many: 1683 µs become 957, at worst √2 times that. The replay is
    scaled to the measured step, which lacks the first launch.
    """
    found = gpuscope.analyze(small_messages(tmp_path, *CHOSEN)).report
    assert found["verdict"]["cause"] == "latency"
    (one,) = [entry for entry in found["suggestions"] if entry["code"] == "nccl_protocol"]
    assert one["setting"] == {"kind": "env", "name": "NCCL_PROTO", "value": "allreduce:LL"}
    predicted = one["predicted"]
    gain = predicted["step_ns_before"] - predicted["step_ns_after"]
    assert gain == pytest.approx(1_683_000 - 957_000, rel=0.1)
    assert predicted["low_ns"] < predicted["step_ns_after"] < predicted["high_ns"] < predicted["step_ns_before"]
    assert "NCCL 2.29's cost model" in predicted["basis"]


def told(code: str, **sections: Any) -> list[Proposal]:
    """What the rule proposes for a report with these sections."""
    asked: Report = report(finding(code)) | sections  # type: ignore[assignment, operator]
    proposals = list(RULE.propose(Case(asked, lambda _: Refused("a test")), finding(code)))
    assert all(wrong(one.setting["name"], one.setting["value"]) == "" for one in proposals)
    return proposals


def nccl(transports: tuple[tuple[str, bool], ...] = (), **environment: str) -> dict[str, Any]:
    return {
        "transports": [{"transport": name, "same_node": same} for name, same in transports],
        "environment": [{"name": name, "value": value} for name, value in environment.items()],
        "communicators": [{"channels": 24}, {"channels": 8}],
    }


def row(**changed: Any) -> dict[str, Any]:
    usual = {
        "tool": "trace",
        "op": "all_reduce",
        "group": "dp",
        "dur_ns": 1,
        "count": 1,
        "algorithm": "ring",
        "peak_gbps": None,
        "link": None,
        "protocol": "ll",
        "channels": 16,
    }
    return usual | changed


def test_alternatives_for_bandwidth() -> None:
    found = {
        one.setting["name"] + "=" + one.setting["value"]: one
        for one in told("bandwidth", bandwidth=[row()], nccl=nccl())
    }
    assert set(found) == {"NCCL_ALGO=allreduce:Tree", "NCCL_PROTO=allreduce:Simple", "NCCL_MIN_CTAS=32"}
    assert found["NCCL_MIN_CTAS=32"].changes == (Algorithm(channels=32, op="all_reduce"),)


def test_what_the_user_has_set_stays() -> None:
    found = told("bandwidth", bandwidth=[row(channels=64)], nccl=nccl(NCCL_ALGO="Ring", NCCL_PROTO="Simple"))
    assert found == []


def test_a_limit_on_channels_is_lifted_to_the_others() -> None:
    (one,) = told("fewer_channels", nccl=nccl(NCCL_MAX_NCHANNELS="8"))
    assert (one.setting["name"], one.setting["value"]) == ("NCCL_MAX_NCHANNELS", "unset")


def test_nothing_without_nccl() -> None:
    assert told("latency", bandwidth=[row()]) == []


def test_channels_of_one_group_among_several_are_set_on_its_communicator() -> None:
    """A variable would hold for every communicator."""
    asked: Report = report(finding("bandwidth")) | {"nccl": nccl(), "bandwidth": [row(dur_ns=9), row(group="tp")]}  # type: ignore[assignment, operator]
    found = {one.code: one for one in RULE.propose(Case(asked, lambda _: Refused("a test")), finding("bandwidth"))}
    assert found["nccl_channels"].setting["name"] == "ProcessGroupNCCL.Options.config.min_ctas"
