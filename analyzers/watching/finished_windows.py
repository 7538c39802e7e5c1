"""The verdict on what a running job has recorded so far: its finished windows, analysed when one is added."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from gpuscope.analyzers.run.runner import Options, run
from gpuscope.analyzers.watching.alerts import Alert
from gpuscope.errors import GpuscopeError
from gpuscope.report.schema.document import Report
from gpuscope.report.view import headline
from gpuscope.sources.opening import inputs


@dataclass(frozen=True)
class WindowsSeen:
    """What the finished windows show."""

    sentence: str = ""
    """The verdict in one line, or why there is none; empty without windows."""
    alert: Alert | None = None
    """A rank that the others wait for in them again and again: known on GPUs too, where steps don't measure it."""


class FinishedWindows:
    """Analyses the folder once for each set of finished windows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._of: tuple[str, ...] = ()
        self._seen = WindowsSeen()

    def look(self, windows: tuple[str, ...]) -> WindowsSeen:
        """What these windows show."""
        with self._lock:
            if windows and windows != self._of:
                self._of, self._seen = windows, self._analysed(windows)
            return self._seen

    def _analysed(self, windows: tuple[str, ...]) -> WindowsSeen:
        paths = [str(self._folder / name) for name in windows]
        try:
            report = run(inputs(paths, None), Options()).report
        except GpuscopeError as error:
            return WindowsSeen(f"the finished windows can't be analysed yet: {error}")
        return WindowsSeen(headline.verdict_line(report), straggler(report))


def straggler(report: Report) -> Alert | None:
    """The ranks that are late in the windows, if they are few; who takes turns is no alert."""
    ranks = tuple(sorted(one["rank"] for one in report["stragglers"] if one["recurrent"]))
    found = next((one for one in report["findings"] if one["code"] == "straggler"), None)
    if found is None or not ranks or 2 * len(ranks) > len(report["trace"]["ranks_present"]):
        return None
    return Alert("late_in_windows", ranks, f"in the finished windows: {found['message']}")
