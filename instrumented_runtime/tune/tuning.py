"""The loop of `gpuscope tune`: a profiled run gives advice, one without the profiler the baseline; then changes against
the best so far, all that are apart together first; what of them has no certain gain has to show it; a profile of what
is kept gives the next advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.tune import measured as losses
from gpuscope.instrumented_runtime.tune.candidates import (
    ROUNDS,
    Candidate,
    Judgement,
    Source,
    Standing,
    ahead,
    clearly_faster,
    confirmed,
    joined,
    judge,
    overall,
    together,
    why,
)
from gpuscope.instrumented_runtime.tune.measured import Run, assumed, better_known, noise, step_ns
from gpuscope.schema.plan_document import ByHand, Ended, Outcome, TriedChange


class Runs(Protocol):
    """Makes recordings; None where the budget allows no further one."""

    def timed(self, name: str, changes: Sequence[Change] = ()) -> Run | None:
        """Without a profiler."""

    def profiled(self, name: str, changes: Sequence[Change] = ()) -> tuple[dict[str, Any], Run] | None:
        """The report of a run under the profiler, empty where there is none; and its steps behind the profiler's."""


@dataclass
class Kept:
    """A change that is part of the best, and its row."""

    candidate: Candidate
    row: TriedChange


@dataclass
class Session:
    """A tuning session; its fields are what is known so far, also after Ctrl-C."""

    runs: Runs
    sources: Sequence[Source]
    alters: Callable[[Change], bool]
    """Whether a change may alter what is trained, because that was allowed."""
    redraws: Callable[[Change], bool] = lambda _: False
    """Whether a change makes the data's random numbers others."""
    told: Callable[[Session, str], None] = lambda *_: None
    """Called with what begins now."""
    baseline: list[Run] = field(default_factory=list)
    best: list[Run] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    tried: list[TriedChange] = field(default_factory=list)
    by_hand: list[ByHand] = field(default_factory=list)
    groups: list[list[Run]] = field(default_factory=list)
    trying: Candidate | None = None
    ended: Ended = "interrupted"
    _waiting: list[Candidate] | Literal["budget", "no_advice"] = "budget"
    _seen: set[tuple[Change, ...]] = field(default_factory=set)
    _vain: dict[tuple[Change, ...], int] = field(default_factory=dict)
    """What gained nothing, beside a best of so many kept changes."""
    _unsettled: dict[tuple[Change, ...], tuple[list[Run], TriedChange]] = field(default_factory=dict)
    """What was run, and may be faster than the best, but not beyond chance yet: others are tried first."""
    _singly: set[tuple[Change, ...]] = field(default_factory=set)
    """Those that were tried together with others, in vain: one of them may crash, or lose what the others gain."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """Those of the best, the later ones of a knob in place of earlier ones."""
        return _merged([change for one in self.kept for change in one.candidate.changes])

    @property
    def to_try(self) -> int:
        """How many changes the first report advises."""
        return 0 if isinstance(self._waiting, str) else len(self._waiting)

    @property
    def standing(self) -> Standing:
        """What is judged against."""
        return Standing(self.baseline, self.best, self.groups)

    def begin(self) -> Run | None:
        """Profile the command as it stands, and run it without a profiler where there is something to try, or where the
        profiled run had too few steps. The run that failed, if no baseline could be had."""
        self.best, self.groups = self.baseline, [self.baseline]
        self._waiting = self._advice()
        if self.baseline and (isinstance(self._waiting, str) or not self._waiting):
            return None
        self.told(self, "the command as it stands")
        run = self.runs.timed("baseline")
        if run is not None and run.failed is None:
            self.baseline[:] = better_known(self.baseline, run)
        return None if self.baseline else run

    def improve(self) -> None:
        """Follow advice until none is left or the budget ends. Leaves the best found, and how it ended."""
        waiting = self._waiting
        if isinstance(waiting, str) or not waiting:
            self.ended = waiting if isinstance(waiting, str) else "nothing_applicable"
            return
        self.ended = "done"
        while waiting:
            first, *others = waiting
            apart = first.changes in self._singly
            members = (
                [first]
                if apart
                else together([first, *(one for one in others if one.changes not in self._singly)], self.alters)
            )
            more = len(waiting) > len(members)
            waiting = [one for one in waiting if one not in members] if len(members) == 1 else waiting
            outcome = self._together(members, patient=not more)
            self.trying = None
            unsettled = [one for one in members if one.changes in self._unsettled]
            waiting = [one for one in waiting if one.changes not in self._seen and one not in unsettled] + unsettled
            if outcome != "faster":
                self._singly.update(one.changes for one in members)
            in_vain = outcome in ("no_gain", "not_beyond_chance") and joined(members).changes in self._seen
            if in_vain and all(one.after is None for one in members):
                waiting = [one for one in waiting if one not in members]  # of bounds alone that together hold nothing
            if outcome == "budget":
                self.ended = "budget"
                break
            if outcome == "faster":
                again = self._advice()
                waiting = self._open(waiting) if isinstance(again, str) else again
        if len(self.kept) > 1 and not clearly_faster(self.standing):
            self._confirm()

    def _together(self, members: Sequence[Candidate], runs: Sequence[Run] = (), *, patient: bool = True) -> Outcome:
        """Try all of them in one run, or judge them by these `runs`. Where that is faster, those whose gain is certain
        are run without the others: what these add is what the first run was shorter by, and else they are dropped. If
        the budget ends before that is settled, the better of both stays, each of which is faster than what was before.
        A run that could not make all of them is one of the others. Unless `patient`, one run has to settle it."""
        before = self.best
        self.trying = joined(members)
        made = self._try(self.trying, runs, patient=patient)
        if made.refused is not None and (able := self._able(members, made.refused)):
            return self._together(able, [replace(made.refused, failed=None, refused={})], patient=patient)
        sure = [one for one in members if one.sure] or list(members[:1])
        rest = [one for one in members if one not in sure]
        if made.outcome != "faster" or not rest:
            return made.outcome
        (*kept, all_of_them), best, count = self.kept, self.best, len(self.tried)
        apart = False
        try:
            self.kept, self.best, self.trying = [*kept], before, joined(sure)
            alone = self._try(self.trying).outcome
            if alone == "faster":
                apart = self._together(rest, made.runs) != "budget" or not ahead(self.standing, made.runs)
            else:
                apart = alone != "budget" and self._together(rest) == "faster"
        finally:  # also where Ctrl-C ends it
            if apart:
                self.tried.remove(all_of_them.row)
            else:  # the best is what has been measured: all of them
                del self.tried[count:]
                self.kept, self.best = [*kept, all_of_them], best
        self._seen.update(one.changes for one in members)
        return "faster"

    def _able(self, members: Sequence[Candidate], run: Run) -> list[Candidate]:
        """Those of several that a run could make, if any; each of the others then has a row of its own."""
        unmade = [one for one in members if run.refused.keys() & {change.name for change in one.changes}]
        able = [one for one in members if one not in unmade]
        if not able or run.step is None:
            self._seen.update(one.changes for one in unmade)
            return []
        self.tried.pop()
        for one in unmade:
            whys = [run.refused[change.name] for change in one.changes if change.name in run.refused]
            made = Judgement("not_applied", detail="; ".join(whys))
            self.tried.append(_row(one, made, step_ns(self.best), 0))
            self._seen.add(one.changes)
        return able

    def _advice(self) -> list[Candidate] | Literal["budget", "no_advice"]:
        """What to try on top of the best, by a new profile of it; or why there is none."""
        self.told(self, f"{'the best so far' if self.kept else 'the command as it stands'}, under the profiler")
        found = self.runs.profiled("profile", self.changes)
        if found is None:
            return "budget"
        report, run = found
        if run.failed is None and not self.kept:
            self.baseline[:] = better_known(self.baseline, run)
        elif run.failed is None and step_ns([run]) >= step_ns(self.baseline):
            self._confirm()  # a second run of what is kept that is no faster
        if not report:
            return "no_advice"
        advised = [source(report) for source in self.sources]
        known = {(row["code"], row["setting"]) for row in self.by_hand}
        self.by_hand += [row for one in advised for row in one.by_hand if (row["code"], row["setting"]) not in known]
        return self._open([one for advice in advised for one in advice.candidates])

    def _open(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that were neither tried nor are part of the best; and again what gained nothing beside an earlier best
        and surely should now: one fault may hide another."""
        made, kept = set(self.changes), len(self.kept)
        self._seen -= {one.changes for one in candidates if one.sure and self._vain.get(one.changes, kept) < kept}
        return [one for one in candidates if one.changes not in self._seen and not set(one.changes) <= made]

    def _try(self, candidate: Candidate, runs: Sequence[Run] = (), *, patient: bool = True) -> Judgement:
        self._seen.add(asked := candidate.changes)
        spent = len(runs)
        if asked in self._unsettled:
            runs, row = self._unsettled.pop(asked)
            self.tried.remove(row)
            spent = row["runs"]
        number, before = len(self.tried) + 1, step_ns(self.best)
        candidate = _resolved(candidate, self.changes)
        with_it = _merged([*self.changes, *candidate.changes])

        def take(side: Literal["best", "trial"]) -> Run | None:
            nonlocal spent
            self.told(self, candidate.code if side == "trial" else "the best so far, again")
            run = self.runs.timed(
                f"trial-{number}" if side == "trial" else "best", with_it if side == "trial" else self.changes
            )
            spent += run is not None
            return run

        alters, rounds = any(map(self.alters, candidate.changes)), ROUNDS if patient else len(runs) + 1
        sure = candidate.high if candidate.sure and candidate.high else 1.0
        redraws = any(map(self.redraws, candidate.changes))
        made = judge(self.standing, take, alters=alters, redraws=redraws, before=runs, rounds=rounds, sure=sure)
        apart = assumed(self.standing.noise(made.runs)).apart(len(self.best), max(len(made.runs), 1))
        row = _row(candidate, made, before, spent, apart)
        self.tried.append(row)
        if made.outcome == "faster":
            self.kept.append(Kept(candidate, row))
            self.best = made.runs
            self._unsettled.clear()  # these were run beside another best
        elif made.outcome == "no_gain":
            self._vain[asked] = len(self.kept)
        elif not made.settled:
            self._unsettled[asked] = made.runs, row
            self._seen.discard(asked)
        self.told(self, "")
        return made

    def _confirm(self) -> None:
        """All that was kept together, beside the command as it stands."""
        changes = self.changes

        def take(side: Literal["best", "trial"]) -> Run | None:
            self.told(self, "all that was kept, beside the command as it stands")
            return self.runs.timed("kept", changes) if side == "best" else self.runs.timed("baseline")

        if not confirmed(self.standing, take):
            self._roll_back()

    def _roll_back(self) -> None:
        for one in self.kept:
            one.row["kept"], one.row["outcome"] = False, "not_confirmed"
            one.row["why"] = why(Judgement("not_confirmed"))
        self.kept, self.best = [], self.baseline

    def figures(self) -> dict[str, Any]:
        """The numbers of the document."""
        known = noise([self.baseline, self.best] if self.kept else [self.baseline])
        interval = overall(self.standing) if self.kept else None
        return {
            "baseline_step_ns": step_ns(self.baseline),
            "best_step_ns": step_ns(self.best),
            "ratio_low": math.exp(interval.low) if interval else None,
            "ratio_high": math.exp(interval.high) if interval else None,
            "noise_frac": known.fraction if known else None,
            "losses": losses.compared([self.baseline, self.best]),
        }


def _merged(changes: Sequence[Change]) -> tuple[Change, ...]:
    return tuple({change.name: change for change in changes}.values())


def _range(candidate: Candidate, before: int, apart: float) -> tuple[int, int, int] | tuple[None, None, None]:
    """The step that is predicted without a profiler, and the range for the one measured. The figure goes by the ratio.
    How much of what a profiler adds goes with the change is not known: the range reaches from all of it to none, where
    what it adds is the difference of two runs. These and what is measured are off by as much as runs lie `apart` by
    themselves, a logarithm."""
    if candidate.after is None or candidate.low is None or candidate.high is None:
        return None, None, None
    profiled = candidate.profiled_ns or before
    after = max(candidate.after * before, 1.0)

    def left(ratio: float) -> float:
        """Where the gain is as many ns as under the profiler."""
        return before - (1 - ratio) * profiled

    def away(end: float) -> float:
        return math.exp(math.hypot(math.log(max(end, 1.0) / after), apart))

    low = min(candidate.low * min(before, profiled), before)
    high = max(candidate.high * max(before, profiled), left(candidate.high))
    least = max(left(candidate.low) - apart * before, 0.0)
    return (
        round(after),
        round(min(after / away(low), least)),
        round(after * away(min(high, max(candidate.high, 1.0) * before))),
    )


def _resolved(candidate: Candidate, made: Sequence[Change]) -> Candidate:
    """With multiples (`x4`) of what was kept already as numbers; of the script's own they stay multiples. Its setting
    is then what is applied: a report has words for it."""
    if all(one.times is None for one in candidate.changes):
        return candidate
    own = {one.name: one.number(None) for one in made}
    found = [
        one if one.times is None or (now := one.number(own.get(one.name))) is None else Change(one.name, str(now))
        for one in candidate.changes
    ]
    return replace(candidate, changes=tuple(found), setting=", ".join(map(str, found)))


def _row(candidate: Candidate, made: Judgement, before: int, spent: int, apart: float = 0.0) -> TriedChange:
    predicted, low, high = _range(candidate, before, apart)
    measured = step_ns(made.runs) if made.runs else None
    return {
        "code": candidate.code,
        "action": candidate.action,
        "setting": candidate.setting,
        "changes": [{"name": change.name, "value": change.value} for change in candidate.changes],
        "before_ns": before,
        "predicted_ns": predicted,
        "low_ns": low,
        "high_ns": high,
        "measured_ns": measured,
        "ratio_low": math.exp(made.interval.low) if made.interval else None,
        "ratio_high": math.exp(made.interval.high) if made.interval else None,
        "kept": made.outcome == "faster",
        "outcome": made.outcome,
        "why": why(made),
        "runs": spent,
    }
