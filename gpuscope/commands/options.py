"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuscope.cache import ENV_OFF

if TYPE_CHECKING:
    from gpuscope.report.terminal.hang_text import Shown
    from gpuscope.schema.document import Report
    from gpuscope.trace.trace import Trace


Command = TypeVar("Command", bound=Callable[..., Any])


def command_words(ctx: click.Context, _: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of another program's command; one that begins with an option is a misspelt one of ours."""
    if words and words[0].startswith("-"):
        from difflib import get_close_matches

        ours = [option for one in ctx.command.params if isinstance(one, click.Option) for option in one.opts]
        raise click.NoSuchOption(words[0], possibilities=get_close_matches(words[0], ours), ctx=ctx)
    return words


def device_model(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """The model of a device, as far as its peaks are known."""
    del ctx, param
    if name is None:
        return None
    from gpuscope.hardware.device_peaks import known_model

    return known_model(name)


class RankSet(click.ParamType[frozenset[int]]):
    """`0-7,64` as a set of ranks, at most `most` of them counted as written."""

    name = "ranks"

    def __init__(self, most: int = 1 << 20) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        from gpuscope.sources.rank_numbers import rank_spans

        try:
            spans = rank_spans(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a set of ranks; use for example 0-7,64", param, ctx)
        if sum(map(len, spans)) > self.most:
            self.fail(f"more than {self.most:,} ranks; use for example 0-7,64", param, ctx)
        return frozenset(rank for span in spans for rank in span)


class StepRange(click.ParamType[tuple[int, int]]):
    """`3-8` or `5` as first and last step."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        low, _, high = str(value).partition("-")
        try:
            first, last = int(low), int(high or low)
            if max(abs(first), abs(last)) >= 1 << 62:
                raise ValueError(value)
        except ValueError:
            self.fail(f"{value!r} is not a range of steps; use for example 3-8", param, ctx)
        if first > last:
            self.fail(f"{value!r} ends before it starts", param, ctx)
        return first, last


class Percent(click.ParamType[float]):
    """`5%` as 0.05. Without the sign it could be meant either way, so it is asked for."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            number = float(str(value).removesuffix("%")) / 100
        except ValueError:
            number = -1.0
        if not str(value).endswith("%") or not 0 <= number < 1e6:
            self.fail(f"{value!r} is not a percentage; use for example 5%", param, ctx)
        return number


_NO_CACHE = "gpuscope.no_cache"


def _without_cache(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_NO_CACHE] = value


def cache_wanted() -> bool:
    """Whether the command that runs may look for what was read before, and keep what it reads."""
    context = click.get_current_context(silent=True)
    return context is not None and not context.meta.get(_NO_CACHE, True)


def reading(command: Command) -> Command:
    """The options of everything that opens traces."""
    for decorate in (
        click.option(
            "--nsys", metavar="PROGRAM", envvar="GPUSCOPE_NSYS", help="nsys executable for exporting reports."
        ),
        click.option(
            "--no-cache",
            is_flag=True,
            expose_value=False,
            callback=_without_cache,
            envvar=ENV_OFF,
            help="Neither use nor keep what was read of large files.",
        ),
        click.option("--partial", is_flag=True, help="Analyse what is left of a truncated file."),
        click.option("--ranks", type=RankSet(), metavar="SET", help="Only these ranks, e.g. 0-7,64."),
    ):
        command = decorate(command)
    return command


def inputs(command: Command) -> Command:
    """PATH… and the options of everything that opens traces."""
    return click.argument("paths", nargs=-1, required=True, metavar="PATH...")(reading(command))


# Opening traces for a command, with a progress bar on stderr.


def open_with_progress(paths: tuple[str, ...], ranks: frozenset[int] | None, partial: bool, nsys: str | None) -> Trace:
    """`gpuscope.open_trace`, as the command line does it."""
    from gpuscope.progress import reading
    from gpuscope.sources.opening import inputs, open_inputs, total_size
    from gpuscope.sources.source import ReadOptions

    items = inputs(paths, ranks)
    with reading(total_size(items), "reading", files=len(items)) as progress:
        options = ReadOptions(partial, nsys, progress, cache=cache_wanted(), status=progress.say)
        return open_inputs(items, ranks, options, begun=progress.file)


# How much of a report is printed: the options of everything that prints one.

ReportOptionsCommand = TypeVar("ReportOptionsCommand", bound=Callable[..., Any])
BY = ("line", "module", "operator", "kernel", "tree")
TOP = 3
"""Causes and changes on the first screen, unless asked otherwise."""


def report_options(command: ReportOptionsCommand) -> ReportOptionsCommand:
    """`--full`, `--why`, `--by`, `--top` and `--quiet`."""
    for decorate in (
        click.option("-q", "--quiet", is_flag=True, help="Print the verdict in one sentence, nothing else."),
        click.option(
            "--top",
            type=click.IntRange(min=1),
            metavar="N",
            help="Causes and changes on the screen (3), or rows of each table with --full (10) or --by (20).",
        ),
        click.option("--by", type=click.Choice(BY), help="Print where in the program time goes, instead."),
        click.option("--why", is_flag=True, help="Print what the verdict rests on, and what would tip it."),
        click.option("--full", is_flag=True, help="Print everything instead of one screen."),
    ):
        command = decorate(command)
    return command


def print_report(
    report: Report, full: bool, top: int | None, quiet: bool, by: Shown | None = None, why: bool = False
) -> None:
    """Print `report` on stdout, as much of it as asked for."""
    from gpuscope.report.terminal import first_screen
    from gpuscope.report.terminal.screen import ReportConsole, Writer
    from gpuscope.report.view.first_lines import first_lines

    console = ReportConsole()
    if quiet:
        click.echo(Writer(console).safe(first_lines(report).one_line()))  # one line, however narrow the terminal
    elif by is not None:
        from gpuscope.report.terminal import hang_text

        hang_text.places_text_render(report, Writer(console), by, top)
    elif why:
        first_screen.why(report, Writer(console), top)
    elif full:
        from gpuscope.report.terminal import report_text

        report_text.render(report, console, top or report_text.ROWS_SHOWN)
    else:
        first_screen.render(report, Writer(console), top or TOP)
