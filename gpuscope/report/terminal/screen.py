"""Writing to a terminal that may be narrow, without colour, or not UTF-8: the pieces text.py is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from gpuscope import when_used
from gpuscope.schema.plan_document import TriedChange, TuneDocument
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import crop, crop_path
from gpuscope.words.vocabulary import PARTS

# Cells of tables that fit themselves to their column: names are cropped, words wrapped.

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


# Tables and paragraphs at any width: a number and its unit are never parted, cropped or wrapped.
#
# Where room is short, long names give way first, then titles and words are wrapped, then names get shorter still; where
# even that is not enough, each row becomes a paragraph.

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


# What `gpuscope tune` found, on the terminal: the step before and after, what was tried, what to take along.

ENDED = {
    "done": "nothing is left to try",
    "nothing_applicable": "no suggestion can be followed from outside the script",
    "no_advice": "the run under the profiler, or its analysis, failed: its log is beside it",
    "budget": "the budget is used up",
    "interrupted": "interrupted",
}
LOSSES = {
    "equal": "runs with the same settings have equal losses, so a change of what is trained shows",
    "within_noise": "the losses of runs with the same settings differ by themselves: a change of what is trained shows "
    "only beyond that (a seed would help)",
    "seen_once": "losses were seen in one run only: what runs differ by themselves is not known",
    "not_seen": "no losses were seen: whether a change alters what is trained was not checked",
}


def headline(found: TuneDocument) -> str:
    """`Step 51.20 ms → 20.10 ms, -60.7 % (-62.1 to -59.3 %): 2 changes kept of 5 tried`."""
    many = kept(found)
    tried = f"{units.plural(len(found['changes']), 'change')} tried"
    before = units.duration(found["baseline_step_ns"])
    if not many:
        return f"Step {before}: nothing kept, {tried}"
    return (
        f"Step {before} → {units.duration(found['best_step_ns'])}, "
        f"{_percent(found['best_step_ns'] / found['baseline_step_ns'])}{_interval(found)}: {many} kept, {tried}"
    )


def kept(found: TuneDocument) -> int:
    """How many changes were."""
    return sum(row["kept"] for row in found["changes"])


def facts(found: TuneDocument) -> list[str]:
    """What the result rests on."""
    spent = units.long_duration(found["seconds"] * 1e9)
    known = found["noise_frac"]
    noise = "no settings ran twice, so what runs differ by was assumed"
    if known is not None:
        noise = f"two runs with the same settings differ by {units.share(known)} (standard deviation)"
    told = [
        f"{ENDED[found['ended']]}; {units.plural(found['runs'], 'run')} in {spent} (budget {found['budget']}): "
        f"{_took(found['seconds_of_runs'])} of the command, {_took(found['seconds_of_analysis'])} of analysis",
        f"{noise}; {LOSSES[found['losses']]}",
        f"recordings: {found['folder']}",
    ]
    if found["written"]:
        told.append(f"changed in the working directory meanwhile: {', '.join(found['written'])}")
    return told


def render(found: TuneDocument, writer: Writer) -> None:
    """Print the page."""
    writer.line(writer.text(headline(found), "bold green" if kept(found) else "bold yellow"))
    for line in facts(found):
        writer.line(line, indent=2, hang=2)
    if found["changes"]:
        writer.heading("Tried")
        writer.show(tried(found["changes"], writer))
        for row in found["changes"]:
            writer.line(writer.text(row["code"], "bold"), f"  {_settings(row)}: {_range(row)}{row['why']}", hang=2)
    if found["take"]:
        writer.heading("Take along")
        for line in found["take"]:
            writer.console.print(writer.text(line), soft_wrap=True)  # to be copied as it is
    if found["by_hand"]:
        writer.heading("By hand")
        for one in found["by_hand"]:
            writer.line(writer.text(one["code"], "bold"), f"  {one['action']}", hang=2)
            writer.line(f"{one['setting']}: {one['why']}", indent=2, hang=2)


def tried(rows: Sequence[TriedChange], writer: Writer) -> Columns:
    """The table of changes, also while it grows."""
    table = writer.table("<change", ">before", ">predicted", ">measured", ">ratio, 95 %", "<")
    for row in rows:
        times = (units.duration(row[key]) for key in ("before_ns", "predicted_ns", "measured_ns"))
        cells = (row["code"], *times, ratio(row))
        table.add_row(*map(writer.text, cells), writer.text(mark(row), "green" if row["kept"] else "dim"))
    return table


def mark(row: TriedChange) -> str:
    """What became of a change, in a word: what chance or the budget left open may be tried again."""
    if row["outcome"] in ("not_beyond_chance", "budget"):
        return "not settled"
    return "kept" if row["kept"] else "rolled back"


def _took(seconds: float) -> str:
    return units.long_duration(seconds * 1e9)


def _settings(row: TriedChange) -> str:
    return ", ".join(f"{one['name']}={one['value']}" for one in row["changes"])


def _range(row: TriedChange) -> str:
    low, high = (units.duration(row[key]) for key in ("low_ns", "high_ns"))
    return "" if row["low_ns"] is None else f"{low} to {high} predicted; "


def _percent(ratio: float) -> str:
    return units.signed(ratio - 1)


def _interval(found: TuneDocument) -> str:
    low, high = found["ratio_low"], found["ratio_high"]
    return "" if low is None or high is None else f" ({_percent(low)} to {_percent(high)})"


def ratio(row: TriedChange) -> str:
    """The 95 % interval of measured / before."""
    low, high = row["ratio_low"], row["ratio_high"]
    return units.NONE if low is None or high is None else f"{low:.3f}–{high:.3f}"
