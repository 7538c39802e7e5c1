"""`gpuscope analyze`: where the time goes, whose fault it is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from gpuscope.commands.options import StepRange, inputs
from gpuscope.commands.report_options import print_report, report_options
from gpuscope.errors import UsageError
from gpuscope.store.location import store_option

if TYPE_CHECKING:
    from gpuscope.analyzers.run.analysis import Analysis
    from gpuscope.analyzers.run.file_part import Options
    from gpuscope.sources.opening import Input

SEVERITIES = ("low", "medium", "high")


@click.command(short_help="Say what bounds a run and where its time goes.")
@inputs
@click.option("--steps", type=StepRange(), metavar="A-B", help="Only these steps, e.g. 3-8.")
@report_options
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr what was read, and how long it took.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else, on stdout.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write one self-contained page.")
@click.option("--csv", type=click.Path(path_type=Path), metavar="DIR", help="Also write each table as CSV.")
@click.option("--force", is_flag=True, help="Overwrite the files of --html and --csv.")
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with 1 if a finding has this severity or a higher one.",
)
@click.option("--no-advice", is_flag=True, help="Neither replay nor try changes: no suggestions, a quicker answer.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Processes that read large runs.  [default: one per core]")  # fmt: skip
@click.option("--executor", metavar="dask[=ADDRESS]", help="Read the files on a Dask cluster.")
@click.option("--skip-unreadable", is_flag=True, help="Leave out files that can't be read, and say so.")
@store_option
@click.option("--no-store", is_flag=True, envvar="GPUSCOPE_NO_STORE", help="Don't keep this analysis in the run store.")
@click.option("--label", metavar="NAME", help="A name for the run in the run store.")
def command(
    paths: tuple[str, ...],
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    steps: tuple[int, int] | None,
    full: bool,
    top: int | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    html: Path | None,
    csv: Path | None,
    force: bool,
    fail_on: str | None,
    no_advice: bool,
    jobs: int | None,
    executor: str | None,
    skip_unreadable: bool,
    store: Path | None,
    no_store: bool,
    label: str | None,
) -> int:
    """Break down the time of a training run and say what bounds it.

    PATH is an Nsight Systems report or its export, a torch.profiler trace, what gpuscope reduce made of one, a
    folder or glob with one of these per rank, or a URL of them (s3://, gs://, ssh:// …).

    \b
    gpuscope analyze trace.nsys-rep
    gpuscope analyze run/ --ranks 0-7
    gpuscope analyze s3://bucket/run/ --executor dask=tcp://scheduler:8786
    gpuscope analyze rank0.json.gz rank1.json.gz --html report.html
    """
    from gpuscope.analyzers.run.file_part import Options
    from gpuscope.commands.options import cache_wanted
    from gpuscope.output import check_free
    from gpuscope.sources.source import ReadOptions

    if quiet and full:
        raise UsageError("--quiet and --full contradict each other", hint="pass one of them")
    check_free([path for path in (html, csv) if path is not None], force, paths)
    began = monotonic()
    reader = ReadOptions(partial=partial, nsys=nsys, cache=cache_wanted())
    options = Options(
        ranks, steps, jobs or os.cpu_count() or 1, reader, advice=not no_advice, replay=not no_advice,
        skip_unreadable=skip_unreadable,
    )  # fmt: skip
    analysis, items = _analyse(paths, options, executor)
    if verbose:
        _say_read(analysis, monotonic() - began)
    report = analysis.report
    _write(analysis, html, csv)  # first: who reads standard output may stop early (`| head`)
    run = None
    if not no_store:
        from gpuscope.store.keep import keep

        asked = {"ranks": sorted(ranks) if ranks is not None else None, "steps": steps, "partial": partial}
        files = [item.path for item in items if not item.url]
        remote = [f"{item.url} {item.url_bytes} {item.url_version}" for item in items if item.url]
        run = keep(report, files, paths, asked, store, label, remote, reader.cache)
    if as_json:
        from gpuscope.report.json_report import dumps

        click.echo(dumps(report))
    else:
        print_report(report, full, top, quiet)
    _say_written(analysis, html, csv)
    if run is not None and (verbose or not (as_json or quiet)):
        click.echo(f"Stored as run {run}: gpuscope open {run}, gpuscope runs show {run} --full", err=True)
    for failure in analysis.failed:
        click.echo(f"Error: an analysis failed: {failure}", err=True)
    if analysis.failed:
        return 4
    reached = {finding["severity"] for finding in report["findings"]}
    return int(fail_on is not None and bool(reached & set(SEVERITIES[SEVERITIES.index(fail_on) :])))


def _analyse(paths: tuple[str, ...], options: Options, executor: str | None) -> tuple[Analysis, list[Input]]:
    """The analysis, and what it read."""
    from gpuscope.analyzers.run.executors import executor_named
    from gpuscope.analyzers.run.runner import run
    from gpuscope.progress import reading
    from gpuscope.sources.opening import inputs as find_inputs
    from gpuscope.sources.opening import total_size

    chosen = executor_named(executor)
    items = find_inputs(paths, options.ranks)
    with reading(total_size(items), "reading", files=len(items)) as progress:
        read = replace(options.read, advance=progress, status=progress.say)
        analysis = run(items, replace(options, read=read), begun=progress.file, executor=chosen)
    return analysis, items


def _say_read(analysis: Analysis, seconds: float) -> None:
    """What was read, of what size, and how long that and its analysis took."""
    from gpuscope.report.view import units

    for source in analysis.report["trace"]["sources"]:
        kind = f"{source['format']} {source['format_version']}".rstrip()
        ranks = f", {units.rank_words(source['ranks'])}" if source["ranks"] else ""
        click.echo(f"{source['path']}: {kind}{ranks}, {units.plural(source['events'], 'event')}", err=True)
    for one in analysis.report["analyzers"]:
        if one["status"] == "skipped" and one["applicable"]:
            click.echo(f"not analysed: {one['name']}: {one['why']}", err=True)
    click.echo(f"Read and analysed in {seconds:.1f} s.", err=True)


def _write(analysis: Analysis, html: Path | None, csv: Path | None) -> None:
    """The files asked for."""
    from gpuscope.output import write_text

    if html is not None:
        from gpuscope.report.html.html_report import render

        write_text(html, render(analysis.report))
    if csv is not None:
        for section, frame in analysis.tables.items():
            write_text(csv / f"{section}.csv", frame.to_csv(index=False))


def _say_written(analysis: Analysis, html: Path | None, csv: Path | None) -> None:
    """What was written, and how to open it."""
    from gpuscope.output import say_written

    if html is not None:
        say_written(html, f"open it in a browser: gpuscope open {html}")
    if csv is not None:
        say_written(csv, f"{len(analysis.tables)} tables as CSV")
