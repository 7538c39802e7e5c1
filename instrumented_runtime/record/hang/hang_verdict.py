"""The verdict on a hang: which ranks wait in which collective, and which never joined it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective, Group

Progress = Mapping[str, Any]


def progress(groups: Sequence[Group], collectives: Sequence[Collective], *, at: str) -> dict[str, Any]:
    """A rank's progress: per group its members, the last collective issued and those it waits in."""
    state: dict[str, Any] = {"at": at, "groups": {}}
    for group in groups:
        mine = [entry for entry in collectives if entry.group is group]
        issued = [entry for entry in mine if not entry.is_p2p]
        state["groups"][group.name] = {
            "ranks": list(group.ranks),
            "issued": {str(entry.seq): entry.called for entry in issued},
            "last": max((entry.seq for entry in issued), default=0),
            "waits": [
                {"seq": entry.seq, "what": str(entry), "src": entry.src, "dst": entry.dst}
                for entry in mine
                if entry.completed_ns is None
            ],
        }
    return state


@dataclass(frozen=True)
class Complaint:
    """Rank `by` waits in something; `culprits` are the ranks it waits for."""

    by: int
    culprits: tuple[int, ...]
    is_p2p: bool
    sentence: str


def verdict(reports: Mapping[int, Progress], world_size: int) -> str:
    """What hangs, in a sentence or two: who waits in which collective, and who never joined it.

    `reports` maps ranks to their `progress`. A rank that is waited for but itself waits for another is not the root
    cause: complaints about ranks that wait for nobody come first, then those about collectives.
    """
    complaints = [complaint for rank in sorted(reports) for complaint in _complaints(reports, rank)]
    silent = sorted(set(range(world_size)) - set(reports))
    if not complaints:
        return f"no rank that answered waits in a collective; no answer from {_ranks(silent)}"
    idle = {rank for rank in reports if not any(group["waits"] for group in reports[rank]["groups"].values())}
    idle |= set(silent)
    ranked = (
        [complaint for complaint in complaints if set(complaint.culprits) & idle],
        [complaint for complaint in complaints if complaint.culprits and not complaint.is_p2p],
        complaints,
    )
    # A few against many are the likelier culprits; ranks already named as culprits don't count.
    named: set[int] = set()
    sentences = []
    for complaint in sorted(next(filter(None, ranked)), key=lambda complaint: len(complaint.culprits)):
        if complaint.by not in named and not named.issuperset(complaint.culprits or (complaint.by,)):
            named.update(complaint.culprits)
            if complaint.sentence not in sentences:
                sentences.append(complaint.sentence)
    return "; ".join(sentences)


def _complaints(reports: Mapping[int, Progress], rank: int) -> Iterator[Complaint]:
    for name, group in reports[rank]["groups"].items():
        for wait in group["waits"]:
            if wait["seq"]:
                yield _about_collective(reports, rank, name, wait)
            else:
                peer = wait["dst"] if wait["src"] == rank else wait["src"]
                sentence = f"rank {rank} waits in {wait['what']}; rank {peer}: {_location(reports, peer)}"
                yield Complaint(rank, (peer,) if peer is not None else (), True, sentence)


def _about_collective(reports: Mapping[int, Progress], rank: int, name: str, wait: Mapping[str, Any]) -> Complaint:
    seq = str(wait["seq"])
    op = reports[rank]["groups"][name]["issued"][seq]
    waiting, absent, others = [], [], {}
    for member in reports[rank]["groups"][name]["ranks"]:
        group = reports.get(member, {}).get("groups", {}).get(name, {"issued": {}, "last": 0, "waits": []})
        if group["last"] < wait["seq"]:
            absent.append(member)
        elif group["issued"].get(seq, op) != op:
            others[member] = group["issued"][seq]
        elif any(str(entry["seq"]) == seq for entry in group["waits"]):
            waiting.append(member)
    parts = [f"{_ranks(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in {wait['what']}"]
    parts += [f"rank {member} called {what}{_instead(what, op)}" for member, what in others.items()]
    parts += [f"rank {member} has not joined: {_location(reports, member)}" for member in absent]
    return Complaint(rank, (*absent, *others), False, "; ".join(parts))


def _instead(called: str, op: str) -> str:
    """What the others called, where it is the same operation of another size or type."""
    return f", not {op.partition(' of ')[2]}" if called.split()[0] == op.split()[0] else " instead"


def _location(reports: Mapping[int, Progress], rank: int | None) -> str:
    if rank is None:
        return "its sender is unknown"
    if rank not in reports:
        return "no answer"
    return f"it is at {reports[rank]['at']}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks)) or 'none'}"
