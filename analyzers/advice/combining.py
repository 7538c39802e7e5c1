"""The best combination of changes: greedy, each step of it replayed together with those before, never added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuscope.analyzers.advice.rule import Proposal
from gpuscope.analyzers.advice.tries import MIN_GAIN_FRAC, Tries, is_gain
from gpuscope.analyzers.changes import Predicted, Refused
from gpuscope.schema.document import FindingEntry

MOST = 12
"""Candidates that are combined, the most promising first: tries grow with the square."""


@dataclass(frozen=True)
class Candidate:
    """A proposal that could be part of a plan."""

    proposal: Proposal
    finding: FindingEntry


@dataclass(frozen=True)
class Plan:
    """Changes to make together."""

    steps: Sequence[tuple[Candidate, int]]
    """Each with the step that it and those before it lead to, ns."""
    predicted: Predicted
    """Of all of them together."""


def best_plan(candidates: Sequence[Candidate], tries: Tries) -> Plan | None:
    """The combination with the shortest step that the greedy search finds; None where no two gain more than one.

    Some changes can't be made together (a pipeline's with others), so the search begins with each of the two best.
    """
    chosen = _promising(candidates, tries)
    if len(chosen) < 2:
        return None
    outcome = next((own for one in chosen if isinstance(own := tries.outcome(one.proposal), Predicted)), None)
    if outcome is None:
        return None
    least = MIN_GAIN_FRAC * outcome.before
    found = [_greedy(chosen, tries, outcome.before, least)]
    first = found[0][0][0] if found[0] else None
    found.append(_greedy([one for one in chosen if one is not first], tries, outcome.before, least))
    best = min((steps for steps in found if len(steps) > 1), key=lambda steps: steps[-1][1], default=None)
    steps = [step for one in chosen if not isinstance(step := tries.step(one.proposal), Refused)]
    alone = min(steps, default=0)
    if best is None or best[-1][1] > alone - least:
        return None
    predicted = tries.predict_together([one.proposal for one, _ in best])
    if isinstance(predicted, Refused) or not is_gain(predicted):
        return None
    return Plan(best, predicted)


def _promising(candidates: Sequence[Candidate], tries: Tries) -> list[Candidate]:
    """Each setting once, by what it leads to alone; behind them those that only others make possible."""
    once: dict[tuple[str, str], Candidate] = {}
    for one in candidates:
        once.setdefault((one.proposal.setting["name"], one.proposal.setting["value"]), one)

    def step(one: Candidate) -> float:
        after = tries.step(one.proposal)
        return float("inf") if isinstance(after, Refused) else after

    return sorted(once.values(), key=step)[:MOST]


def _greedy(chosen: Sequence[Candidate], tries: Tries, before: float, least: float) -> list[tuple[Candidate, int]]:
    """Add what shortens the step most, as long as something does by `least` ns."""
    made: list[tuple[Candidate, int]] = []
    now = before
    while True:
        best: tuple[float, Sequence[Candidate]] | None = None
        for added in _moves(chosen, [one for one, _ in made]):
            after = tries.together([one.proposal for one in (*(one for one, _ in made), *added)])
            if not isinstance(after, Refused) and after <= now - least and (best is None or after < best[0]):
                best = (after, added)
        if best is None:
            return made
        for one in best[1]:
            after = tries.together([other.proposal for other in (*(own for own, _ in made), one)])
            made.append((one, round(best[0]) if isinstance(after, Refused) else after))
        now = best[0]


def _moves(chosen: Sequence[Candidate], made: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """What can be added: one candidate, or all of one finding, for two late ranks hide behind each other."""
    codes = {one.proposal.code for one in made}
    left = [
        one for one in chosen
        if one not in made and (not (needs := one.proposal.possible_after) or codes.intersection(needs))
    ]  # fmt: skip
    yield from ([one] for one in left)
    for finding in {one.finding["code"]: None for one in left}:
        together = [one for one in left if one.finding["code"] == finding and one.proposal.subject]
        if len(together) > 1:
            yield together
