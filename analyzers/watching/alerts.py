"""What is wrong with a run now: a rank that falls behind, ranks that stand still, steps that have become slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from typing import Literal

import numpy as np

from gpuscope.analyzers.collectives import recurrence
from gpuscope.analyzers.watching.measures import MeasuredStep, Seen
from gpuscope.schema.document import Report
from gpuscope.trace.table import Array
from gpuscope.welch import median
from gpuscope.when_used import dataclass
from gpuscope.words import units

RECENT = 20
"""Steps that an alert looks back."""
CHANCE = 0.05
"""Probability below which a rank that is the last of so many steps is that by more than chance, one-sided binomial."""
NOTABLE = 0.05
"""Share of the step by which a rank must be late to be named."""
SLOWER = 0.1
"""As for long steps: beyond the larger of 10 % and three standard deviations."""
HISTORY = 400
"""Steps among which the one is looked for from which on a rank or link has been slow."""
PATIENCE_NS, PATIENCE_STEPS = 10_000_000_000, 10
"""A rank stands still after the larger of 10 s and ten median steps."""


@dataclass(frozen=True)
class Alert:
    """`ranks` are those named; `message` is a sentence."""

    code: Literal["hang", "falls_behind", "slow_link", "waits_for_data", "late_in_windows", "stands_still", "slower"]
    ranks: tuple[int, ...]
    message: str

    @property
    def slow(self) -> bool:
        """Whether a full recording of its ranks would say more."""
        return self.code in ("falls_behind", "slow_link")


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
        known = {rank: value for rank, value in own.items() if value is not None}
        found += _furthest(seen, step, known)
    return found


def late_for_data(seen: Seen, steps: list[int]) -> list[LateRank]:
    """Of each of these steps the rank that waited notably longer for its data than the others did."""
    found = []
    for step in steps:
        own = {rank: of_rank[step].data_wait_ns for rank, of_rank in seen.steps.items()}
        found += _furthest(seen, step, own) if len(own) > 1 else []
    return found


def _furthest(seen: Seen, step: int, values: Mapping[int, int]) -> list[LateRank]:
    """The rank with the greatest value, where that exceeds the others' median notably."""
    last = max(values, key=lambda rank: values[rank])
    late = values[last] - round(median(value for rank, value in values.items() if rank != last))
    return [LateRank(step, last, late)] if late > NOTABLE * step_ns(seen, step) else []


def measured_steps(seen: Seen) -> list[int]:
    """Common steps in which every rank measured its exposed communication: DDP does it in some steps only."""
    return [step for step in common_steps(seen) if all(own[step].own_ns is not None for own in seen.steps.values())]


def unmeasured(seen: Seen) -> str:
    """What of «who falls behind» the measures can't tell, and what is watched instead; empty where they tell it all."""
    steps, measured = common_steps(seen), measured_steps(seen)
    if len(seen.steps) < 2 or not steps or 2 * len(measured) > len(steps):
        return ""
    instead = "Meanwhile waits for data, step times and standstill are watched, and the windows that are finished."
    if not measured:
        return f"Which rank falls behind is not measured: no step has its exposed communication. {instead}"
    return (
        f"Which rank falls behind is measured in {len(measured)} of {units.plural(len(steps), 'step')}, the last of "
        f"them {measured[-1]} of {steps[-1]}: on GPUs, DDP times its first steps and then one in a hundred. {instead}"
    )


def alerts(seen: Seen, now_ns: int, recorded: Report | None = None) -> list[Alert]:
    """At the time `now_ns`, ns since the epoch; the worst first. `recorded` is the report of the finished windows."""
    steps, measured = common_steps(seen), measured_steps(seen)
    known_well = len(measured) >= recurrence.WINDOW
    behind = _slow_ranks(seen, measured[-HISTORY:]) if known_well else _behind(seen, measured[-RECENT:], steps)
    known = {rank for one in behind for rank in one.ranks}
    data = [one for one in _for_data(seen, steps[-RECENT:], set(measured)) if not known & set(one.ranks)]
    in_windows = late_in_windows(recorded) if recorded is not None else None
    windows = [in_windows] if in_windows is not None and not known & set(in_windows.ranks) else []
    links = _slow_links(seen, steps[-HISTORY:])
    hung = [Alert("hang", (), f"{hang}; gpuscope hang tells more") for hang in seen.hangs]
    return [*(hung or _standing(seen, now_ns)), *behind, *links, *windows, *data, *_slower(seen, steps)]


def late_in_windows(report: Report) -> Alert | None:
    """The ranks that are late in finished windows again and again, if they are few: known on GPUs, too, where steps
    don't measure it. Who takes turns is no alert."""
    ranks = tuple(sorted(one["rank"] for one in report["stragglers"] if one["recurrent"]))
    found = next((one for one in report["findings"] if one["code"] == "straggler"), None)
    if found is None or not ranks or 2 * len(ranks) > len(report["trace"]["ranks_present"]):
        return None
    return Alert("late_in_windows", ranks, f"in the finished windows: {found['message']}")


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


def _recurrent(seen: Seen, late: list[LateRank], steps: list[int]) -> list[tuple[int, list[LateRank]]]:
    """The ranks that are among `late` more often than by chance, and still are, each with its steps."""
    found = []
    for rank in sorted({one.rank for one in late}):
        own = [one for one in late if one.rank == rank]
        often = len(own) >= 2 and probability(len(own), len(steps), 1 / len(seen.steps)) <= CHANCE
        if often and own[-1].step in steps[-RECENT // 4 :]:
            found.append((rank, own))
    return found


def probability(hits: int, trials: int, chance: float) -> float:
    """Probability of at least so many hits by chance (binomial)."""
    return sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits, trials + 1))


def _behind(seen: Seen, steps: list[int], every: list[int]) -> list[Alert]:
    found = []
    for rank, own in _recurrent(seen, late_ranks(seen, steps), steps):
        by = units.duration(median(one.late_ns for one in own))
        often = f"{len(own)} of the last {len(steps)} measured steps, {by} each"
        if steps[-1] != every[-1]:
            often += f" (measured up to step {steps[-1]})"
        found.append(Alert("falls_behind", (rank,), f"rank {rank} falls behind: the others waited for it in {often}"))
    return found


def _slow_ranks(seen: Seen, steps: list[int]) -> list[Alert]:
    """Ranks that need more themselves than the others do, as `slow_members` tells it."""
    ranks = list(seen.steps)
    own = np.array([[seen.steps[rank][step].own_ns or 0 for rank in ranks] for step in steps], np.float64)
    found = []
    for one in recurrence.slow(np.array(steps, np.int64), own, _usual_step(seen, steps)):
        often = f"every {one.period} steps" if one.period > 1 else "in a step"
        message = (
            f"rank {ranks[one.member]} falls behind{_since(one.since)}: it needs {units.duration(one.by_ns)} more "
            f"itself than the others {often}, communication left out: not its link, but its device, host or work"
        )
        found.append(Alert("falls_behind", (ranks[one.member],), message))
    return found


def _slow_links(seen: Seen, steps: list[int]) -> list[Alert]:
    """Groups whose transfers take longer than those of their peers, known from digests."""
    if len(steps) < recurrence.WINDOW or not seen.groups:
        return []
    transfers: dict[str, Array] = {}
    alike: dict[str, object] = {}
    members: dict[str, Sequence[int]] = {}
    for name in dict.fromkeys(name for own in seen.steps.values() for name in own[steps[-1]].transfers):
        op, _, group = name.partition(" ")
        ranks = [rank for rank in seen.groups.get(group, ()) if rank in seen.steps]
        moved = [[seen.steps[rank][step].transfers.get(name) for rank in ranks] for step in steps]
        known = [[one for one in own if one is not None] for own in moved]
        kinds = {one[:2] for own in known for one in own}
        if len(ranks) > 1 and len(kinds) == 1 and all(len(own) == len(ranks) for own in known):
            transfers[name] = np.array([min(ns for _, _, ns in own) for own in known], np.float64)
            alike[name], members[name] = (op, len(seen.groups[group]), *kinds), ranks
    links = recurrence.slow_links(np.array(steps, np.int64), transfers, members, alike, _usual_step(seen, steps))
    return [Alert("slow_link", one.ranks, _of_link(one)) for one in links]


def _of_link(link: recurrence.SlowLink) -> str:
    whose = (
        f"the link of rank {link.ranks[0]}" if len(link.ranks) == 1 else f"a link of ranks {units.ranks(link.ranks)}"
    )
    return (
        f"{whose} is slow{_since(link.since)}: transfers of {units.plural(len(link.groups), 'group')} take "
        f"{link.times:.1f} times as long as the same ones of other groups, also for the rank that comes last to them"
    )


def _since(step: int | None) -> str:
    return "" if step is None else f" since step {step}"


def _usual_step(seen: Seen, steps: list[int]) -> float:
    return float(median(step_ns(seen, step) for step in steps))


def _for_data(seen: Seen, steps: list[int], measured: set[int]) -> list[Alert]:
    """Where it is not measured who is waited for, who waits for data is the nearest to it."""
    unmeasured = [step for step in steps if step not in measured]
    found = []
    for rank, own in _recurrent(seen, late_for_data(seen, unmeasured), unmeasured):
        by = units.duration(median(one.late_ns for one in own))
        message = (
            f"rank {rank} waits for its data: {by} longer than the others in {len(own)} of the last {len(unmeasured)} "
            "steps; they wait for it as far as its device has nothing else to do meanwhile"
        )
        found.append(Alert("waits_for_data", (rank,), message))
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
