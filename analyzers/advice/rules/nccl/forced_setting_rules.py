"""Variables of NCCL taken away again: where its default is right, nothing else is set in their place."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config
from gpuscope.analyzers.advice.logged_nccl import costliest, line_rates
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import nccl_settings
from gpuscope.analyzers.advice.settings.settings import KNOWN
from gpuscope.analyzers.changes import Algorithm, Change, LineRate, Refused
from gpuscope.analyzers.nccl.logged.forced_settings import Forced, forced
from gpuscope.analyzers.nccl.logged.nccl_grammar import UNSET
from gpuscope.analyzers.nccl.trial_commands import Variant, comparison
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass

_BETWEEN = (nccl_settings.IB_DISABLE, nccl_settings.NET)
"""Variables about transports between hosts; the others are about those within one."""
_DIRECT = (nccl_settings.NET_GDR_LEVEL, nccl_settings.IB_GDR_LEVEL)
_SIZES = (1 << 10, 1 << 30)


@dataclass(frozen=True)
class Unset(Suggestion):
    """A variable taken away."""

    answers = ("forced_setting",)
    action = "Take {name} out of the environment"
    why = "NCCL's log says that {name}={value} is set: {does}"
    verify = "run nccl-tests as set and with the variable unset: {trial}"

    name: str
    value: str
    does: str
    """What it makes NCCL do."""
    op: str
    ranks: int

    @property
    def subject(self) -> str:
        return self.name

    @property
    def trial(self) -> str:
        variants = [Variant("as_set", {self.name: self.value}), Variant("unset", {self.name: UNSET})]
        return comparison(self.op, _SIZES, self.ranks, variants)


class TransportUnset(Unset):
    """Ranks kept apart."""

    code = "nccl_transport"
    sets = """`NCCL_P2P_DISABLE`, `NCCL_P2P_LEVEL`, `NCCL_SHM_DISABLE`, `NCCL_IB_DISABLE`, `NCCL_NET` unset, where \
the log shows that they keep ranks apart"""
    risk = "it may have been set against a hang, an IOMMU, or in a container without shared memory"


class GpuDirectUnset(Unset):
    """Network cards kept from GPU memory."""

    code = "nccl_gpu_direct"
    sets = """`NCCL_NET_GDR_LEVEL`, `NCCL_NET_GDR_READ`, `NCCL_NET_GDR_C2C`, `NCCL_DMABUF_ENABLE` unset; \
`nvidia_peermem` or dma-buf where the log misses it"""
    risk = "it may have been set against a driver or card without GPUDirect RDMA"


class NvlsUnset(Unset):
    """Reduction in the switch kept off."""

    code = "nccl_nvls"
    sets = "`NCCL_NVLS_ENABLE`, `NCCL_CUMEM_ENABLE` unset, on Hopper and later"
    risk = "more device memory; multicast may be missing in a virtual machine"


class ChoiceUnset(Unset):
    """An algorithm or protocol forced."""

    code = "nccl_choice"
    sets = "`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_PAT_ENABLE`, `NCCL_LAUNCH_MODE` unset"
    risk = "it may have been set against a bug of an older NCCL: read its release notes"


@dataclass(frozen=True)
class GpuDirect(Suggestion):
    """Cards that could reach GPU memory but do not."""

    code = GpuDirectUnset.code
    answers = ("no_gpu_direct",)
    sets = GpuDirectUnset.sets
    action = "Let network cards read and write GPU memory themselves (GPUDirect RDMA)"
    why = "{message}"
    risk = "needs a reload of drivers on every host; PCIe access control (ACS) must not route it through the CPU"
    verify = "NCCL's log says «GPU Direct RDMA Enabled», and nccl.transports[] NET/IB/…/GDRDMA"


_BY_TOPIC = {"transport": TransportUnset, "gpu_direct": GpuDirectUnset, "nvls": NvlsUnset, "choice": ChoiceUnset}


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
        yield _unset(case, finding, one, _changes(case, one) if alone else ())


def _kin(one: Forced) -> str:
    """What other variables it shares its effect with: with two of them set, taking one away may change nothing."""
    if one.topic == "transport":
        return "between" if KNOWN[one.name] in _BETWEEN else "inside"
    return "choice" if one.topic == "nvls" else one.topic


def _changes(case: Case, one: Forced) -> tuple[Change, ...]:
    """What the replay can make of taking it away: NCCL's own choice, or links that carry what they can."""
    if one.topic in ("choice", "nvls"):
        row = costliest(case)
        logged = row is not None and row["protocol"] is not None
        return (Algorithm(unasked=True),) if logged and one.name != nccl_settings.LAUNCH_MODE.name else ()
    off = one.topic == "transport" and (one.name != nccl_settings.P2P_LEVEL.name or one.value.upper() in ("LOC", "0"))
    rates = line_rates(case, between=_kin(one) != "inside") if off or KNOWN[one.name] in _DIRECT else ()
    return (LineRate(rates),) if rates else ()


def _unset(case: Case, finding: FindingEntry, one: Forced, changes: tuple[Change, ...]) -> Proposal:
    ranks = max((entry["size"] for entry in case.report["nccl"]["communicators"]), default=2)
    rows = [row for row in case.report.get("bandwidth", ()) if row["group_size"] == ranks]
    op = max(rows, key=lambda row: row["dur_ns"] * row["count"])["op"] if rows else "all_reduce"
    record = _BY_TOPIC[one.topic](one.name, one.value, one.does, op, ranks)
    unknown = "times with the variable can't predict those without: the commands under «verify» measure both"
    return Proposal(finding, record, KNOWN[one.name].to(UNSET), changes, None if changes else Refused(unknown))


def _gpu_direct(case: Case, finding: FindingEntry) -> Proposal:
    rates = line_rates(case, between=True)
    unknown = (
        "how fast the cards are without host memory in between is not in these files: add NCCL's topology XML "
        "(NCCL_TOPO_DUMP_FILE), which has their rate, or run again"
    )
    setting = config("kernel module", "nvidia_peermem, or dma-buf: the open GPU driver and a kernel from 5.12 on")
    changes = (LineRate(rates),) if rates else ()
    return Proposal(finding, GpuDirect(), setting, changes, None if rates else Refused(unknown))


RULE = Rule(
    "nccl_settings",
    (*_BY_TOPIC.values(), GpuDirect),
    propose,
    programs=("pytorch", "jax", "native"),
    place=80,
)
