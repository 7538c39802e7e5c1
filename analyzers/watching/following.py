"""Hands what a running job measures, and the verdicts on its finished windows, to callbacks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.analyzers.watching.finished_windows import WindowsVerdict
from gpuscope.analyzers.watching.measures import RunWatcher, Seen
from gpuscope.callbacks.callback import AlertChange, Callback, WindowVerdict, step_measures
from gpuscope.schema.document import Report


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
