"""`gpuscope analyze`: where the time goes, whose fault it is."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
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
    from gpuscope.report.terminal.sections.places_text import Shown
    from gpuscope.schema.document import Report
    from gpuscope.sources.opening import Input

SEVERITIES = ("low", "medium", "high")
SHARED_AS = (".html", ".json")


@click.command(short_help="Say what bounds a run and where its time goes.")
@inputs
@click.option("--steps", type=StepRange(), metavar="A-B", help="Only these steps, e.g. 3-8.")
@report_options
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr what was read, and how long it took.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else, on stdout.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write one self-contained page.")
@click.option("--csv", type=click.Path(path_type=Path), metavar="DIR", help="Also write each table as CSV.")
@click.option("--share", type=click.Path(path_type=Path), metavar="FILE",
              help="Also write it for others to read (.html, .json): paths, hosts and users replaced.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the files of --html, --csv and --share.")
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
    by: Shown | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    html: Path | None,
    csv: Path | None,
    share: Path | None,
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
    from gpuscope.cache import report_cache
    from gpuscope.commands.options import cache_wanted
    from gpuscope.sources.run_manifest import run_folders

    if quiet and full:
        raise UsageError("--quiet and --full contradict each other", hint="pass one of them")
    if share is not None and share.suffix not in SHARED_AS:
        raise UsageError(f"{share}: is named neither .html nor .json", hint="say by its suffix what is to be written")
    _check_free([path for path in (html, share) if path is not None], csv, force, paths)
    began = monotonic()
    cached, asked = cache_wanted(), {"ranks": sorted(ranks) if ranks is not None else None, "steps": steps}
    alone = (
        cached and executor is None and share is None and not run_folders(map(Path, paths))
    )  # a report rests on its run folder too
    key = report_cache.report_key(paths, asked, partial, nsys, no_advice) if alone else None
    text = report_cache.kept_report(key)
    if text is None:
        from gpuscope.analyzers.run.file_part import Options
        from gpuscope.report.json_report import dumps
        from gpuscope.sources.source import ReadOptions

        reader = ReadOptions(partial=partial, nsys=nsys, cache=cached)
        options = Options(
            ranks, steps, jobs or os.cpu_count() or 1, reader, advice=not no_advice, replay=not no_advice,
            skip_unreadable=skip_unreadable,
        )  # fmt: skip
        analysis, items = _analyse(paths, options, executor)
        report, failed, hosts = analysis.report, analysis.failed, analysis.hosts
        files = [item.path for item in items if not item.url]
        remote = [f"{item.url} {item.url_bytes} {item.url_version}" for item in items if item.url]
        keepable = all(item.source.files.keepable for item in items) and not failed
        if as_json or (key is not None and keepable):
            text = dumps(report)
        if text is not None and keepable:
            report_cache.keep_report(key, text)
    else:
        report, failed, files, remote, hosts = json.loads(text), [], [Path(path) for path in paths], [], ()
    if verbose:
        _say_read(report, monotonic() - began)
    if share is not None:
        _share(report, hosts, share)
    tables = _write(report, html, csv)  # first: who reads standard output may stop early (`| head`)
    run = None
    if not no_store:
        from gpuscope.store.keep import keep

        run = keep(report, files, paths, {**asked, "partial": partial}, store, label, remote, cached)
    if as_json:
        click.echo(text)
    else:
        print_report(report, full, top, quiet, by)
    _say_written(tables, html, csv)
    if share is not None:
        from gpuscope.output import say_written

        say_written(share, "look through it before you send it")
    if run is not None and (verbose or not (as_json or quiet)):
        click.echo(f"Stored as run {run}: gpuscope open {run}, gpuscope runs show {run} --full", err=True)
    for failure in failed:
        click.echo(f"Error: an analysis failed: {failure}", err=True)
    if failed:
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


def _check_free(files: list[Path], csv: Path | None, force: bool, paths: tuple[str, ...]) -> None:
    """Refuse to write where something is."""
    if not files and csv is None:
        return
    from gpuscope.output import check_free

    check_free(files, force, paths, folders=[csv] if csv is not None else [])


def _say_read(report: Report, seconds: float) -> None:
    """What was read, of what size, and how long that and its analysis took."""
    from gpuscope.words import units

    for source in report["trace"]["sources"]:
        kind = f"{source['format']} {source['format_version']}".rstrip()
        ranks = f", {units.rank_words(source['ranks'])}" if source["ranks"] else ""
        click.echo(f"{source['path']}: {kind}{ranks}, {units.plural(source['events'], 'event')}", err=True)
    for one in report["analyzers"]:
        if one["status"] == "skipped" and one["applicable"]:
            click.echo(f"not analysed: {one['name']}: {one['why']}", err=True)
    click.echo(f"Read and analysed in {seconds:.1f} s.", err=True)


def _write(report: Report, html: Path | None, csv: Path | None) -> int:
    """Write the files asked for; how many tables."""
    if html is None and csv is None:
        return 0
    from gpuscope.output import write_folder, write_text

    if html is not None:
        from gpuscope.report.html.html_report import render

        write_text(html, render(report))
    if csv is None:
        return 0
    from gpuscope.analyzers.run.analysis import Analysis

    tables = Analysis(report).tables

    def fill(folder: Path) -> None:
        for section, frame in tables.items():
            (folder / f"{section}.csv").write_text(frame.to_csv(index=False), encoding="utf-8")

    write_folder(csv, fill)
    return len(tables)


def _share(report: Report, hosts: Sequence[str], path: Path) -> None:
    """Write the report without what names people, machines and folders."""
    from gpuscope.output import write_text
    from gpuscope.report.html.html_report import render
    from gpuscope.report.json_report import dumps
    from gpuscope.report.sharing import share

    shared = share(report, hosts)
    write_text(path, render(shared) if path.suffix == ".html" else dumps(shared) + "\n")


def _say_written(tables: int, html: Path | None, csv: Path | None) -> None:
    """What was written, and how to open it."""
    if html is None and csv is None:
        return
    from gpuscope.output import say_written

    if html is not None:
        say_written(html, f"open it in a browser: gpuscope open {html}")
    if csv is not None:
        say_written(csv, f"{tables} tables as CSV")
