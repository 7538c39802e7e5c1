"""The measures of a run folder, read as they are written: `measures/rank{r}.jsonl`, else digests, else `steps/` where a
job writes no measures; a line per step. Of a job that was restarted, the last attempt that wrote any."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import Any

from gpuscope.analyzers.run.runner import Options, run
from gpuscope.callbacks.callback import AlertChange, Callback, WindowVerdict, step_measures
from gpuscope.errors import GpuscopeError, InputError
from gpuscope.report.view import headline
from gpuscope.schema.document import Report
from gpuscope.sources.digest import SUFFIX as DIGEST
from gpuscope.sources.digest import VERSION
from gpuscope.sources.opening import inputs
from gpuscope.sources.run_manifest import (
    MANIFEST,
    PARTS,
    Refused,
    RefusedError,
    ended,
    finished_traces,
    listed,
    opened,
    refused_files,
    reported_hangs,
)
from gpuscope.sources.source import attempts, json_object
from gpuscope.when_used import dataclass

# The verdict on what a running job has recorded so far: its finished windows, analysed when one is added.


class WindowsVerdict:
    """Analyses the folder once for each set of finished windows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._of: tuple[str, ...] = ()
        self._said = ""
        self._report: Report | None = None

    def sentence(self, windows: tuple[str, ...]) -> str:
        """The verdict in one line, or why there is none; empty without windows."""
        return self.look(windows)[0]

    def look(self, windows: tuple[str, ...]) -> tuple[str, Report | None]:
        """That sentence, and the report that it is of; None without windows, or where they can't be analysed yet."""
        with self._lock:
            if windows and windows != self._of:
                self._of = windows
                self._said, self._report = self._analysed(windows)
            return self._said, self._report

    def _analysed(self, windows: tuple[str, ...]) -> tuple[str, Report | None]:
        paths = [str(self._folder / name) for name in windows]
        try:
            report = run(inputs(paths, None), Options()).report
        except GpuscopeError as error:
            return f"the finished windows can't be analysed yet: {error}", None
        return headline.verdict_line(report), report


KEPT = 5_000
"""Steps kept of each rank, the last ones."""
BLOCK = 1 << 20
"""Bytes read at once. A line longer than that is no step: some 400 bytes are."""
LARGEST = 1 << 30
"""Bytes of a rank's measures: some million steps."""


@dataclass(frozen=True)
class MeasuredStep:
    """One step of one rank as it measured it, ns."""

    step: int
    rank: int
    end_ns: int
    step_ns: int
    exposed_ns: int | None
    """Exposed communication; None where it is not measured, or measured as longer than the step."""
    data_wait_ns: int
    first: bool
    """The first after a (re)start: it also allocates, connects and compiles."""
    tokens_per_s: float | None
    loss: float | None
    core_wait_ns: int = 0
    """Time in which its training thread was ready and had no core, where that is counted."""
    transfers: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """Of a digest, by operation and group: collectives, their bytes, and ns from issue to end."""

    @property
    def own_ns(self) -> int | None:
        """What the rank needed itself: the step without the time it waited for, or spent in, communication, or had no
        core."""
        return None if self.exposed_ns is None else max(self.step_ns - self.exposed_ns - self.core_wait_ns, 0)


@dataclass(frozen=True)
class Seen:
    """What a run folder holds now: steps by rank and number, lost lines, finished windows, how the run ended."""

    steps: Mapping[int, Mapping[int, MeasuredStep]]
    lost: int
    windows: tuple[str, ...]
    """Traces that are finished, as paths within the folder."""
    status: str
    """`running`, `completed`, `failed`, …; empty where no manifest says."""
    refused: tuple[Refused, ...] = ()
    """Files of the folder that are not read."""
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The ranks of each process group that digests name."""
    hangs: tuple[str, ...] = ()
    """What the recorder's hang watch says of a hang."""


@dataclass
class _Place:
    """How far a file of measures is read."""

    done: int = 0
    within: bool = False
    """In a line that is too long, which was counted as lost."""


class RunWatcher:
    """Reads a run folder's measures; each `look` reads only what was added. Several threads may look."""

    def __init__(self, folder: Path, each: Callable[[Mapping[str, Any]], None] = lambda _: None) -> None:
        """`each` is given every line that could be read, once. Raises `InputError` where `folder` is no run folder."""
        self._each = each
        if not folder.is_dir():
            raise InputError(
                f"{folder} is a file, not a run folder" if folder.exists() else f"{folder}: no such folder",
                hint="give the run folder that gpuscope train or record writes",
            )
        if not (folder / MANIFEST).exists() and not (folder / PARTS).exists():
            raise InputError(
                f"{folder} is not a run folder: it has no {MANIFEST}",
                hint="give the folder that gpuscope train or gpuscope record writes",
            )
        self.folder = folder
        self._places: dict[Path, _Place] = {}
        self._steps: dict[int, dict[int, MeasuredStep]] = {}
        self._groups: dict[str, tuple[int, ...]] = {}
        self._lost = 0
        self._attempt = ""
        self._lock = Lock()

    def look(self) -> Seen:
        """Everything so far."""
        with self._lock:
            refused = self._measures()
            steps = {rank: dict(own) for rank, own in sorted(self._steps.items())}
        how = ended(self.folder)
        windows = tuple(finished_traces(self.folder))
        refused = sorted({*refused, *refused_files(self.folder)})
        status = "" if how is None else how.status
        hangs = tuple(reported_hangs(self.folder))
        return Seen(steps, self._lost, windows, status, tuple(refused), dict(self._groups), hangs)

    def _measures(self) -> list[Refused]:
        """Read what was added to each file; what must not be read."""
        found: list[Refused] = []
        try:
            kinds = (("measures", ".jsonl"), ("digest", DIGEST), ("steps", ".jsonl"))
            every = attempts(self.folder)
            places = ((attempt, attempt + inner, suffix) for inner, suffix in kinds for attempt in every)
            attempt, paths = next(
                ((attempt, there) for attempt, *place in places if (there := listed(self.folder, *place))), ("", [])
            )
        except RefusedError as error:
            return [error.refused]
        except OSError:
            return []
        if attempt != self._attempt:
            self._attempt, self._steps, self._groups = attempt, {}, {}  # its steps count from 0 again
        for path in paths:
            try:
                self._added(path)
            except RefusedError as error:
                found.append(error.refused)
            except OSError:
                continue  # it is there next time, or its rank is reported as behind
        return found

    def _added(self, path: Path) -> None:
        place = self._places.setdefault(path, _Place())
        with opened(self.folder, path, LARGEST) as file:
            size = file.seek(0, 2)
            if size < place.done:
                place.done, place.within = 0, False  # a restart begins its file anew
            if not place.done and path.name.endswith(DIGEST):
                file.seek(0)
                if (json_object(file.readline(BLOCK)) or {}).get("gpuscope_digest", VERSION) != VERSION:
                    raise RefusedError(Refused(str(path.relative_to(self.folder)), "newer"))
            while place.done < size:
                file.seek(place.done)
                block = file.read(min(BLOCK, size - place.done))
                if not self._took(block, place):
                    return

    def _took(self, block: bytes, place: _Place) -> bool:
        """Take the lines that end in a block; False where none does because it is still being written."""
        whole = block.rfind(b"\n") + 1
        if not whole:
            if len(block) < BLOCK and not place.within:
                return False
            self._lost += not place.within
            place.within = True
            place.done += len(block)
            return bool(block)
        place.done += whole
        lines = block[:whole].splitlines()
        for line in lines[1:] if place.within else lines:
            self._step(line)
        place.within = False
        return True

    def _step(self, line: bytes) -> None:
        found = json_object(line)
        if found is not None and self._of_digest(found):
            return
        step = None if found is None else _step(found)
        if found is None or step is None:
            self._lost += 1
            return
        self._each(found)
        own = self._steps.setdefault(step.rank, {})
        own[step.step] = step
        if len(own) > KEPT:
            del own[min(own)]

    def _of_digest(self, found: Mapping[str, Any]) -> bool:
        """Whether a line is one of a digest's that stand before its steps."""
        ranks, group = found.get("ranks"), found.get("group")
        if isinstance(ranks, list) and isinstance(group, str) and all(isinstance(rank, int) for rank in ranks):
            self._groups[group] = tuple(ranks)
        return "step" not in found and not {"ranks", "kind", "gpuscope_digest"}.isdisjoint(found)


def _step(found: Mapping[str, Any]) -> MeasuredStep | None:
    """A line as a step; None if it is not one."""
    try:
        length, exposed = int(found["step_ns"]), _whole(found.get("exposed_communication_ns"))
        if exposed is not None and not 0 <= exposed <= length:
            exposed = None  # DDP's reducer compares clock readings of several threads: at times it is off
        return MeasuredStep(
            int(found["step"]),
            int(found["rank"]),
            int(found["end_ns"]),
            length,
            exposed,
            int(found.get("data_wait_ns") or 0),
            bool(found.get("first")),
            _number(found.get("tokens_per_s")),
            _number(found.get("loss")),
            int(found.get("core_wait_ns") or 0),
            _transfers(found),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _transfers(found: Mapping[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Of a GPU's digest those on the device."""
    sums = found.get("on_device_in_all") or found.get("collectives_in_all") or {}
    return {str(name): (int(count), int(size), int(ns)) for name, (count, size, ns, *_) in sums.items()}


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


# Hands what a running job measures, and the verdicts on its finished windows, to callbacks.


class Follower:
    """Follows a run folder for some callbacks: each `look` hands on what was added."""

    def __init__(
        self, folder: Path, callbacks: Sequence[Callback], failed: Callable[[Callback, Exception], None]
    ) -> None:
        """`failed` is told of a callback that raises; it gets nothing more. Raises `InputError` for no run folder."""
        self.watcher = RunWatcher(folder, self._step)
        self.verdict = WindowsVerdict(folder)
        self._callbacks = list(callbacks)
        self._failed = failed
        self._told: Report | None = None

    def look(self) -> Seen:
        """Hand on what was added since the last look."""
        seen = self.watcher.look()
        sentence, report = self.verdict.look(seen.windows)
        if report is not None and report is not self._told:
            self._told = report
            made = _window_verdict(sentence, report, seen)
            self._each(lambda callback: callback.on_verdict(made))
        return seen

    def tell(self, change: AlertChange) -> None:
        """Hand on an alert that has begun or is over, to those callbacks that take it."""
        self._each(lambda callback: getattr(callback, "on_alert", _ignore)(change))

    def close(self) -> None:
        """Close the callbacks."""
        self._each(lambda callback: callback.close())
        self._callbacks.clear()

    def _step(self, line: Mapping[str, Any]) -> None:
        measures = step_measures(line)
        self._each(lambda callback: callback.on_step(measures))

    def _each(self, call: Callable[[Callback], None]) -> None:
        for callback in list(self._callbacks):
            try:
                call(callback)
            except Exception as error:  # of another library, over a network: whatever it is, the others go on
                self._callbacks.remove(callback)
                self._failed(callback, error)


def _ignore(_: AlertChange) -> None:
    """For callbacks without `on_alert`."""


def follow(
    folder: str | os.PathLike[str], *callbacks: Callback, every: float = 2.0, until_end: bool = True
) -> list[str]:
    """Hand a run's measures and verdicts to `callbacks` until it ends: `gpuscope.follow`.

    `folder` is the run folder of `gpuscope train` or `gpuscope record`, looked at `every` so many seconds; without
    `until_end` once. Callbacks are those of `gpuscope.callbacks`, or anything with their three methods; all are closed
    at the end. Returns what went wrong with callbacks, one sentence each. Raises `InputError` where `folder` is no run
    folder.
    """
    wrong: list[str] = []
    follower = Follower(Path(folder), callbacks, lambda callback, error: wrong.append(failure(callback, error)))
    try:
        while follower.look().status in ("running", "") and until_end:
            time.sleep(every)
    finally:
        follower.close()
    return wrong


def failure(callback: Callback, error: Exception) -> str:
    """What went wrong with a callback, in a sentence."""
    return f"{type(callback).__name__}: {type(error).__name__}: {' '.join(str(error).split())}"


def _window_verdict(sentence: str, report: Report, seen: Seen) -> WindowVerdict:
    verdict, spread = report["verdict"], report["step_time"]
    return WindowVerdict(
        windows=len(seen.windows),
        step=max((max(own) for own in seen.steps.values() if own), default=0),
        end_ns=time.time_ns(),
        sentence=sentence,
        bound_by=None if verdict["abstained"] else verdict["bound_by"],
        cause=verdict["cause"],
        share_frac=verdict["share_frac"],
        confidence=verdict["confidence"],
        step_ns=None if spread is None else spread["median_ns"],
    )
