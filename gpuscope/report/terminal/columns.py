"""Tables and paragraphs at any width: a number and its unit are never parted, cropped or wrapped.

Where room is short, long names give way first, then titles and words are wrapped, then names get shorter still; where
even that is not enough, each row becomes a paragraph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from gpuscope.report.terminal.cells import KEPT, Words
from gpuscope.when_used import dataclass
from gpuscope.words import units

GAP = 2
"""Blanks between columns."""
READABLE, SHORTEST = 16, 12
"""Cells that a name keeps while titles and words are still on one line, and at least."""
LEAST_LINE = 20


@dataclass
class _Width:
    """What a column asks for, and what it gets."""

    kind: str
    cells: int
    """All of them, longest."""
    title_word: int
    """The title's longest word."""
    word: int
    """The longest word of any cell, a number with its unit being one."""
    given: int

    def floor(self, kind: str, least: int) -> int:
        """How far it can shrink in one round: names to `least`, numbers to their cells, words to the longest."""
        if self.kind != kind:
            return self.given
        if kind == "~":
            drawn = not self.word  # a bar, which needs no words' room
            return max(min(self.cells, SHORTEST if drawn else least), self.title_word)
        return max(self.cells if kind == ">" else self.word, self.title_word)


class Columns(Table):
    """A table without lines, laid out by what its columns hold."""

    def __init__(self, columns: Sequence[tuple[Text, str]]) -> None:
        super().__init__(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        self.kinds = [kind for _, kind in columns]
        for title, kind in columns:
            self.add_column(title, justify="right" if kind == ">" else "left", overflow="fold")

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        """A further row; plain text in a column of words or names is wrapped as words are."""
        pairs = zip(cells, self.kinds, strict=True)
        fitting = (Words(one.plain, one.style) if isinstance(one, Text) and kind != ">" else one for one, kind in pairs)
        super().add_row(*fitting, **more)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - GAP * (len(self.columns) - 1)
        kinds = zip(self.columns, self.kinds, strict=True)
        widths = [_width(column, kind, console, options) for column, kind in kinds]
        for kind, least in (("~", READABLE), (">", 0), ("<", 0), ("~", SHORTEST)):
            _shrink(widths, [width.floor(kind, least) for width in widths], room)
        if sum(width.given for width in widths) > room:
            yield from self._as_paragraphs(console, options)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width.given
        yield from super().__rich_console__(console, options)

    def _as_paragraphs(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Each row as `title value`, one after the other, in as many lines as it takes."""
        titles = [_plain(column.header) for column in self.columns]
        separator = units.writable(" · ", console.encoding)
        for row in zip(*(column.cells for column in self.columns), strict=True):
            cells = [(title, _plain(cell)) for title, cell in zip(titles, row, strict=True)]
            # A title stands on the line of its value.
            pairs = [f"{title} {value}".strip().replace(" ", KEPT, 1) for title, value in cells if value]
            yield paragraph(console, Text(separator.join(pairs)), options.max_width, hang=GAP)


def paragraph(console: Console, text: Text, width: int, indent: int = 0, hang: int = 0) -> RenderableType:
    """`text` wrapped at `width`; what is wrapped stands `hang` further in than the first line."""
    text = text.copy()
    text.plain = units.unbroken(text.plain, KEPT)
    room = max(width - indent, LEAST_LINE)
    first, *rest = text.wrap(console, room) or [Text()]
    if rest and hang:
        left = text[len(first) :]
        rest = list(Text(left.plain.lstrip(), left.style).wrap(console, room - hang))
    lines = [first, *rest]
    for line in lines:
        line.plain = line.plain.replace(KEPT, " ")
    return Group(*(Padding(line, (0, 0, 0, indent + hang if i else indent)) for i, line in enumerate(lines)))


def _width(column: Column, kind: str, console: Console, options: ConsoleOptions) -> _Width:
    title = _plain(column.header)
    cells = max((Measurement.get(console, options, cell).maximum for cell in column.cells), default=0)
    word = max((_longest_word(_plain(cell)) for cell in column.cells), default=0)
    return _Width(kind, cells, _longest_word(title), word, max(cells, cell_len(title), 1))


def _shrink(widths: Sequence[_Width], floors: Sequence[int], room: int) -> None:
    """Take from the widest of those that are above their floor, cell by cell, until the table fits or all are there."""
    excess = sum(width.given for width in widths) - room
    while excess > 0:
        above = [width for width, floor in zip(widths, floors, strict=True) if width.given > floor]
        if not above:
            return
        max(above, key=lambda width: width.given).given -= 1
        excess -= 1


def _plain(cell: RenderableType) -> str:
    """The text of a cell; none of what is drawn."""
    if isinstance(cell, Text):
        return cell.plain
    return cell if isinstance(cell, str) else str(getattr(cell, "text", ""))


def _longest_word(text: str) -> int:
    return max(map(cell_len, units.unbroken(text, KEPT).split(" ")))
