"""Variables of NCCL taken away again: where its default is right, nothing else is set in their place."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, env
from gpuscope.analyzers.advice.logged_nccl import costliest, line_rates
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Algorithm, Change, LineRate, Refused
from gpuscope.analyzers.nccl.logged.forced_settings import Forced, forced
from gpuscope.analyzers.nccl.logged.nccl_grammar import UNSET
from gpuscope.analyzers.nccl.trial_commands import Variant, comparison
from gpuscope.schema.document import FindingEntry

_RERUN = Refused("times with the variable can't predict those without: the commands under «verify» measure both")
_BETWEEN = ("NCCL_IB_DISABLE", "NCCL_NET")
"""Variables about transports between hosts; the others are about those within one."""
_DIRECT = ("NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL")
AGAIN = "nccl-tests as set and with the variable unset, as the suggestion's command does"
_SIZES = (1 << 10, 1 << 30)
_WHAT_FOR = {
    "transport": "it may have been set against a hang, an IOMMU, or in a container without shared memory",
    "gpu_direct": "it may have been set against a driver or card without GPUDirect RDMA",
    "nvls": "more device memory; multicast may be missing in a virtual machine",
    "choice": "it may have been set against a bug of an older NCCL: read its release notes",
}
CODES = {
    "transport": "nccl_transport",
    "gpu_direct": "nccl_gpu_direct",
    "nvls": "nccl_nvls",
    "choice": "nccl_choice",
}
"""Codes of suggestions by what a variable is about."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Each forced variable unset; for cards without GPUDirect, what they need for it."""
    if "nccl" not in case.report:
        return
    if finding["code"] == "no_gpu_direct":
        if finding["severity"] != "low":
            yield _gpu_direct(case, finding)
        return
    found = forced(case.report["nccl"], tuple(case.report["nccl"]["gpus"]))
    for one in found:
        alone = sum(_kin(other) == _kin(one) for other in found) == 1
        yield _unset(case, one, _changes(case, one) if alone else ())


def _kin(one: Forced) -> str:
    """What other variables it shares its effect with: with two of them set, taking one away may change nothing."""
    if one.topic == "transport":
        return "between" if one.name in _BETWEEN else "inside"
    return "choice" if one.topic == "nvls" else one.topic


def _changes(case: Case, one: Forced) -> tuple[Change, ...]:
    """What the replay can make of taking it away: NCCL's own choice, or links that carry what they can."""
    if one.topic in ("choice", "nvls"):
        row = costliest(case)
        logged = row is not None and row["protocol"] is not None
        return (Algorithm(unasked=True),) if logged and one.name != "NCCL_LAUNCH_MODE" else ()
    off = one.topic == "transport" and (one.name != "NCCL_P2P_LEVEL" or one.value.upper() in ("LOC", "0"))
    rates = line_rates(case, between=_kin(one) != "inside") if off or one.name in _DIRECT else ()
    return (LineRate(rates),) if rates else ()


def _unset(case: Case, one: Forced, changes: tuple[Change, ...]) -> Proposal:
    ranks = max((entry["size"] for entry in case.report["nccl"]["communicators"]), default=2)
    rows = [row for row in case.report.get("bandwidth", ()) if row["group_size"] == ranks]
    op = max(rows, key=lambda row: row["dur_ns"] * row["count"])["op"] if rows else "all_reduce"
    variants = [Variant("as_set", {one.name: one.value}), Variant("unset", {one.name: UNSET})]
    return Proposal(
        code=CODES[one.topic],
        action=f"Take {one.name} out of the environment",
        why=f"NCCL's log says that {one.name}={one.value} is set: {one.does}",
        setting=env(one.name, UNSET),
        risk=_WHAT_FOR[one.topic],
        verify=comparison(op, _SIZES, ranks, variants),
        changes=changes,
        outcome=None if changes else _RERUN,
        subject=one.name,
    )


def _gpu_direct(case: Case, finding: FindingEntry) -> Proposal:
    rates = line_rates(case, between=True)
    return Proposal(
        code="nccl_gpu_direct",
        action="Let network cards read and write GPU memory themselves (GPUDirect RDMA)",
        why=finding["message"],
        setting=config("kernel module", "nvidia_peermem, or dma-buf: the open GPU driver and a kernel from 5.12 on"),
        risk="needs a reload of drivers on every host; PCIe access control (ACS) must not route it through the CPU",
        verify="NCCL's log says «GPU Direct RDMA Enabled», and nccl.transports[] NET/IB/…/GDRDMA",
        changes=(LineRate(rates),) if rates else (),
        outcome=None
        if rates
        else Refused(
            "how fast the cards are without host memory in between is not in these files: add NCCL's topology XML "
            "(NCCL_TOPO_DUMP_FILE), which has their rate, or run again"
        ),
    )


RULE = Rule(
    "nccl_settings",
    (
        Knob("nccl_transport", ("forced_setting",), "`NCCL_P2P_DISABLE`, `NCCL_P2P_LEVEL`, `NCCL_SHM_DISABLE`, "
             "`NCCL_IB_DISABLE`, `NCCL_NET` unset, where the log shows that they keep ranks apart",
             risk=_WHAT_FOR["transport"], verify=AGAIN),
        Knob("nccl_gpu_direct", ("forced_setting", "no_gpu_direct"), "`NCCL_NET_GDR_LEVEL`, `NCCL_NET_GDR_READ`, "
             "`NCCL_NET_GDR_C2C`, `NCCL_DMABUF_ENABLE` unset; `nvidia_peermem` or dma-buf where the log misses it",
             risk=_WHAT_FOR["gpu_direct"], verify=AGAIN),
        Knob("nccl_nvls", ("forced_setting",), "`NCCL_NVLS_ENABLE`, `NCCL_CUMEM_ENABLE` unset, on Hopper and later",
             risk=_WHAT_FOR["nvls"], verify=AGAIN),
        Knob("nccl_choice", ("forced_setting",), "`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_PAT_ENABLE`, "
             "`NCCL_LAUNCH_MODE` unset",
             risk=_WHAT_FOR["choice"], verify=AGAIN),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=80,
)  # fmt: skip
