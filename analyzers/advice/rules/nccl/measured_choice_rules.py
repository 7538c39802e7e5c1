"""Another algorithm or protocol for exactly the sizes at which measured times show that it gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import TypeAlias

from gpuscope.analyzers.advice.framework_settings import config
from gpuscope.analyzers.advice.logged_nccl import older_than
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.nccl.nccl_rules import NEEDS_LOG
from gpuscope.analyzers.advice.settings import nccl_settings
from gpuscope.analyzers.changes import MeasuredTransfers, Predicted, Refused
from gpuscope.analyzers.nccl.logged.nccl_grammar import algorithm_name, protocol_name
from gpuscope.analyzers.nccl.trial_commands import SEARCH, Variant, comparison
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import CrossoverEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

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


RULE = Rule(
    "nccl_measured",
    (ChoiceBySize, ChoiceSearch, AsInFasterRun),
    propose,
    programs=("pytorch", "jax", "native"),
    place=150,
)
