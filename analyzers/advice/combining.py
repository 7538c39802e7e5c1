"""The best combination of changes: greedy, each step of it replayed together with those before, never added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.analyzers.advice.rule import Proposal
from gpuscope.analyzers.advice.tries import MIN_GAIN_FRAC, Tries, is_gain
from gpuscope.analyzers.changes import Predicted, Refused
from gpuscope.when_used import dataclass

MOST = 12
"""Proposals that are combined, the most promising first: tries grow with the square."""


@dataclass(frozen=True)
class Plan:
    """Changes to make together."""

    steps: Sequence[tuple[Proposal, int]]
    """Each with the step that it and those before it lead to, ns."""
    predicted: Predicted
    """Of all of them together."""


def best_plan(candidates: Sequence[Proposal], tries: Tries) -> Plan | None:
    """The combination with the shortest step that the greedy search finds; None where no two gain more than one.

    Some changes can't be made together (a pipeline's with others), so the search begins with each of the two best.
    """
    chosen = _promising(candidates, tries)
    if len(chosen) < 2:
        return None
    outcome = next((own for one in chosen if isinstance(own := tries.outcome(one), Predicted)), None)
    if outcome is None:
        return None
    least = MIN_GAIN_FRAC * outcome.before
    found = [_greedy(chosen, tries, outcome.before, least)]
    first = found[0][0][0] if found[0] else None
    found.append(_greedy([one for one in chosen if one is not first], tries, outcome.before, least))
    best = min((steps for steps in found if len(steps) > 1), key=lambda steps: steps[-1][1], default=None)
    steps = [step for one in chosen if not isinstance(step := tries.step(one), Refused)]
    alone = min(steps, default=0)
    if best is None or best[-1][1] > alone - least:
        return None
    predicted = tries.predict_together([one for one, _ in best])
    if isinstance(predicted, Refused) or not is_gain(predicted):
        return None
    return Plan(best, predicted)


def _promising(candidates: Sequence[Proposal], tries: Tries) -> list[Proposal]:
    """Each setting once, by what it leads to alone; behind them those that only others make possible."""
    once: dict[tuple[str, str], Proposal] = {}
    for one in candidates:
        once.setdefault((one.setting["name"], one.setting["value"]), one)

    def step(one: Proposal) -> float:
        after = tries.step(one)
        return float("inf") if isinstance(after, Refused) else after

    return sorted(once.values(), key=step)[:MOST]


def _greedy(chosen: Sequence[Proposal], tries: Tries, before: float, least: float) -> list[tuple[Proposal, int]]:
    """Add what shortens the step most, as long as something does by `least` ns."""
    made: list[tuple[Proposal, int]] = []
    now = before
    while True:
        best: tuple[float, Sequence[Proposal]] | None = None
        for added in _moves(chosen, [one for one, _ in made]):
            after = tries.together([*(one for one, _ in made), *added])
            if not isinstance(after, Refused) and after <= now - least and (best is None or after < best[0]):
                best = (after, added)
        if best is None:
            return made
        for one in best[1]:
            after = tries.together([*(own for own, _ in made), one])
            made.append((one, round(best[0]) if isinstance(after, Refused) else after))
        now = best[0]


def _moves(chosen: Sequence[Proposal], made: Sequence[Proposal]) -> Iterator[Sequence[Proposal]]:
    """What can be added: one proposal, or all of one finding, for two late ranks hide behind each other."""
    codes = {one.code for one in made}
    left = [
        one for one in chosen if one not in made and (not (needs := one.possible_after) or codes.intersection(needs))
    ]
    yield from ([one] for one in left)
    for finding in {one.finding["code"]: None for one in left}:
        together = [one for one in left if one.finding["code"] == finding and one.record.subject]
        if len(together) > 1:
            yield together
