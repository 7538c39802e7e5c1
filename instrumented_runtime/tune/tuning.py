"""The loop of `gpuscope tune`: a profiled run gives advice and the first baseline, its steps behind the profiler's;
then changes against the best so far, those that are sure and apart together first; a profile of what is kept gives the
next advice and confirms it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.tune import losses
from gpuscope.instrumented_runtime.tune.candidates import Candidate, Source, together
from gpuscope.instrumented_runtime.tune.decision import Judgement, Standing, clearly_faster, confirmed, judge, overall
from gpuscope.instrumented_runtime.tune.measured import Run, step_ns
from gpuscope.instrumented_runtime.tune.noise import noise
from gpuscope.instrumented_runtime.tune.reasons import why
from gpuscope.schema.tune_document import ByHand, Ended, TriedChange


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

    @property
    def changes(self) -> tuple[Change, ...]:
        """Those of the best, the later ones of a knob in place of earlier ones."""
        return _merged([change for one in self.kept for change in one.candidate.changes])

    @property
    def standing(self) -> Standing:
        """What is judged against."""
        return Standing(self.baseline, self.best, self.groups)

    def begin(self) -> Run | None:
        """Profile the command as it stands: its first baseline, too, unless it has too few steps behind the profiler's.
        The run that failed, if no baseline could be had."""
        self.best, self.groups = self.baseline, [self.baseline]
        self._waiting = self._advice()
        if self.baseline:
            return None
        self.told(self, "the command as it stands")
        run = self.runs.timed("baseline")
        if run is None or run.failed is not None:
            return run
        self.baseline.append(run)
        return None

    def improve(self) -> None:
        """Follow advice until none is left or the budget ends. Leaves the best found, and how it ended."""
        waiting = self._waiting
        if isinstance(waiting, str) or not waiting:
            self.ended = waiting if isinstance(waiting, str) else "nothing_applicable"
            return
        self.ended = "done"
        while waiting:
            joined = together(waiting)
            self.trying = waiting.pop(0) if joined is None or joined.changes in self._seen else joined
            made = self._try(self.trying)
            self.trying = None
            if made.outcome == "budget":
                self.ended = "budget"
                break
            if made.outcome == "faster":
                again = self._advice()
                if self._proved() and not isinstance(again, str):
                    waiting = again
                waiting = [one for one in waiting if one.changes not in self._seen]
        if len(self.kept) > 1 and not clearly_faster(self.standing):
            self._confirm()

    def _proved(self) -> bool:
        """Whether what is kept is faster than the command as it stands in more than one run: the first may have been
        long by chance, or as its files were read for the first time. What is in doubt runs once more; else nothing is
        kept any more."""
        if len(self.baseline) > 1:
            return True
        self.told(self, "the command as it stands, again")
        run = self.runs.timed("baseline")
        if run is not None and run.failed is None:
            self.baseline.append(run)
        if overall(self.standing).high >= 0:
            self._confirm()
        return bool(self.kept)

    def _advice(self) -> list[Candidate] | Literal["budget", "no_advice"]:
        """What to try on top of the best, by a new profile of it, whose other steps are a run of the best; or why there
        is none."""
        self.told(self, "the best so far, under the profiler")
        found = self.runs.profiled("profile", self.changes)
        if found is None:
            return "budget"
        report, run = found
        if run.failed is None:
            self.best.append(run)
        if not report:
            return "no_advice"
        advised = [source(report) for source in self.sources]
        known = {(row["code"], row["setting"]) for row in self.by_hand}
        self.by_hand += [row for one in advised for row in one.by_hand if (row["code"], row["setting"]) not in known]
        made = set(self.changes)
        return [
            one for advice in advised for one in advice.candidates
            if one.changes not in self._seen and not set(one.changes) <= made
        ]  # fmt: skip

    def _try(self, candidate: Candidate) -> Judgement:
        self._seen.add(candidate.changes)
        number, before = len(self.tried) + 1, step_ns(self.best)
        candidate = replace(candidate, changes=tuple(_resolved(one, self.changes) for one in candidate.changes))
        with_it = _merged([*self.changes, *candidate.changes])
        spent = 0

        def take(side: Literal["best", "trial"]) -> Run | None:
            nonlocal spent
            self.told(self, candidate.code if side == "trial" else "the best so far, again")
            run = self.runs.timed(f"trial-{number}" if side == "trial" else "best",
                                  with_it if side == "trial" else self.changes)  # fmt: skip
            spent += run is not None
            return run

        made = judge(self.standing, take, alters=any(self.alters(change) for change in candidate.changes))
        row = _row(candidate, made, before, spent)
        self.tried.append(row)
        if made.outcome == "faster":
            self.kept.append(Kept(candidate, row))
            self.best = made.runs
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
            "baseline_step_ns": step_ns(self.baseline), "best_step_ns": step_ns(self.best),
            "ratio_low": math.exp(interval.low) if interval else None,
            "ratio_high": math.exp(interval.high) if interval else None,
            "noise_frac": known.fraction if known else None,
            "losses": losses.compared([self.baseline, self.best]),
        }  # fmt: skip


def _merged(changes: Sequence[Change]) -> tuple[Change, ...]:
    return tuple({change.name: change for change in changes}.values())


def _resolved(change: Change, made: Sequence[Change]) -> Change:
    """A multiple (`x4`) of what was kept already as a number; of the script's own it stays a multiple."""
    own = next((one.value for one in made if one.name == change.name), "")
    times = change.value.removeprefix("x")
    return Change(change.name, str(int(own) * int(times))) if times != change.value and own.isdigit() else change


def _row(candidate: Candidate, made: Judgement, before: int, spent: int) -> TriedChange:
    predicted = [None if ratio is None else round(before * ratio) for ratio in (
        candidate.after, candidate.low, candidate.high
    )]  # fmt: skip
    measured = step_ns(made.runs) if made.runs else None
    return {
        "code": candidate.code, "action": candidate.action, "setting": candidate.setting,
        "changes": [{"name": change.name, "value": change.value} for change in candidate.changes],
        "before_ns": before, "predicted_ns": predicted[0], "low_ns": predicted[1], "high_ns": predicted[2],
        "measured_ns": measured,
        "ratio_low": math.exp(made.interval.low) if made.interval else None,
        "ratio_high": math.exp(made.interval.high) if made.interval else None,
        "kept": made.outcome == "faster", "outcome": made.outcome, "why": why(made), "runs": spent,
    }  # fmt: skip
