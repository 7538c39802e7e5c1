"""A rank that all others wait for."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import ReplacedRank
from gpuscope.report.schema.document import FindingEntry, StragglerEntry
from gpuscope.report.view import units


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The late ranks made as fast as their peers, one at a time, the one that costs most first.

    A rank that is last no more often than by chance is not to blame, however long the others waited.
    """
    late = {entry["rank"]: entry for entry in case.report["stragglers"]}
    blamed = [
        rank
        for rank in finding["ranks"]
        if finding["code"] != "straggler" or (rank in late and late[rank]["recurrent"])
    ]
    for rank in sorted(blamed, key=lambda rank: -late[rank]["caused_wait_ns"] if rank in late else 0):
        yield Proposal(
            code="slow_rank",
            action=f"Mend or replace rank {rank}: its own work is what the others wait for",
            why=f"{cost(finding)}{_waited(late.get(rank))}; with this rank as fast as the median of its peers the step "
            "is shorter",
            setting=config("hosts of the job", f"without the one of rank {rank}, until it is checked"),
            risk="none for the run; if its data are the cause (longer sequences, more tokens per expert) the lateness "
            "moves with the data, not with the host",
            verify=f"`nvidia-smi -q -d CLOCK,PERFORMANCE` and ECC errors on its host; swap two hosts and see whether "
            f"the late rank stays {rank}",
            changes=(ReplacedRank(rank),),
        )


def _waited(entry: StragglerEntry | None) -> str:
    """What each of the others waits per step for it: measured, and of the size of the gain."""
    per_step = entry.get("caused_wait_ns_per_step") if entry is not None else None
    return f", {units.duration(per_step)} per step of each rank that waits for it" if per_step else ""


RULE = Rule(
    "ranks",
    (Knob("slow_rank", ("straggler", "slow_worker"), "the host of the late rank mended or replaced"),),
    propose,
)
