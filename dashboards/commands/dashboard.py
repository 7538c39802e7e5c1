"""`gpuscope dashboard`: runs to look at, in a browser."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscope.commands.options import inputs
from gpuscope.errors import UsageError
from gpuscope.store.location import located, store_option

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from dash import Dash

    from gpuscope.dashboards.data.open_runs import Runs
    from gpuscope.dashboards.web.downloads import Starting
    from gpuscope.dashboards.web.server import Server


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
@click.option(
    "--watch", is_flag=True, help="Follow a run that is still being recorded, or a tuning; PATH is its folder."
)
@store_option
def command(
    paths: tuple[str, ...],
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    host: str,
    port: int,
    watch: bool,
    store: Path | None,
) -> None:
    """Analyse each PATH as a run of its own and show them in a browser, until interrupted.

    PATH is what `gpuscope analyze` takes (a folder or glob holds one trace per rank), or a report that
    `gpuscope analyze --json` wrote. Of several, those that can't be opened are named and left out.

    \b
    gpuscope dashboard run/
    gpuscope dashboard before/ after/ --port 0
    gpuscope dashboard runs/today --watch
    """
    from gpuscope.dashboards.web import access
    from gpuscope.dashboards.web.server import address, listen

    if not watch and not any("://" in path or _matches(path) for path in paths):
        from gpuscope.sources.opening import inputs as opened

        opened(paths, ranks)  # raises, before an address is printed; imported only then
    token = access.new_token()
    with listen(host, port) as server:  # before the work, so that a port in use is reported at once
        local = access.is_loopback(host)
        end = _begun(server, paths, token, local, (ranks, partial, nsys, located(store))) if not watch else None
        if watch:
            server.set_app(_followed(paths, token, local).server)
        click.echo(f"gpuscope dashboard: {address(host, server.port, token)}\nCtrl-C ends it.")
        server.serve_forever()
        if end is not None:
            end()
        click.echo("Ended.", err=True)


def _begun(
    server: Server,
    paths: tuple[str, ...],
    token: str,
    local: bool,
    how: tuple[frozenset[int] | None, bool, str | None, Path],
) -> Callable[[], None]:
    """Serve how far reading is, then the dashboard; what is returned ends that, and raises what went wrong."""
    from gpuscope.commands.options import cache_wanted
    from gpuscope.dashboards.web.downloads import Starting

    starting = Starting(paths, token, local)
    cache = cache_wanted()  # asked here: another thread has no command

    def work() -> WSGIApplication:
        runs = _open(paths, *how, cache, starting)
        gc.freeze()  # it all stays: of 256 ranks, one look through it takes 0.3 s
        from gpuscope.report.view.first_lines import first_lines

        starting.told = first_lines(runs.first.report).what
        # After the reading: imported beside it, in a thread, Dash costs twice as much, for both want the interpreter.
        from gpuscope.dashboards.app import create_app

        return create_app(runs, token, local).server

    server.set_app(starting)
    starting.begin(work, server.shutdown)
    return starting.end


def _followed(paths: tuple[str, ...], token: str, local: bool) -> Dash:
    from gpuscope.dashboards.live import create_live_app, create_tuning_app, is_tuning

    if len(paths) != 1:
        raise UsageError("--watch follows one run", hint="give one run folder")
    folder = Path(paths[0])
    return (create_tuning_app if is_tuning(folder) else create_live_app)(folder, token, local)


def _open(
    paths: tuple[str, ...],
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    store: Path,
    cache: bool,
    starting: Starting,
) -> Runs:
    from gpuscope.analyzers.run.runner import Options
    from gpuscope.dashboards.data.open_runs import open_runs
    from gpuscope.progress import reading
    from gpuscope.sources.source import ReadOptions

    files = [file for path in paths for file in _files(Path(path))]
    with reading(sum(file.stat().st_size for file in files), "files", files=len(files)) as progress:
        starting.progress = progress
        read = ReadOptions(partial, nsys, progress, cache=cache, status=progress.say)
        runs = open_runs(paths, Options(ranks, None, os.cpu_count() or 1, read), starting.file, store)
    for one in runs.not_opened:  # the dashboard shows them too, in its frame
        click.echo(f"Not opened: {one.error}", err=True)
    return runs


def _matches(path: str) -> bool:
    import glob

    return os.path.exists(path) or next(glob.iglob(path, recursive=True), None) is not None


def _files(path: Path) -> list[Path]:
    return [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
