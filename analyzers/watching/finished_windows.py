"""The verdict on what a running job has recorded so far: its finished windows, analysed when one is added."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from gpuscope.analyzers.run.runner import Options, run
from gpuscope.errors import GpuscopeError
from gpuscope.report.view import headline
from gpuscope.schema.document import Report
from gpuscope.sources.opening import inputs


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
