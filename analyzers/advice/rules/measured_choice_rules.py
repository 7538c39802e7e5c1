"""Another algorithm or protocol for exactly the sizes at which measured times show that it gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import TypeAlias

from gpuscope.analyzers.advice.prediction_cache import costliest, line_rates, older_than
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, config
from gpuscope.analyzers.advice.rules.nccl_rules import NEEDS_LOG
from gpuscope.analyzers.advice.settings import nccl_settings
from gpuscope.analyzers.advice.settings.settings import KNOWN
from gpuscope.analyzers.nccl.forced_settings import Forced, forced
from gpuscope.analyzers.nccl.nccl_grammar import UNSET, algorithm_name, protocol_name
from gpuscope.analyzers.nccl.predicted_cost import SEARCH, Variant, comparison
from gpuscope.analyzers.what_if_changes import Algorithm, Change, LineRate, MeasuredTransfers, Predicted, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import CrossoverEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Variables of NCCL taken away again: where its default is right, nothing else is set in their place.

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


def forced_setting_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
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


FORCED_SETTING_RULE = Rule(
    "nccl_settings",
    (*_BY_TOPIC.values(), GpuDirect),
    forced_setting_rules_propose,
    programs=("pytorch", "jax", "native"),
    place=80,
)


NEXT_SIZE = sqrt(2)
"""A measured size speaks for messages within this factor of it: sizes are measured a factor of two apart."""
NAMED = 3
_Used: TypeAlias = "list[tuple[int, CrossoverEntry]] | None"


@dataclass(frozen=True)
class _Measured(Suggestion):
    """What measured times of sizes show."""

    why = "{times}"

    op: str
    ranks: int
    gains: list[tuple[int, int, int]]
    """(bytes of a message, ns that it takes, ns that it takes at most otherwise), the largest gain first."""
    sizes: list[int]
    """Bytes."""

    @property
    def times(self) -> str:
        named = (
            f"{units.memory(size)}: {units.duration(now)} → at most {units.duration(least)}"
            for size, now, least in self.gains[:NAMED]
        )
        more = f" and {len(self.gains) - NAMED} more sizes" if len(self.gains) > NAMED else ""
        return ", ".join(named) + more

    @property
    def listed(self) -> str:
        several = sorted(set(self.sizes))
        if len(several) > NAMED:
            return f"{len(several)} sizes from {units.memory(several[0])} to {units.memory(several[-1])}"
        return ", ".join(units.memory(size) for size in several)


@dataclass(frozen=True)
class ChoiceBySize(_Measured):
    """The choice of a faster size for those that gain."""

    code = "nccl_by_size"
    answers = ("nccl_crossover",)
    sets = """`NCCL_TUNER_CONFIG_FILE` of NCCL's example tuner plugin: the choice of the faster size, for exactly the \
sizes that gain"""
    action = "Let NCCL carry out {op} of {listed} by {algorithm}/{protocol}, as it does {like}"
    risk = (
        "needs NCCL's example tuner plugin (NCCL_TUNER_PLUGIN), built for the same NCCL; `gpuscope export PATH "
        "--nccl-tuner nccl_tuner.csv` writes the rows. NCCL_ALGO and NCCL_PROTO would hold for all sizes{too_old}"
    )
    verify = "run nccl-tests at these sizes by default and with this choice: {trial}; or " + SEARCH

    algorithm: str
    protocol: str
    like_bytes: int
    """The size that has this choice already."""
    measured: list[int]
    """Bytes of all sizes to measure."""
    old_nccl: str
    """A version without tuner plugins; empty where none is in use."""

    @property
    def like(self) -> str:
        return units.memory(self.like_bytes)

    @property
    def too_old(self) -> str:
        return f"; NCCL {self.old_nccl} has no tuner plugins yet" if self.old_nccl else ""

    @property
    def trial(self) -> str:
        forced = {
            nccl_settings.ALGO.name: algorithm_name(self.algorithm),
            nccl_settings.PROTO.name: protocol_name(self.protocol),
        }
        variants = [Variant("default", {}), Variant(f"{self.algorithm}_{self.protocol}", forced)]
        return comparison(self.op, self.measured, self.ranks, variants)


class ChoiceSearch(_Measured):
    """A search for the choice, where it is not recorded."""

    code = "nccl_choice_search"
    answers = ("nccl_crossover",)
    sets = "`gpuscope tune --nccl`, where NCCL's choices are not recorded"
    action = "Find what carries {op} of {listed} out faster"
    why = "{times}; what NCCL chose for these sizes is not recorded, or is LL128, which is never forced"
    why_not = "which choice the faster size had is not recorded: the search tries them all"
    risk = NEEDS_LOG
    verify = "search for a candidate that beats the default in all rounds: " + SEARCH


@dataclass(frozen=True)
class AsInFasterRun(_Measured):
    """The settings of another run."""

    code = "nccl_faster_run"
    answers = ("slower_run",)
    sets = "the settings of the faster of several measured runs"
    action = "Run {op} of {listed} as in {faster}, not as in {slow}"
    risk = "other operations and sizes may differ: the table of bandwidths has both runs side by side"
    verify = (
        f"{SEARCH}; or both runs again with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV, so that the log names what "
        "they differ by"
    )

    slow: str | None
    faster_runs: list[str]

    @property
    def faster(self) -> str:
        return " or ".join(self.faster_runs)


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Per operation and group: what its faster sizes were carried out by; between runs, the faster run's settings."""
    kinds = ("other_run",) if finding["code"] == "slower_run" else ("larger_is_faster", "bandwidth_drops")
    groups: dict[tuple[str, str | None, str, int], list[CrossoverEntry]] = defaultdict(list)
    for entry in case.report.get("crossovers", ()):
        if entry["kind"] in kinds and entry["op"] == finding.get("facts", {}).get("op"):
            groups[entry["tool"], entry["run"], entry["op"], entry["group_size"]].append(entry)
    for own in groups.values():
        used = _used(case, own)
        if used is not None and not used:
            continue  # none of these sizes is in the job
        answer = _between_runs if kinds == ("other_run",) else _by_size
        yield answer(case, finding, own, used)


def _used(case: Case, entries: Sequence[CrossoverEntry]) -> _Used:
    """Messages of the job that the entries speak for; None where there is no job, or its sizes are not recorded."""
    first = entries[0]
    sizes = {
        row["bytes"]
        for row in case.report.get("bandwidth", ())
        if (row["tool"], row["op"], row["group_size"]) == ("trace", first["op"], first["group_size"])
    }
    if not case.report["ranks"] or not sizes:
        return None
    return [
        (size, one)
        for size in sorted(sizes)
        for one in entries
        if one["bytes"] / NEXT_SIZE < size < one["bytes"] * NEXT_SIZE
    ]


def _by_size(case: Case, finding: FindingEntry, entries: Sequence[CrossoverEntry], used: _Used) -> Proposal:
    op, ranks = entries[0]["op"], entries[0]["group_size"]
    sizes = sorted({one["bytes"] for one in entries})
    known = [one for one in entries if one["faster_algorithm"] and one["faster_protocol"] not in (None, "ll128")]
    if not known:
        setting = nccl_settings.DEBUG_SUBSYS.to("INIT,ENV,TUNING")
        return Proposal(finding, ChoiceSearch(op, ranks, _gains(entries), sizes), setting)
    best = min(known, key=_ratio)
    old = older_than(case, nccl_settings.TUNER_CONFIG_FILE.since)
    record = ChoiceBySize(
        op,
        ranks,
        _gains(known),
        sorted({one["bytes"] for one in known}),
        str(best["faster_algorithm"]),
        str(best["faster_protocol"]),
        best["like_bytes"],
        sizes,
        old,
    )
    newer = config("NCCL", "2.19 or later, with NCCL_TUNER_CONFIG_FILE=nccl_tuner.csv")
    setting = newer if old else nccl_settings.TUNER_CONFIG_FILE.to("nccl_tuner.csv")
    return _tried(case, Proposal(finding, record, setting), record, used)


def _between_runs(case: Case, finding: FindingEntry, entries: Sequence[CrossoverEntry], used: _Used) -> Proposal:
    first, slow = entries[0], entries[0]["run"]
    faster = sorted({one["faster_run"] or "" for one in entries})
    sizes = sorted({one["bytes"] for one in entries})
    record = AsInFasterRun(first["op"], first["group_size"], _gains(entries), sizes, slow, faster)
    setting = config("NCCL's settings", f"those of {record.faster}: unset what {slow} sets besides")
    return _tried(case, Proposal(finding, record, setting), record, used)


def _tried(case: Case, proposal: Proposal, record: _Measured, used: _Used) -> Proposal:
    """The change in the replay where the job's own messages are meant, else what the measurement itself says."""
    if used:
        factors = {size: _ratio(one) for size, one in used}
        best = {size: factors[size] * min(one["bytes"] / one["like_bytes"], 1.0) for size, one in used}
        sizes = tuple((size, best[size], factor) for size, factor in sorted(factors.items()))
        return replace(proposal, changes=(MeasuredTransfers(record.op, record.ranks, sizes),))
    if case.report["ranks"]:
        why = "the sizes of this job's messages are not recorded: record their arguments"
        return replace(proposal, outcome=Refused(why))
    outcome = Predicted(0, 0, 0, 0, f"measured: {record.times}", "measured")
    return replace(proposal, outcome=outcome, gains_time=False)


def _ratio(one: CrossoverEntry) -> float:
    """What a size takes otherwise, at most, by what it takes."""
    return one["at_most_ns"] / one["dur_ns"]


def _gains(entries: Sequence[CrossoverEntry]) -> list[tuple[int, int, int]]:
    return [(one["bytes"], one["dur_ns"], one["at_most_ns"]) for one in sorted(entries, key=_ratio)]


MEASURED_CHOICE_RULE = Rule(
    "nccl_measured",
    (ChoiceBySize, ChoiceSearch, AsInFasterRun),
    propose,
    programs=("pytorch", "jax", "native"),
    place=150,
)


RULES = (FORCED_SETTING_RULE, MEASURED_CHOICE_RULE)
