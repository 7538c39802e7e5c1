"""What is wrong with a run now: a rank that falls behind, ranks that stand still, steps that have become slower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from gpuscope.analyzers.collectives.lateness import probability
from gpuscope.analyzers.watching.measures import MeasuredStep, Seen
from gpuscope.report.view import units

RECENT = 20
"""Steps that an alert looks back."""
CHANCE = 0.05
"""As for recurrent stragglers (docs/definitions.md): a rank last in more steps than by chance, one-sided binomial."""
NOTABLE = 0.05
"""Share of the step by which a rank must be late to be named."""
SLOWER = 0.1
"""As for long steps: beyond the larger of 10 % and three standard deviations."""
PATIENCE_NS, PATIENCE_STEPS = 10_000_000_000, 10
"""A rank stands still after the larger of 10 s and ten median steps."""


@dataclass(frozen=True)
class Alert:
    """`ranks` are those named; `message` is a sentence."""

    code: Literal["falls_behind", "stands_still", "slower"]
    ranks: tuple[int, ...]
    message: str


@dataclass(frozen=True)
class LateRank:
    """The rank that the others waited for in a step: it needed `late_ns` more itself than the others' median."""

    step: int
    rank: int
    late_ns: int


def common_steps(seen: Seen) -> list[int]:
    """Steps that every rank has measured, without the first after a start."""
    by_rank = list(seen.steps.values())
    shared = set.intersection(*(set(own) for own in by_rank)) if by_rank else set()
    return sorted(step for step in shared if not any(own[step].first for own in by_rank))


def step_ns(seen: Seen, step: int) -> int:
    """A step's length: the longest over the ranks that have measured it."""
    return max(own[step].step_ns for own in seen.steps.values() if step in own)


def exposed_frac(seen: Seen, step: int) -> float | None:
    """Exposed communication of a step, as a share of it, mean over ranks; None where it is not measured."""
    own = [of_rank[step] for of_rank in seen.steps.values() if step in of_rank]
    known = [one.exposed_ns / one.step_ns for one in own if one.exposed_ns is not None and one.step_ns]
    return sum(known) / len(known) if known else None


def late_ranks(seen: Seen, steps: list[int]) -> list[LateRank]:
    """Of each of these steps the rank that the others waited for, where one was notably late."""
    found = []
    for step in steps:
        own = {rank: of_rank[step].own_ns for rank, of_rank in seen.steps.items()}
        if len(own) < 2 or any(value is None for value in own.values()):
            continue
        known: Mapping[int, int] = {rank: value for rank, value in own.items() if value is not None}
        last = max(known, key=lambda rank: known[rank])
        late = known[last] - round(median(value for rank, value in known.items() if rank != last))
        if late > NOTABLE * step_ns(seen, step):
            found.append(LateRank(step, last, late))
    return found


def measured_steps(seen: Seen) -> list[int]:
    """Common steps in which every rank measured its exposed communication: DDP does it in some steps only."""
    return [step for step in common_steps(seen) if all(own[step].own_ns is not None for own in seen.steps.values())]


def alerts(seen: Seen, now_ns: int) -> list[Alert]:
    """At the time `now_ns`, ns since the epoch; the worst first."""
    steps = common_steps(seen)
    return [*_standing(seen, now_ns), *_behind(seen, measured_steps(seen)[-RECENT:], steps), *_slower(seen, steps)]


def _standing(seen: Seen, now_ns: int) -> list[Alert]:
    if seen.status not in ("running", "") or not seen.steps:
        return []
    last: dict[int, MeasuredStep] = {rank: own[max(own)] for rank, own in seen.steps.items()}
    lengths = [one.step_ns for own in seen.steps.values() for one in own.values() if not one.first]
    patience = max(PATIENCE_NS, PATIENCE_STEPS * round(median(lengths))) if lengths else 6 * PATIENCE_NS
    newest = max(one.step for one in last.values())
    silent = {rank: now_ns - one.end_ns for rank, one in last.items() if now_ns - one.end_ns > patience}
    if not silent:
        return []
    behind = [rank for rank in silent if last[rank].step < newest]
    if len(silent) == len(last) and not behind:
        waited = units.duration(min(silent.values()))
        return [Alert("stands_still", (), f"no rank has ended a step for {waited}; all ended step {newest}")]
    ranks = tuple(sorted(behind or silent))
    at = min(last[rank].step for rank in ranks)
    waited = units.duration(max(silent[rank] for rank in ranks))
    who = f"rank {units.ranks(ranks)} stands" if len(ranks) == 1 else f"ranks {units.ranks(ranks)} stand"
    return [
        Alert("stands_still", ranks, f"{who} still: step {at} ended {waited} ago; the furthest rank ended {newest}")
    ]


def _behind(seen: Seen, steps: list[int], every: list[int]) -> list[Alert]:
    late = late_ranks(seen, steps)
    found = []
    for rank in sorted({one.rank for one in late}):
        own = [one for one in late if one.rank == rank]
        recurrent = len(own) >= 2 and probability(len(own), len(steps), 1 / len(seen.steps)) <= CHANCE
        if not recurrent or own[-1].step < steps[-1] - RECENT // 4:
            continue
        by = units.duration(median(one.late_ns for one in own))
        often = f"{len(own)} of the last {len(steps)} measured steps, {by} each"
        if steps[-1] != every[-1]:
            often += f" (measured up to step {steps[-1]})"
        found.append(Alert("falls_behind", (rank,), f"rank {rank} falls behind: the others waited for it in {often}"))
    return found


def _slower(seen: Seen, steps: list[int]) -> list[Alert]:
    if len(steps) < 2 * RECENT:
        return []
    lengths = [step_ns(seen, step) for step in steps]
    before, recent = lengths[: -RECENT // 2], lengths[-RECENT // 2 :]
    middle = median(before)
    spread = 1.4826 * median(abs(one - middle) for one in before)
    now = median(recent)
    if now <= middle + max(3 * spread, SLOWER * middle):
        return []
    message = (
        f"steps have become slower: {units.duration(now)} over the last {len(recent)}, {units.duration(middle)} before"
    )
    return [Alert("slower", (), message)]
