"""Jobs with noise of five shapes and events of eight kinds, as a log has them, and the truth about each."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

import numpy as np

NOISE = ("even", "heavy tails", "waves", "two lengths", "single long steps")
EVENTS = ("none", "shift", "growth", "long step", "restart", "slow evaluation", "slow start", "late rank")
BEGIN = datetime.datetime(2025, 6, 2, 10)
RANKS = 4


@dataclass
class Job:
    """A log and what is true of its job."""

    text: str
    event: str
    step: int
    """Where the event is; 0 for none."""
    goodput: float
    facts: dict[str, float] = field(default_factory=dict)


def noise(shape: str, count: int, drawn: np.random.Generator) -> np.ndarray:
    """What steps differ by, as factors."""
    if shape == "even":
        return 1 + 0.01 * drawn.standard_normal(count)
    if shape == "heavy tails":
        return 0.97 + 0.03 * drawn.lognormal(0, 1, count)
    if shape == "waves":
        own, found = 0.0, np.empty(count)
        for at in range(count):
            own = 0.9 * own + 0.004 * drawn.standard_normal()
            found[at] = 1 + own
        return found
    if shape == "two lengths":
        return np.where(drawn.random(count) < 0.4, 1.25, 1.0) * (1 + 0.01 * drawn.standard_normal(count))
    found = 1 + 0.01 * drawn.standard_normal(count)
    found[drawn.random(count) < 0.01] *= 4
    return found


def job(event: str, shape: str, seed: int) -> Job:
    """A job of 300 to 1,200 steps, of which every one is logged."""
    drawn = np.random.default_rng(seed)
    count = int(drawn.integers(300, 1200))
    base = float(drawn.uniform(0.2, 4.0))
    seconds = base * noise(shape, count, drawn)
    at = int(drawn.integers(count // 4, 3 * count // 4))
    facts: dict[str, float] = {}
    start, evaluation, every = 30.0 * base, 10.0 * base, count // 5
    if event == "shift":
        facts["times"] = float(drawn.uniform(1.15, 1.6)) if shape != "two lengths" else 1.6
        seconds[at:] *= facts["times"]
    elif event == "growth":
        seconds *= np.linspace(1, float(drawn.uniform(1.3, 2.0)), count)
    elif event == "long step":
        seconds[at] += 20 * base
    elif event == "slow start":
        start = 0.2 * float(seconds.sum())
    slow_at = every * (at // every) if event == "slow evaluation" else 0
    restart = at if event == "restart" else 0
    return _written(drawn, event, seconds, at, start, evaluation, every, slow_at, restart, facts)


def _written(
    drawn: np.random.Generator,
    event: str,
    seconds: np.ndarray,
    at: int,
    start: float,
    evaluation: float,
    every: int,
    slow_at: int,
    restart: int,
    facts: dict[str, float],
) -> Job:
    now, useful = 0.0, 0.0
    lines = [f"{_clock(now)} INFO starting"]
    now += start
    number = 1
    late = int(drawn.integers(0, RANKS)) if event == "late rank" else -1
    facts["rank"] = late
    restarted = False
    while number <= len(seconds):
        own = float(seconds[number - 1])
        now += own
        useful += own
        if event == "late rank":
            for rank in range(RANKS):
                mine = own * (1.2 if rank == late else 1.0) * (1 + 0.003 * drawn.standard_normal())
                lines.append(f"[rank{rank}]: {_clock(now)} INFO step {number} loss 2.31 step_time {mine:.5f} s")
        else:
            lines.append(f"{_clock(now)} INFO step {number} loss 2.31 step_time {own:.5f} s")
        if number == restart and not restarted:
            restarted = True
            again = 20
            now += 60 * float(seconds[0])
            useful -= float(seconds[number - again : number].sum())
            lines.append(f"{_clock(now)} INFO Resuming from checkpoint at step {number - again}")
            number -= again
        elif number % every == 0:
            took = evaluation * (8 if number == slow_at else 1)
            now += took
            lines.append(f"{_clock(now)} INFO evaluation took {took:.3f} s")
        number += 1
    return Job("\n".join(lines) + "\n", event, at if event != "none" else 0, useful / now, facts)


def _clock(seconds: float) -> str:
    moment = BEGIN + datetime.timedelta(seconds=seconds)
    return f"{moment.strftime('%Y-%m-%d %H:%M:%S')},{moment.microsecond // 1000:03d}"
