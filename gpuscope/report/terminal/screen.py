"""Writing to a terminal that may be narrow, without colour, or not UTF-8: the pieces text.py is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from gpuscope.report.terminal.cells import Cropped, Words
from gpuscope.report.terminal.columns import Columns, paragraph
from gpuscope.words import units
from gpuscope.words.units import crop, crop_path
from gpuscope.words.vocabulary import PARTS

LONGEST = 1000
"""Cells of the longest paragraph that is printed."""


def apportion(values: Sequence[int], cells: int) -> list[int]:
    """`cells` shared out by `values` so that they add up: the largest remainders get the odd ones."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    whole = [value * cells // total for value in values]
    by_remainder = sorted(range(len(values)), key=lambda i: -(values[i] * cells % total))
    for i in by_remainder[: cells - sum(whole)]:
        whole[i] += 1
    return whole


class Bar:
    """A breakdown as one bar over the whole width of its column."""

    def __init__(self, values: Sequence[int], plain: bool) -> None:
        self.values = values
        self.plain = plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = Text(no_wrap=True)
        for part, cells in zip(PARTS, apportion(self.values, options.max_width), strict=True):
            bar.append((part.plain_fill if self.plain else part.fill) * cells, Style(color=part.colour))
        yield bar

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(10, options.max_width)


class Trimmed:
    """Another renderable without the blanks at its lines' ends, which would wrap when copied or piped."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.inner, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                *before, last = line
                yield from before
                yield Segment(last.text.rstrip(), last.style)
            yield Segment.line()


class Writer:
    """Prints to a console only what it can show: no markup, no escapes, no character it lacks."""

    def __init__(self, console: Console) -> None:
        self.console = console
        fills = "".join(part.fill for part in PARTS)
        self.plain = units.writable(fills, console.encoding) != fills
        self.ellipsis = units.writable("…", console.encoding)

    def safe(self, text: str) -> str:
        """`text` cleaned, in the console's characters, and not longer than a paragraph."""
        return crop(units.writable(units.clean(text), self.console.encoding), LONGEST, self.ellipsis)

    def text(self, text: str, style: str = "") -> Text:
        """A piece of text with a style; never markup."""
        return Text(self.safe(text), style=style)

    def name(self, text: str, width: int) -> str:
        """A name out of a trace, in at most `width` cells."""
        return crop(self.safe(text), width, self.ellipsis)

    def cell(self, text: str) -> Cropped:
        """A table cell for a name that may be too long."""
        return Cropped(self.safe(text), self.ellipsis)

    def path(self, text: str) -> Cropped:
        """A table cell for a path: where room is short, its folders go first and the file's name last."""
        return Cropped(self.safe(text), self.ellipsis, crop_path)

    def words(self, text: str) -> Words:
        """A table cell for words and settings, which are never cropped."""
        return Words(self.safe(text))

    def line(self, *pieces: Text | str, indent: int = 0, hang: int = 0) -> None:
        """One paragraph, wrapped at the console's width; what is wrapped stands `hang` further in."""
        joined = Text()
        for piece in pieces:
            joined.append_text(piece if isinstance(piece, Text) else self.text(piece))
        self.show(paragraph(self.console, joined, self.console.width, indent, hang))

    def heading(self, title: str) -> None:
        """A section's title after a blank line."""
        self.line("")
        self.line(self.text(title, "bold underline"))

    def show(self, renderable: RenderableType) -> None:
        """Print as is: no highlighting of numbers, no markup, no emoji."""
        self.console.print(Trimmed(renderable), end="", highlight=False, markup=False, emoji=False)

    def limited(self, lines: int) -> LimitedWriter:
        """A writer to the same console that stops after so many lines."""
        return LimitedWriter(self.console, lines)

    def table(self, *columns: str) -> Columns:
        """An empty table without lines; the first character of each title says what its column holds.

        `>`: numbers, right-aligned, never cropped and never wrapped. `<`: words, never cropped. `~`: gives way first
        where room is short.
        """
        return Columns([(self.text(column[1:], "dim"), column[0]) for column in columns])

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> None:
        """A `table` of these rows; a string in a `~` column is a name, to be cropped where room is short."""
        table = self.table(*columns)
        for row in rows:
            pairs = zip(row, table.kinds, strict=True)
            table.add_row(*(self._cell(cell, kind) if isinstance(cell, str) else cell for cell, kind in pairs))
        self.show(table)

    def _cell(self, text: str, kind: str) -> RenderableType:
        return self.cell(text) if kind == "~" else self.text(text)

    def more(self, number: int, where: str = "--json") -> None:
        """How many rows were left out, if any, and what shows them."""
        if number > 0:
            self.line(self.text(f"and {units.count(number)} more ({where})", "dim"))


class LimitedWriter(Writer):
    """Prints `lines` lines and counts the others."""

    def __init__(self, console: Console, lines: int) -> None:
        super().__init__(console)
        self.left = lines
        self.left_out = 0

    def show(self, renderable: RenderableType) -> None:
        """Print as much as there is room for."""
        lines = self.console.render_lines(Trimmed(renderable), pad=False)
        for line in lines[: self.left]:
            self.console.print(Segments([*line, Segment.line()]), end="")
        self.left_out += max(len(lines) - self.left, 0)
        self.left = max(self.left - len(lines), 0)

    def end(self, words: str) -> None:
        """Say how many lines were left out, where any were."""
        if self.left_out:
            self.console.print(Trimmed(self.text(f"{self.left_out} {words}", "dim")), end="")


class ReportConsole(Console):
    """Standard output. Where nobody reads it any more, that is the command line's to handle, not rich's:
    rich would exit with 1, which means something else here."""

    def __init__(self) -> None:
        super().__init__(highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
