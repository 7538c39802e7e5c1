"""The console that reports are printed to."""

from __future__ import annotations

from rich.console import Console


class ReportConsole(Console):
    """Standard output. Where nobody reads it any more, that is the command line's to handle, not rich's:
    rich would exit with 1, which means something else here."""

    def __init__(self) -> None:
        super().__init__(highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
