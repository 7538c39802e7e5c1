"""How much of a report is printed: the options of everything that prints one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpuscope.report.terminal.sections.places_text import Shown
    from gpuscope.schema.document import Report

Command = TypeVar("Command", bound=Callable[..., Any])
BY = ("line", "module", "operator", "kernel", "tree")
TOP = 3
"""Causes and changes on the first screen, unless asked otherwise."""


def report_options(command: Command) -> Command:
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
        from gpuscope.report.terminal.sections import places_text

        places_text.render(report, Writer(console), by, top)
    elif why:
        first_screen.why(report, Writer(console), top)
    elif full:
        from gpuscope.report.terminal import report_text

        report_text.render(report, console, top or report_text.ROWS_SHOWN)
    else:
        first_screen.render(report, Writer(console), top or TOP)
