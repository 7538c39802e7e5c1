"""Ranks that called different things: other operations, sizes or types under one number, other members."""

from __future__ import annotations

from collections import defaultdict

from gpuscope.analyzers.hangs.rank_states import Job, Record
from gpuscope.catalogue.hang_sentences import of_sizes
from gpuscope.when_used import dataclass

SAME_SIZES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Operations whose input is as large on every rank; the others may be uneven."""


@dataclass(frozen=True)
class Mismatch:
    """Under number `seq` of `group` the ranks called different things; `odd` are those in the minority,
    or all of them where there is no majority."""

    group: str
    seq: int | None
    what: str
    """`operation`, `size`, `dtype` or `members`."""
    variants: dict[str, list[int]]
    odd: tuple[int, ...]
    majority: bool


def find(job: Job) -> list[Mismatch]:
    """The first mismatch of each group among operations not finished by all, and contradicting members."""
    found = [
        _judge(group, None, "members", {str(list(members)): ranks for members, ranks in versions.items()})
        for group, versions in job.contradicted.items()
    ]
    for group in sorted(set(job.members) - job.incomparable):
        mismatch = _first(job, group)
        if mismatch is not None:
            found.append(mismatch)
    return found


def _first(job: Job, group: str) -> Mismatch | None:
    by_seq: dict[int, list[Record]] = defaultdict(list)
    for rank in job.members[group]:
        for record in job.collectives.get((rank, group), []):
            by_seq[record.seq].append(record)
    for seq in sorted(by_seq):
        records = by_seq[seq]
        if len(records) < 2 or not any(job.unfinished(record) for record in records):
            continue
        for what, called in (("operation", _op), ("dtype", _dtype), ("size", _size)):
            variants: dict[str, list[int]] = defaultdict(list)
            for record in records:
                variants[called(record)].append(record.rank)
            if len(variants) > 1:
                return _judge(group, seq, what, dict(variants))
    return None


def _op(record: Record) -> str:
    return record.op


def _dtype(record: Record) -> str:
    return f"{record.op} of {record.dtype or 'nothing'}"


def _size(record: Record) -> str:
    return of_sizes(record.op, record.sizes) if record.op in SAME_SIZES else record.op


def _judge(group: str, seq: int | None, what: str, variants: dict[str, list[int]]) -> Mismatch:
    total = sum(len(ranks) for ranks in variants.values())
    most = max(variants.values(), key=len)
    majority = 2 * len(most) > total
    odd = [rank for ranks in variants.values() for rank in ranks if not (majority and ranks is most)]
    return Mismatch(
        group, seq, what, {name: sorted(ranks) for name, ranks in variants.items()}, tuple(sorted(odd)), majority
    )
