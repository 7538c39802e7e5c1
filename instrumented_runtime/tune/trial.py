"""One recording of the command with changes, as a process of `gpuscope record` that may crash or hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import IO, Any

from gpuscope.errors import GpuscopeError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.files.manifest import RankPart
from gpuscope.instrumented_runtime.record.launch import kill, kill_tree, process_tree
from gpuscope.instrumented_runtime.record.run_folder import rank_parts
from gpuscope.instrumented_runtime.tune.budget import Budget
from gpuscope.instrumented_runtime.tune.measured import WARM_UP, Failed, Run, losses_of, queued, step_of
from gpuscope.instrumented_runtime.tune.output_argument import with_output

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
FIRST_LIMIT_S, TIMES, MORE_S = 3600.0, 3.0, 60.0
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
        limit = TIMES * self.longest_s + MORE_S if self.longest_s else FIRST_LIMIT_S
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
