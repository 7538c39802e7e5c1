"""A job whose runs are drawn: noise between runs and of steps, hiccups, a drift; and changes with known gains."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.manifest import RankPart
from gpuscope.instrumented_runtime.tune.candidates import Advice, Candidate
from gpuscope.instrumented_runtime.tune.measured import Failed, Run, losses_of, step_of
from gpuscope.instrumented_runtime.tune.tuning import Session

STEPS = 50
LOSSES = [1.0 / (1 + step) for step in range(20)]


@dataclass
class Job:
    """`gains` per knob, as a share of the step, some only with what they are `behind`; `moves` the losses by so much;
    `fails` ends a run so."""

    seed: int = 0
    gains: Mapping[str, float] = field(default_factory=dict)
    behind: Mapping[str, str] = field(default_factory=dict)
    moves: Mapping[str, float] = field(default_factory=dict)
    fails: Mapping[str, Failed] = field(default_factory=dict)
    between: float = 0.01
    within: float = 0.05
    drift: float = 0.002
    tails: float = math.inf
    """Degrees of freedom of the noise between runs: few make outliers frequent."""
    jump: float = 0.0
    """From a run on that is drawn, all are longer or shorter by this share."""
    most: int = 1000
    interrupt_at: int | None = None
    runs: list[tuple[str, tuple[Change, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random, self.drifted = random.Random(self.seed), 0.0
        self.jumps_at, self.jump = self.random.randrange(2, 10), self.random.choice((-1, 1)) * self.jump

    def timed(self, name: str, changes: Sequence[Change] = ()) -> Run | None:
        if len(self.runs) >= self.most:
            return None
        self.runs.append((name, tuple(changes)))
        if len(self.runs) == self.interrupt_at:
            raise KeyboardInterrupt
        fails = {change.name: self.fails[change.name] for change in changes if change.name in self.fails}
        refused = {change: f"{change}=1" for change, how in fails.items() if how == "not_applied"}
        if how := next((how for how in fails.values() if how != "not_applied"), None):
            return Run(Path(name), 1.0, failed=how, detail="Segmentation fault")
        changes = [change for change in changes if change.name not in refused]
        self.drifted += self.random.gauss(0, self.drift)
        level = math.log(50e6) + self._between() + self.drifted + self.jump * (len(self.runs) >= self.jumps_at)
        names = {change.name for change in changes}
        level += sum(math.log1p(-self.gains.get(one, 0.0)) for one in names if self.behind.get(one, one) in names)
        steps = [
            round(math.exp(level + abs(self.random.gauss(0, self.within))) * (5 if self.random.random() < 0.005 else 1))
            for _ in range(STEPS)
        ]
        moved = 1 + sum(self.moves.get(change.name, 0.0) for change in changes)
        part = RankPart(rank=0, facts={"step_ns": steps, "losses": [moved * loss for loss in LOSSES]})
        failed: Failed | None = "not_applied" if refused else None
        return Run(Path(name), 1.0, step_of([part]), losses_of([part]), failed=failed, refused=refused)

    def _between(self) -> float:
        """Student's, scaled to the standard deviation asked for."""
        drawn = self.random.gauss(0, self.between)
        if math.isinf(self.tails):
            return drawn
        worth = self.random.gammavariate(self.tails / 2, 2) / self.tails
        return drawn / math.sqrt(worth) * math.sqrt((self.tails - 2) / self.tails)

    def profiled(self, name: str, changes: Sequence[Change] = ()) -> tuple[dict[str, Any], Run] | None:
        run = self.timed(name, changes)
        return None if run is None else ({"suggestions": []}, replace(run, beside_profiler=True))


def candidate(name: str, predicted: float = 0.9, finding: str = "") -> Candidate:
    findings = frozenset({finding} if finding else ())
    changes = (Change(name, "1"),)
    return Candidate(name, f"set {name}", f"{name}=1", changes, predicted, predicted, predicted, findings=findings)


def session(job: Job, *names: str | Candidate, apart: bool = False, bounds: Collection[str] = ()) -> Session:
    """A session whose advice is to set each of these once, in this order; run to its end. `apart`: each answers a
    finding of its own. Of `bounds` no more than a bound is known."""
    advised = [one if isinstance(one, Candidate) else candidate(one, finding=one if apart else "") for one in names]
    advised = [
        replace(one, after=None, low=None, high=None, bound=0.3) if one.code in bounds else one for one in advised
    ]
    made = Session(job, [lambda _: Advice(advised, [])], lambda _: False)
    made.begin()
    try:
        made.improve()
    except KeyboardInterrupt:
        made.ended = "interrupted"
    return made


def kept(found: Session) -> list[str]:
    return [row["code"] for row in found.tried if row["kept"]]
