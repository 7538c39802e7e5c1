"""`gpuscope dashboard`: runs to look at, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscope.commands.options import inputs
from gpuscope.errors import UsageError
from gpuscope.store.location import located, store_option

if TYPE_CHECKING:
    from dash import Dash

    from gpuscope.dashboards.data.open_runs import Runs


@click.command(short_help="Look at runs in a browser.")
@inputs
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--watch", is_flag=True, help="Follow a run that is still being recorded; PATH is its run folder.")
@store_option
def command(
    paths: tuple[str, ...], ranks: frozenset[int] | None, partial: bool, nsys: str | None, host: str, port: int,
    watch: bool, store: Path | None,
) -> None:  # fmt: skip
    """Analyse each PATH as a run of its own and show them in a browser, until interrupted.

    PATH is what `gpuscope analyze` takes (a folder or glob holds one trace per rank), or a report that
    `gpuscope analyze --json` wrote. Of several, those that can't be opened are named and left out.

    \b
    gpuscope dashboard run/
    gpuscope dashboard before/ after/ --port 0
    gpuscope dashboard runs/today --watch
    """
    from gpuscope.dashboards.app import create_app
    from gpuscope.dashboards.web import access
    from gpuscope.dashboards.web.server import address, listen

    token = access.new_token()
    with listen(host, port) as server:  # before the work, so that a port in use is reported at once
        local = access.is_loopback(host)
        if watch:
            app = _followed(paths, token, local)
        else:
            app = create_app(_open(paths, ranks, partial, nsys, located(store)), token, local)
        server.set_app(app.server)
        click.echo(f"gpuscope dashboard: {address(host, server.port, token)}\nCtrl-C ends it.")
        server.serve_forever()
        click.echo("Ended.", err=True)


def _followed(paths: tuple[str, ...], token: str, local: bool) -> Dash:
    from gpuscope.dashboards.live.live_app import create_live_app

    if len(paths) != 1:
        raise UsageError("--watch follows one run", hint="give one run folder")
    return create_live_app(Path(paths[0]), token, local)


def _open(paths: tuple[str, ...], ranks: frozenset[int] | None, partial: bool, nsys: str | None, store: Path) -> Runs:
    from gpuscope.analyzers.run.runner import Options
    from gpuscope.commands.options import cache_wanted
    from gpuscope.dashboards.data.open_runs import open_runs
    from gpuscope.progress import reading
    from gpuscope.sources.source import ReadOptions

    size = sum(_size(Path(path)) for path in paths)
    with reading(size, "reading", files=len(paths)) as progress:
        read = ReadOptions(partial, nsys, progress, cache=cache_wanted(), status=progress.say)
        options = Options(ranks, None, 1, read)
        runs = open_runs(paths, options, progress.file, store)
    for one in runs.not_opened:  # the dashboard shows them too, in its frame
        click.echo(f"Not opened: {one.error}", err=True)
    return runs


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
