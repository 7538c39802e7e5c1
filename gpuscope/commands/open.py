"""`gpuscope open`: a report in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscope.errors import InputError
from gpuscope.store.location import located, store_option

if TYPE_CHECKING:
    from gpuscope.schema.document import Report


@click.command(short_help="Open a report in the browser.")
@click.argument("report", metavar="REPORT|RUN")
@click.option("--print", "only_print", is_flag=True, help="Print the page's path and open nothing.")
@store_option
def command(report: str, only_print: bool, store: Path | None) -> None:
    """Open a report as a page: the file of `analyze --html` or `--json`, or the number of a run in the store.

    Pages that have to be made are kept in the user's cache folder, nothing is written beside the report.

    \b
    gpuscope open report.html
    gpuscope open 12
    """
    page = _page(report, store)
    if only_print:
        click.echo(str(page))
        return
    import webbrowser

    opened = webbrowser.open(page.absolute().as_uri())
    click.echo(f"Opened {page}" if opened else f"No browser here. The page is {page}", err=not opened)


def _page(named: str, store: Path | None) -> Path:
    """The page to show; made where the report is no page yet. Raises `InputError` for what is no report."""
    from gpuscope.report.read_report import read_report

    path = Path(named)
    if path.suffix in (".html", ".htm") and path.is_file():
        return path
    if path.is_file() and (report := read_report(path, ("verdict", "ranks"))) is not None:
        return _made(report, path.stem)
    if path.exists():
        raise InputError(f"{named}: no report", hint=f"analyse it first: gpuscope analyze {named} --html report.html")
    if not named.isdigit():
        raise InputError(f"{named}: no such file", hint="name a report, or the number of a run (gpuscope runs)")
    from gpuscope.store.store import opened

    with opened(located(store)) as open_store:
        return _made(open_store.report(int(named)), f"run-{named}")


def _made(report: Report, name: str) -> Path:
    from platformdirs import user_cache_path

    from gpuscope.output import write_text
    from gpuscope.report.html.html_report import render

    page = user_cache_path("gpuscope", appauthor=False) / "pages" / f"{name}.html"
    write_text(page, render(report))
    return page
