"""Progress on stderr for what takes longer than a second; silent unless stderr is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from gpuscope.words.units import clean

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 1.0
"""What is done sooner than this shows nothing."""

_LABEL = 40


def watched() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    # Not rich's own judgement: FORCE_COLOR makes it call a pipe a terminal.
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    from rich.console import Console

    return not Console(stderr=True).is_dumb_terminal


class _Display(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


@contextmanager
def _shown_later(display: _Display) -> Iterator[None]:
    """`display` from PATIENCE_S on, unless the block is over by then."""
    lock = threading.Lock()
    over = False

    def show() -> None:
        with lock:
            if not over:
                display.start()

    timer = threading.Timer(PATIENCE_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            display.stop()


class Reading:
    """Call it with the number of bytes just read, as `ReadOptions.advance` is."""

    def __init__(self, total_bytes: int | None, label: str, files: int) -> None:
        self.total_bytes = total_bytes
        self.files = files
        self.done_bytes = 0
        self.begun_files = 0
        self.label = label
        self._bar: Progress | None = None

    def __call__(self, nbytes: int) -> None:
        self.done_bytes += nbytes
        self._draw()

    def file(self, name: str) -> None:
        """The next file begins: counted where there are several."""
        self.begun_files += 1
        self.say(name)

    def say(self, text: str) -> None:
        """What is going on now; called as `ReadOptions.status`."""
        self.label = text
        self._draw()

    def describe(self) -> str:
        """`3/64 rank2.json.gz`, in at most some 40 characters."""
        name = clean(self.label)
        if len(name) > _LABEL:
            name = "…" + name[1 - _LABEL :]
        return f"{self.begun_files}/{self.files} {name}" if self.files > 1 and self.begun_files else name

    def on(self, bar: Progress) -> None:
        """Draw on `bar` from now on."""
        bar.add_task(self.describe(), total=self.total_bytes)
        self._bar = bar

    def _draw(self) -> None:
        if self._bar is None:
            return
        # A file may have grown since its size was asked for.
        total = self.total_bytes if self.total_bytes is None else max(self.total_bytes, self.done_bytes)
        self._bar.update(self._bar.task_ids[0], completed=self.done_bytes, total=total, description=self.describe())


@contextmanager
def reading(total_bytes: int | None, label: str, *, files: int = 1) -> Iterator[Reading]:
    """A bar over `total_bytes` (None: unknown) while `files` files are read.

    >>> with reading(path.stat().st_size, path.name) as advance:  # doctest: +SKIP
    ...     for block in blocks:
    ...         advance(len(block))
    """
    advance = Reading(total_bytes, label, files)
    if not watched():
        yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    # Transient: what stays on the screen is the report.
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    advance.on(bar)
    with _shown_later(bar):
        yield advance


@contextmanager
def status(text: str) -> Iterator[None]:
    """A spinner while something runs without reporting progress, such as `nsys export`."""
    if not watched():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with _shown_later(Console(stderr=True).status(Text(clean(text)))):
        yield
