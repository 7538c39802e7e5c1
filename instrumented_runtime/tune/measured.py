"""One recording as tuning sees it: its step time with its spread, its first losses, and what went wrong.

The step time is the median over blocks of steps of their mean: the mean of a block holds whatever comes round every few
steps (a batch of each loader worker), which a median of single steps would leave out, and the median over blocks leaves
out a single hiccup.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean, median
from time import monotonic
from typing import IO, Any, Literal

from gpuscope.errors import GpuscopeError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.launch import kill, kill_tree, process_tree
from gpuscope.instrumented_runtime.record.manifest import RankPart
from gpuscope.instrumented_runtime.record.run_folder import rank_parts
from gpuscope.instrumented_runtime.tune.budget import Budget
from gpuscope.welch import Interval, Sample, median_interval, sample, student

WARM_UP = 10
"""Steps that are not judged: caches, allocators and buckets settle, compilers compile."""
LEAST_WARM_UP = 2
BLOCK, LEAST_BLOCKS = 8, 5

Failed = Literal["hung", "failed", "no_steps", "not_applied", "budget"]


@dataclass(frozen=True)
class Run:
    """A recording that has ended, in whichever way."""

    folder: Path
    seconds: float = 0.0
    step: Sample | None = None
    """Of the logarithm of its step time in ns."""
    losses: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """The first ones by rank."""
    failed: Failed | None = None
    detail: str = ""
    """What it said last, or for how long nothing was heard."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By the name of each change that no rank could make, what it was and why not. Its step is that of the others."""
    beside_profiler: bool = False
    """Whether its steps are those behind the profiler's: more hooks stay beside them than in other runs."""


def queued(parts: Sequence[RankPart]) -> int:
    """Batches that loader workers hold ready at most: what is taken from there while it empties is no steady step."""
    seen = [part.facts.get("settings") or {} for part in parts]
    workers = max((_largest(one.get("dataloader.num_workers")) for one in seen), default=0)
    return workers * max((_largest(one.get("dataloader.prefetch_factor")) for one in seen), default=0)


def step_of(parts: Sequence[RankPart], profiled: int = 0) -> Sample | None:
    """The logarithm of the step time of a run, over its blocks; of several ranks the slowest's. None of too few.
    The first `profiled` steps and what the profiler's end held up count in no case."""
    ranks = [[float(ns) for ns in part.facts.get("step_ns") or ()] for part in parts]
    count = min((len(steps) for steps in ranks), default=0)
    warm_up = max(min(max(WARM_UP, profiled) + queued(parts), max(count // 2, LEAST_WARM_UP)), profiled)
    blocks = [_blocks(steps[warm_up:count]) for steps in ranks]
    slowest = [max(of_ranks) for of_ranks in zip(*blocks, strict=True)]
    return sample([math.log(max(ns, 1.0)) for ns in slowest])


def losses_of(parts: Sequence[RankPart]) -> dict[int, list[float]]:
    """The first losses of each rank that told any."""
    return {part.rank: [_number(one) for one in told] for part in parts if (told := part.facts.get("losses"))}


def step_ns(runs: Sequence[Run]) -> int:
    """The step time of runs with the same settings, ns."""
    return round(math.exp(fmean(levels(runs))))


def better_known(runs: Sequence[Run], run: Run) -> list[Run]:
    """Runs with the same settings and one more. Hooks beside steps behind the profiler's only add to them: they count
    where nothing else is known, or where a run of its own took longer, which had to read files first, say."""
    every = [*runs, run]
    shortest = min(levels([one for one in every if not one.beside_profiler]), default=math.inf)
    return [one for one in every if not one.beside_profiler or levels([one])[0] < shortest]


def levels(runs: Sequence[Run]) -> list[float]:
    """Each run's step time, as a logarithm."""
    return [run.step.median for run in runs if run.step is not None]


def _blocks(steps: Sequence[float]) -> list[float]:
    size = min(BLOCK, max(len(steps) // LEAST_BLOCKS, 1))
    return [fmean(steps[at : at + size]) for at in range(0, len(steps) - size + 1, size)]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _largest(rows: Any) -> int:
    """The largest whole number among the values of a setting."""
    return max((int(one["value"]) for one in rows or () if str(one.get("value")).isdigit()), default=0)


# How much runs with the same settings differ, and what two groups of runs say of each other.
#
# A run is one value: the steps within it show less than what two runs differ by (clocks, placement, neighbours). The
# variance between runs is pooled over the groups of the session, each of the same settings, whose step is about as
# long,
# so that few runs of each do; never below what the steps within the runs show. The interval of the difference is
# Student's, by `gpuscope.welch`.


@dataclass(frozen=True)
class Noise:
    """Variance of a run's step time, as a logarithm, and with how many degrees of freedom it is known."""

    variance: float
    freedom: int

    @property
    def fraction(self) -> float:
        """The standard deviation: for small ones the share of the step."""
        return math.sqrt(self.variance)

    def interval(self, middle: float, before: float, after: float) -> Interval:
        """The 95 % interval of the difference of two groups of so many runs."""
        return median_interval(Sample(middle, self.variance * (1 / before + 1 / after), self.freedom))

    def apart(self, before: float, after: float) -> float:
        """How far two groups of so many runs with the same step lie apart at most, nine times in ten."""
        return student(0.05, self.freedom) * math.sqrt(self.variance * (1 / before + 1 / after))


PRIOR = Noise(0.072**2, 4)
"""What is assumed until runs have shown it: a standard deviation of 7.2 %, as measured between the runs of the session
in docs/tuning.md, on two cores that other jobs kept busy. On quiet machines runs differ by a tenth of that."""
ENOUGH = 3
"""Degrees of freedom from which a session's own runs tell it."""


def assumed(known: Noise | None) -> Noise:
    """What runs have shown, where these are enough; else with what is assumed."""
    return known if known is not None and known.freedom >= ENOUGH else with_prior(known)


def with_prior(known: Noise | None) -> Noise:
    """What runs have shown and what is assumed, each by its degrees of freedom; no less than what was shown."""
    if known is None:
        return PRIOR
    freedom = PRIOR.freedom + known.freedom
    pooled = (PRIOR.freedom * PRIOR.variance + known.freedom * known.variance) / freedom
    return Noise(max(pooled, known.variance), freedom)


NEAR = 1.5
"""Steps that differ by no more than this factor are taken to be as noisy as each other."""


def near(groups: Sequence[Sequence[Run]], best: Sequence[Run]) -> list[Sequence[Run]]:
    """The groups whose step is about as long as the best's."""
    middle = fmean(levels(best))
    return [one for one in groups if (own := levels(one)) and abs(fmean(own) - middle) <= math.log(NEAR)]


def noise(groups: Sequence[Sequence[Run]]) -> Noise | None:
    """Pooled over groups of runs, each of the same settings; None where no group has two."""
    measured = [own for group in groups if (own := levels(group))]
    freedom = sum(len(own) - 1 for own in measured)
    if not freedom:
        return None
    squares = sum((one - fmean(own)) ** 2 for own in measured for one in own)
    # The median: a hiccup in a block makes one run's own spread huge.
    within = median(run.step.error for group in groups for run in group if run.step is not None)
    return Noise(max(squares / freedom, within), freedom)


def change(before: Sequence[Run], after: Sequence[Run], known: Noise) -> Interval:
    """The 95 % interval of the logarithm of after / before."""
    one, other = levels(before), levels(after)
    return known.interval(fmean(other) - fmean(one), len(one), len(other))


# Whether a change moved what training computes, by the losses of the first steps.
#
# Runs of one command with the same settings differ by the order of sums, or, where the script sets no seed, by all that
# is drawn. What the baseline's runs differ by is known; a change may move losses by twice as much, and in any case by
# `REDUCTION_ORDER`, for it may change the order of sums itself.

REDUCTION_ORDER = 1e-3
"""Of a loss: rounding of 1e-7 in one step grows over the first twenty, by far less than this."""
TIMES = 2.0
DEVIATIONS = 3.0
"""Of the difference of two means, beyond which other random numbers in the data don't explain it."""
LEAST_STEPS = 5
"""Losses that tell how much steps differ."""
NORMAL_MAD = 1.4826
ALLOWED = 0.05
"""What changes may move losses by that were allowed to alter training: more is no rounding of a smaller type."""

Losses = Mapping[int, Sequence[float]]


def distance(one: Losses, other: Losses) -> float | None:
    """The largest difference of two losses of the same rank and step, as a fraction; None where none can be compared.
    Infinite where one of them is no number and the other is."""
    pairs = [pair for rank in one.keys() & other.keys() for pair in zip(one[rank], other[rank], strict=False)]
    return max((_apart(*pair) for pair in pairs), default=None)


def own_noise(groups: Sequence[Sequence[Run]]) -> float | None:
    """What runs with the same settings differ by at most; None where no two showed their losses."""
    found = [distance(one.losses, other.losses) for runs in groups for one, other in combinations(runs, 2)]
    known = [one for one in found if one is not None]
    return max(known, default=None)


def spread(runs: Sequence[Run]) -> float | None:
    """By how much the losses of two steps differ by chance, as a fraction: from one step to the next, so that
    training's own progress counts little; of the rank where that is most. None where fewer than `LEAST_STEPS` are
    known."""
    found = []
    for own in (own for run in runs for own in run.losses.values()):
        finite = [loss for loss in own if math.isfinite(loss)]
        level = abs(median(finite)) if finite else 0.0
        if len(finite) >= LEAST_STEPS and level:
            found.append(NORMAL_MAD * median(abs(b - a) for a, b in pairwise(finite)) / level)
    return max(found, default=None)


def moved_in_all(best: Sequence[Run], trial: Run) -> tuple[float, int] | None:
    """How far the mean loss of a run is from the nearest of the best's, as a fraction, and over how many steps; None
    where they can't be compared."""
    found = []
    for run in best:
        sides = [
            tuple(zip(*pairs, strict=True))
            for rank in run.losses.keys() & trial.losses.keys()
            if (pairs := list(zip(run.losses[rank], trial.losses[rank], strict=False)))
        ]
        if sides:
            far = max(_apart(fmean(one), fmean(other)) for one, other in sides)
            found.append((far, min(len(one) for one, _ in sides)))
    return min(found, default=None)


def limit_of_draws(runs: Sequence[Run], steps: int) -> float | None:
    """By how much other random numbers in the data may move the mean loss of so many steps, as a fraction; None where
    the steps' own spread is not known."""
    by_step = spread(runs)
    return None if by_step is None else DEVIATIONS * by_step / math.sqrt(steps)


def compared(groups: Sequence[Sequence[Run]]) -> Literal["equal", "within_noise", "seen_once", "not_seen"]:
    """How the losses of runs with the same settings compare."""
    found = own_noise(groups)
    if found is None:
        return "seen_once" if any(run.losses for runs in groups for run in runs) else "not_seen"
    return "within_noise" if found else "equal"


def limit(groups: Sequence[Sequence[Run]], *, alters: bool) -> float | None:
    """By how much a change may move losses, as a fraction; None where the baseline's were not seen. Until two runs with
    the same settings showed theirs, these are taken to be equal."""
    if not any(run.losses for runs in groups for run in runs):
        return None
    return max(TIMES * (own_noise(groups) or 0.0), ALLOWED if alters else REDUCTION_ORDER)


def moved(best: Sequence[Run], trial: Run) -> float | None:
    """How far the losses of a run are from the nearest of the best's; None where they can't be compared."""
    found = [distance(run.losses, trial.losses) for run in best]
    known = [one for one in found if one is not None]
    return min(known, default=None)


def _apart(one: float, other: float) -> float:
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other) / max(abs(one), abs(other), 1e-12)
    return 0.0 if math.isfinite(one) == math.isfinite(other) else math.inf


# The argument by which a script is told where to write: each trial gets a folder of its own there.


def with_output(command: Sequence[str], argument: str, folder: Path) -> list[str]:
    """The command with `argument` naming `folder`: in place of what it names, else at the end; unchanged where there is
    none. `--out` takes the next word, `--out=` and `hydra.run.dir=` (with the `=`) are one word with it."""
    words = list(command)
    if not argument:
        return words
    name = argument.removesuffix("=")
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            return [*words[:at], f"{name}={folder}", *words[at + 1 :]]
        if word == name and at + 1 < len(words):
            return [*words[: at + 1], str(folder), *words[at + 2 :]]
    return [*words, f"{name}={folder}"] if argument.endswith("=") else [*words, name, str(folder)]


# One recording of the command with changes, as a process of `gpuscope record` that may crash or hang.

GPUSCOPE = (sys.executable, "-m", "gpuscope")
TIMED = (
    "--profiler",
    "none",
    "--no-collectives",
    "--no-nccl-log",
    "--no-gc",
    "--flight-recorder",
    "0",
    "--memory",
    "off",
)
"""Steps are timed with as little beside them as there can be."""
PROFILED_STEPS = 12
"""Those that the profiler's defaults take: two skipped, one to warm up, eight recorded; and one to end in."""
FIRST_LIMIT_S, TRIAL_TIMES, MORE_S = 3600.0, 3.0, 60.0
"""How long a run may take: before any has ended, and then in times of the longest so far, with room to compile."""
ANALYSIS_LIMIT_S = 1800.0
FINE, MORE_STEPS = 0.03, 4.0
"""Standard error of a run's step, as a share, above which later runs take more steps; and how many times as many at
most. Starting a run usually takes longer than these."""
PREFETCH = 2
"""Batches that a worker holds ready, unless the script says otherwise."""


@dataclass
class Recorder:
    """Makes the runs of a session, one after the other, within its budget."""

    command: Sequence[str]
    folder: Path
    budget: Budget
    steps: int
    allow: Sequence[str] = ()
    output_argument: str = ""
    longest_s: float = 0.0
    runs_s: float = 0.0
    analysis_s: float = 0.0
    """Spent in runs of the command, and in their analysis."""
    queue: int = 0
    """Batches that loader workers of a run held ready at most."""
    times: float = 1.0
    """Of `steps`, what a run takes: as many as the spread of the steps so far calls for."""
    numbers: dict[str, int] = field(default_factory=dict)

    def timed(self, name: str, changes: Sequence[Change] = ()) -> Run | None:
        """The command with changes, without a profiler; None where the budget allows no further run."""
        steps = WARM_UP + self._queued(changes) + round(self.steps * self.times)
        recorded = self._record(name, changes, [*TIMED, "--stop-after", str(steps)])
        if recorded is None:
            return None
        return self._seen(*recorded, changes)

    def profiled(self, name: str, changes: Sequence[Change] = ()) -> tuple[dict[str, Any], Run] | None:
        """The report of the command with changes under the profiler, and its steps behind those; None where the budget
        allows none. The report is empty where the recording or its analysis failed."""
        steps = PROFILED_STEPS + self._queued(changes) + self.steps
        recorded = self._record(name, changes, ["--stop-after", str(steps)])
        if recorded is None:
            return None
        run = self._seen(*recorded, changes, PROFILED_STEPS)
        if recorded[1].code != 0:
            return {}, run
        begun = monotonic()
        report = analysed(recorded[0], min(self.budget.left_s, ANALYSIS_LIMIT_S))
        self.analysis_s += monotonic() - begun
        return report, run

    def _seen(self, made: Path, ended: Ended, changes: Sequence[Change], profiled: int = 0) -> Run:
        """What a recording came to."""
        if ended.code is None:
            over = self.budget.left_s <= 0
            return Run(made, ended.seconds, failed="budget" if over else "hung", detail=f"{ended.seconds:.0f}")
        if ended.code:
            return Run(made, ended.seconds, failed="failed", detail="\n".join(last_lines(_log(made))))
        parts = _parts(made)
        refused = _refused(parts, changes)
        failed: Failed | None = "not_applied" if refused else None
        self.queue = max(self.queue, queued(parts))
        step = step_of(parts, profiled)
        if step is None:
            return Run(made, ended.seconds, failed=failed or "no_steps", refused=refused)
        self.longest_s = max(self.longest_s, ended.seconds)
        self.times = min(max(self.times, step.error / FINE**2), MORE_STEPS)
        return Run(
            made, ended.seconds, step, losses_of(parts), failed=failed, refused=refused, beside_profiler=profiled > 0
        )

    def _queued(self, changes: Sequence[Change]) -> int:
        """Batches that workers will hold ready, as far as changes and the runs before tell."""
        asked = {change.name: change for change in changes}
        workers, ahead = asked.get("dataloader.num_workers"), asked.get("dataloader.prefetch_factor")
        if workers is None:
            return self.queue
        if workers.times is not None:
            return self.queue * workers.times
        return max(self.queue, int(workers.value) * (int(ahead.value) if ahead is not None else PREFETCH))

    def _record(self, name: str, changes: Sequence[Change], options: Iterable[str]) -> tuple[Path, Ended] | None:
        if not self.budget.start(self.longest_s):
            return None
        self.numbers[name] = self.numbers.get(name, 0) + 1
        made = self.folder / f"{name}-{self.numbers[name]}"
        scratch = self.folder / "scratch" / made.name
        if self.output_argument:
            scratch.mkdir(parents=True)
        words = [*GPUSCOPE, "record", "-o", str(made), *options]
        for change in changes:
            words += ["--set", str(change)]
        for group in self.allow:
            words += ["--allow", group]
        command = with_output(self.command, self.output_argument, scratch)
        limit = TRIAL_TIMES * self.longest_s + MORE_S if self.longest_s else FIRST_LIMIT_S
        ended = run([*words, "--", *command], _log(made), min(limit, self.budget.left_s))
        self.runs_s += ended.seconds
        return made, ended


def analysed(folder: Path, limit_s: float) -> dict[str, Any]:
    """The report of a run folder, by `gpuscope analyze` in a process of its own: the recorder stands on no analysis.
    Empty where it fails."""
    report = folder.with_name(f"{folder.name}.report.json")
    command = [*GPUSCOPE, "analyze", str(folder), "--json", "--no-store"]
    ended = run(command, folder.with_name(f"{folder.name}.analysis.log"), limit_s, report)
    if ended.code != 0:
        return {}
    with suppress(OSError, ValueError):
        found = json.loads(report.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _log(folder: Path) -> Path:
    """What the command wrote: beside its run folder, which has to be new."""
    return folder.with_name(f"{folder.name}.log")


def _parts(folder: Path) -> list[RankPart]:
    try:
        return rank_parts(folder)
    except GpuscopeError:
        return []


def _refused(parts: Sequence[RankPart], changes: Sequence[Change]) -> dict[str, str]:
    """By their names the changes that no rank could make, and why."""
    found = {}
    for change in changes:
        rows = [row for part in parts if (row := (part.facts.get("applied") or {}).get(change.name)) is not None]
        if rows and not any(row.get("times") for row in rows):
            whys = {str(refusal.get("why", "")) for row in rows for refusal in row.get("not", ())}
            found[change.name] = f"{change}" + (f": {'; '.join(sorted(whys))}" if whys else "")
    return found


GRACE_S = 10.0
"""Between SIGTERM, at which a recorder writes what it has, and SIGKILL."""
TOLD = 12
"""Last lines of a failed command that are shown."""
_LINE = 300


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, None where it was killed at its limit; and how long it ran."""

    code: int | None
    seconds: float


def run(command: Sequence[str], log: Path, limit_s: float, output: Path | None = None) -> Ended:
    """Run a command with its output in `log` (stdout in `output`, where given) for at most `limit_s`.

    Nothing of it is left behind, also where this process is interrupted meanwhile.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as files:
        told: IO[bytes] = files.enter_context(log.open("wb"))
        out = files.enter_context(output.open("wb")) if output is not None else told
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=told,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(None if limit_s == float("inf") else max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            code = None
            started = process_tree(process.pid)  # before a launcher ends: its ranks are nobody's children then
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            kill(started)
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait()
            # What outlived its parents: the session is the process's own, so the group is too.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
    return Ended(code, time.monotonic() - began)


def last_lines(log: Path) -> list[str]:
    """The last lines that a command wrote, without gpuscope's own and without empty ones."""
    try:
        text = log.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rstrip()[:_LINE] for line in text.splitlines() if line.strip()]
    return [line for line in lines if not line.startswith("gpuscope:")][-TOLD:]
