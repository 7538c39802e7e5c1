"""Cells of tables that fit themselves to their column: names are cropped, words wrapped."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text

from gpuscope import when_used
from gpuscope.words import units
from gpuscope.words.units import crop

KEPT = "\ue000"
"""Stands for a blank at which no line is broken; `units.clean` lets none through."""
_BREAK = when_used.pattern(r"[^.,=(:/]*[.,=(:/]+|[^.,=(:/]+")


class Cropped:
    """A cell's text, cropped by `how` to whatever room its column gets."""

    def __init__(self, text: str, ellipsis: str, how: Callable[[str, int, str], str] = crop) -> None:
        self.text = text
        self.ellipsis = ellipsis
        self.how = how

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.how(self.text, options.max_width, self.ellipsis), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(width, 12), min(width, options.max_width))


class Words:
    """A cell's text, wrapped at blanks but for those before a unit; a longer word breaks behind a sign rather than
    amid letters."""

    def __init__(self, text: str, style: str | Style = "") -> None:
        self.text = text
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if cell_len(self.text) <= options.max_width:
            yield Text(self.text, self.style)
            return
        lines = [""]
        for word in units.unbroken(self.text, KEPT).split(" "):
            for i, piece in enumerate([word] if cell_len(word) <= options.max_width else _BREAK.findall(word)):
                joined = f"{lines[-1]}{' ' if lines[-1] and not i else ''}{piece}"
                if cell_len(joined) <= options.max_width or not lines[-1]:
                    lines[-1] = joined
                else:
                    lines.append(piece)
        for line in lines:
            yield Text(line.replace(KEPT, " "), self.style, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(width, 12), min(width, options.max_width))
