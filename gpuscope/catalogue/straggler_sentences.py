"""Sentences on the ranks that others wait for: persistent or changing, in which phase, how certain."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.schema.document import Slowdown, StragglerEntry
from gpuscope.words import units
from gpuscope.words.units import short_kernel

CAUSED_WAIT = (
    "Caused wait is the sum, over all other ranks and all collectives, of the time they waited for this rank, so it "
    "can exceed the length of the run. The figure per step is what one waiting rank loses: exposed time only, and "
    "where it waits in several collectives at once that time counts once. The finding's cost is the mean over all "
    "ranks, whoever caused the wait; how much shorter a step would be without the late rank is predicted (What to "
    "change). Waits for sends and receives between pipeline stages are not included."
)
SLOWDOWN = (
    "S measures how uneven the job is: the step time, divided by what it would be if every operation took the mean of "
    "its peers (communication: the median); slow ranks count in that mean. The S of one rank, stage or operation sets "
    "everything else to the mean, so it can exceed the S of the whole job, where some peers are faster than the mean. "
    "A rank that is replaced would run as fast as its peers; what that gains is predicted (What to change)."
)
"""How the three figures of one straggler differ (docs/definitions.md: «Wait, gain and slowdown»)."""
NAME = 32
"""Cells of an operation's name within a sentence."""
WORTH = 0.10
"""Ranks to whom this share of the waiting is traced back are named: what bounds a run, in the verdict too."""


def slowdown_total(slowdown: Slowdown) -> str:
    """S of the whole job, and the step times that it is the ratio of."""
    said = f"S = {slowdown['total']:.3f}"
    if "ideal_step_ns" not in slowdown:
        return said
    recorded, replayed, ideal = (
        units.duration(slowdown[key]) for key in ("recorded_step_ns", "replayed_step_ns", "ideal_step_ns")
    )
    steps = units.plural(slowdown["steps"], "step")
    return (
        f"{said}: the step by its operations takes {replayed}, and {ideal} with each at the mean of its peers; mean of "
        f"{steps} (recorded, from the first start on any rank to the last end: {recorded})"
    )


SLOWED = 1.01
"""A rank that makes the step longer by less is not named."""


def slowest_ranks(slowdown: Slowdown) -> list[tuple[str, float]]:
    """The ranks that slow the step, the one that does most first, each with the share of the step that its slowness
    alone costs: 1 − 1/S, as of all stragglers together, and no more than theirs. Where others are quicker than the mean
    one rank's own S exceeds that of all."""
    by = sorted(slowdown["by_rank"].items(), key=lambda item: -item[1])
    return [(name, 1 - 1 / min(own, slowdown["total"])) for name, own in by if min(own, slowdown["total"]) >= SLOWED]


def ranks_of(entry: StragglerEntry) -> tuple[int, ...]:
    """The rank, with those that are late with it."""
    return tuple(entry["group"]["ranks"]) if "group" in entry else (entry["rank"],)


def shared_words(entry: StragglerEntry) -> str:
    """What the ranks of its group share, where that is a place; empty where not."""
    if "group" not in entry or entry["group"]["by"] == "reason":
        return ""
    return f"{entry['group']['by']} {units.clean(entry['group']['name'])}"


def culprits(entries: Sequence[StragglerEntry]) -> list[StragglerEntry]:
    """The ranks that the waiting traces back to, the costliest first: the recurrent ones if there are any, each with
    those that are late with it. Where it traces back to none, the rank that was last at the highest cost."""
    if not any(entry["root_wait_ns"] for entry in entries):
        return list(entries[:1])
    total = sum(entry["root_wait_ns"] for entry in entries)
    root = {entry["rank"]: entry["root_wait_ns"] for entry in entries}
    whole = {entry["rank"]: sum(root.get(rank, 0) for rank in ranks_of(entry)) for entry in entries}
    worth = [entry for entry in entries if whole[entry["rank"]] >= max(WORTH * total, 1)]
    steady = [entry for entry in worth if entry["recurrent"]]
    return sorted(steady or worth, key=lambda entry: (-whole[entry["rank"]], -entry["root_wait_ns"]))


def whose(entries: Sequence[StragglerEntry], testable: bool, clock_error: int | None) -> str:
    """The sentence of the finding; `testable` says whether there were enough steps to recognise a steady one."""
    named = culprits(entries)
    if not named:
        return "the last rank is unknown" + _within(clock_error)
    ranks = units.rank_words([entry["rank"] for entry in named])
    led = [entry["rank"] for entry in entries if entry["recurrent"] and entry not in named]
    if not named[0]["root_wait_ns"]:
        words = f"{ranks} is last at the highest cost; no single rank explains its delay"
    elif named[0]["recurrent"]:
        words = _again_and_again(named)
    elif led:
        words = f"{units.rank_words(led)} {units.be(led)} consistently late, delayed by {ranks}"
    elif not testable:
        words = f"too few steps to test for a persistent straggler; most waiting traces back to {ranks}"
    elif len(named) > 1:
        words = f"the last rank changes: none is late more often than by chance; the waiting traces back to {ranks}"
    elif always_last(named[0]):
        steps = units.plural(named[0]["of_steps"], "step")
        words = f"{ranks} came last in all {steps}, which are too few to be sure that it stays so"
    else:
        words = f"{ranks} {units.be(named)} late most often, though no more than by chance"
    held = [entry["rank"] for entry in named if entry["reason"] == "cores"]
    if held:
        words += f"; training threads of {units.rank_words(held)} waited for a core meanwhile"
    if len(named) == 1 or len({(entry["phase"], entry["operation"]) for entry in named}) == 1:
        words += _doing(named[0])
    made = [entry["rank"] for entry in entries if entry not in named and entry["recurrent"] and named[0]["recurrent"]]
    if made:
        words += f"; {units.rank_words(made)} {units.be(made)} delayed by others"
    return words + _within(clock_error)


def always_last(entry: StragglerEntry) -> bool:
    """Whether a rank came last in every step, of which there are too few to show that it is late again and again."""
    return 1 < entry.get("of_steps", 0) == entry.get("last_in_steps", 0)


def _again_and_again(named: Sequence[StragglerEntry]) -> str:
    """`ranks 4-7 (host node1) are consistently late`; those of one place and period together."""
    alike: dict[tuple[str, int], list[int]] = {}
    for entry in named:
        alike.setdefault((shared_words(entry), entry.get("period", 1)), []).append(entry["rank"])
    said = []
    for (shared, period), ranks in alike.items():
        when = "consistently late" if period == 1 else f"late in every {units.ordinal(period)} step"
        said.append(f"{units.rank_words(ranks)}{f' ({shared})' if shared else ''} {units.be(ranks)} {when}")
    return " and ".join(said)


def _doing(entry: StragglerEntry) -> str:
    """What made it late, as far as the trace shows."""
    where = late_in(entry)
    return f"; it falls behind{where}" if where else ""


def reason_words(late: Sequence[StragglerEntry]) -> str:
    """Why ranks are late, of several the reason that they share; empty where that is not known."""
    if not late or len({entry["reason"] for entry in late}) > 1:
        return ""
    entry, alone = late[0], len(late) == 1
    more = entry.get("more_work")
    told = f"it computes {more}" if more is not None else entry["reason_why"]
    shared = shared_words(entry) if len(ranks_of(entry)) == len(late) else ""
    said = told if alone or not told else f"{shared or 'all alike'}; rank {entry['rank']}: {told}"
    if (period := entry.get("period", 1)) > 1:
        return f"in every {units.ordinal(period)} step" + (f": {said}" if said else "")
    return said


def late_in(entry: StragglerEntry, longest: int | None = None) -> str:
    """` before forward (aten::mm)`: where a rank falls behind; empty where the trace does not show it. An operation of
    more than `longest` cells is left out."""
    phase, operation = entry["phase"], entry["operation"]
    if operation and longest is not None and len(operation) > longest:
        operation = None
    when = "" if phase is None else f" {phase}" if phase.startswith("before ") else f" in {phase}"
    return when + (f" ({short_kernel(operation, NAME)})" if operation else "")


def _within(clock_error: int | None) -> str:
    return f"; times of different ranks are comparable to within {units.duration(clock_error)}" if clock_error else ""
