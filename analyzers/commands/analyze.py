"""`gpuscope analyze`: where the time goes, whose fault it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from gpuscope.commands.options import StepRange, device_model, inputs, print_report, report_options
from gpuscope.errors import AnalysisError, GpuscopeError, SeveralRoles, UsageError
from gpuscope.store.location import store_option
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from gpuscope.analyzers.run.analysis import Analysis, AnalysisTables
    from gpuscope.report.terminal.hang_text import Shown
    from gpuscope.schema.document import Report
    from gpuscope.sources.opening import Input

SEVERITIES = ("low", "medium", "high")
SHARED_AS = (".html", ".json")


@click.command(short_help="Say what bounds a run and where its time goes.")
@inputs
@click.option("--steps", type=StepRange(), metavar="A-B", help="Only these steps, e.g. 3-8.")
@click.option(
    "--window",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of windows of one run (iteration_10/, iteration_20/) this one, not the latest.",
)
@click.option("--role", metavar="NAME", help="Of jobs by role (actor_update/, rollout/) this one alone.")
@click.option(
    "--world-size", type=click.IntRange(min=1), metavar="N", help="Ranks of the whole job, where the files don't say."
)
@click.option(
    "--device",
    metavar="MODEL",
    callback=device_model,
    help="Model of the GPUs (H100, MI300X, ...), if the traces don't record it.",
)
@report_options
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr what was read, and how long it took.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else, on stdout.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write one self-contained page.")
@click.option("--csv", type=click.Path(path_type=Path), metavar="DIR", help="Also write each table as CSV.")
@click.option(
    "--share",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write it for others to read (.html, .json): paths, hosts and users replaced.",
)
@click.option("--force", is_flag=True, help="Overwrite the files of --html, --csv and --share.")
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with 1 if a finding has this severity or a higher one.",
)
@click.option("--no-advice", is_flag=True, help="Neither replay nor try changes: no suggestions, a quicker answer.")
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes that read large runs.  [default: one per core]"
)
@click.option("--executor", metavar="dask[=ADDRESS]", help="Read the files on a Dask cluster.")
@click.option("--skip-unreadable", is_flag=True, help="Leave out files that can't be read, and say so.")
@store_option
@click.option("--no-store", is_flag=True, envvar="GPUSCOPE_NO_STORE", help="Don't keep this analysis in the run store.")
@click.option("--label", metavar="NAME", help="A name for the run in the run store.")
def command(**given: Any) -> int:
    """Break down the time of a training run and say what bounds it.

    PATH is an Nsight Systems report or its export, a torch.profiler trace, what gpuscope reduce made of one, a
    folder or glob with one of these per rank, or a URL of them (s3://, gs://, ssh:// …).

    \b
    gpuscope analyze trace.nsys-rep
    gpuscope analyze run/ --ranks 0-7
    gpuscope analyze s3://bucket/run/ --executor dask=tcp://scheduler:8786
    gpuscope analyze rank0.json.gz rank1.json.gz --html report.html
    """
    asked = Asked(**given)
    try:
        return _judge(asked)
    except SeveralRoles as several:
        return _judge_each(asked, several.roles)


def _judge_each(asked: Asked, roles: Sequence[str]) -> int:
    """Judge the job of each role by itself, and give the largest of their exit codes."""
    documents: list[dict[str, Any]] = []
    codes: list[int] = []
    for role in roles:
        if not asked.as_json:
            click.echo(f"{chr(10) if codes else ''}== {role} ==")
        try:
            codes.append(_judge(asked.for_role(role), documents))
        except GpuscopeError as error:
            click.echo(f"Error: {role}: {error}", err=True)
            codes.append(error.exit_code)
    if asked.as_json:
        from gpuscope.report.read_report import dumps_jobs

        click.echo(dumps_jobs(documents))
    return max(codes)


def _judge(asked: Asked, documents: list[dict[str, Any]] | None = None) -> int:
    """Judge one job; its JSON goes to `documents`, where given, instead of standard output."""
    asked.check()
    began = monotonic()
    found = _found(asked)
    report = found.report
    if asked.verbose:
        _say_read(report, monotonic() - began)
    _write(asked, found)  # first: who reads standard output may stop early (`| head`)
    run = None if asked.no_store else _kept(asked, found)
    if asked.as_json and documents is not None:
        documents.append({"role": asked.role, **report})
    elif asked.as_json:
        click.echo(found.text)
    else:
        print_report(report, asked.full, asked.top, asked.quiet, asked.by, asked.why)
    _say_written(asked, found)
    if run is not None and (asked.verbose or not (asked.as_json or asked.quiet)):
        click.echo(f"Stored as run {run}: gpuscope open {run}, gpuscope runs show {run} --full", err=True)
    for failure in found.failed:
        click.echo(f"Error: an analysis failed: {failure}", err=True)
    if found.failed:
        return AnalysisError.exit_code
    reached = {finding["severity"] for finding in report["findings"]}
    return int(asked.fail_on is not None and bool(reached & set(SEVERITIES[SEVERITIES.index(asked.fail_on) :])))


@dataclass(frozen=True)
class Asked:
    """What was asked for, by the names of the options."""

    paths: tuple[str, ...]
    ranks: frozenset[int] | None
    partial: bool
    nsys: str | None
    steps: tuple[int, int] | None
    window: int | None
    role: str | None
    world_size: int | None
    device: str | None
    full: bool
    top: int | None
    by: Shown | None
    why: bool
    quiet: bool
    verbose: bool
    as_json: bool
    html: Path | None
    csv: Path | None
    share: Path | None
    force: bool
    fail_on: str | None
    no_advice: bool
    jobs: int | None
    executor: str | None
    skip_unreadable: bool
    store: Path | None
    no_store: bool
    label: str | None

    @property
    def question(self) -> dict[str, Any]:
        """What of it the report depends on, besides the files."""
        ranks = sorted(self.ranks) if self.ranks is not None else None
        chosen = {"window": self.window, "role": self.role, "world_size": self.world_size, "device": self.device}
        given = {key: value for key, value in chosen.items() if value is not None}
        return {"ranks": ranks, "steps": self.steps, "partial": self.partial, **given}

    def for_role(self, role: str) -> Asked:
        """The same for the job of one role; the names of files to be written hold it."""

        def named(path: Path | None) -> Path | None:
            return None if path is None else path.with_stem(f"{path.stem}-{role}")

        label = None if self.label is None else f"{self.label} {role}"
        return replace(
            self, role=role, html=named(self.html), csv=named(self.csv), share=named(self.share), label=label
        )

    def check(self) -> None:
        """Raise `UsageError` for options that contradict each other, and where an output is in the way of something."""
        if self.quiet and self.full:
            raise UsageError("--quiet and --full contradict each other", hint="pass one of them")
        if self.share is not None and self.share.suffix not in SHARED_AS:
            raise UsageError(f"{self.share}: is named neither .html nor .json", hint="its suffix says what is written")
        files = [path for path in (self.html, self.share) if path is not None]
        if files or self.csv is not None:
            from gpuscope.output import check_free

            check_free(files, self.force, self.paths, folders=[self.csv] if self.csv is not None else [])


@dataclass(frozen=True)
class Found:
    """The report and what it was made from."""

    report: Report
    text: str | None
    """The report as JSON, where that was made."""
    failed: Sequence[str]
    files: Sequence[Path]
    remote: Sequence[str] = ()
    """Remote files, each with what its storage says of its content."""
    hosts: Sequence[str] = ()


def _found(asked: Asked) -> Found:
    """The report kept of the same question on the same files, else a new one."""
    from gpuscope import cache
    from gpuscope.commands.options import cache_wanted
    from gpuscope.sources.run_manifest import run_folders

    cached, key = cache_wanted(), None
    # A report rests on its run folder too, and hosts to be replaced are not in it.
    if cached and asked.executor is None and asked.share is None and not run_folders(map(Path, asked.paths)):
        key = cache.report_key(asked.paths, asked.question, asked.nsys, asked.no_advice)
    text = cache.kept(key, str)
    if text is not None:
        import json

        return Found(json.loads(text), text, (), [Path(path) for path in asked.paths])
    analysis, items = _analyse(asked, cached)
    keepable = all(item.source.files.keepable for item in items) and not analysis.failed
    if asked.as_json or (key is not None and keepable):
        from gpuscope.report.read_report import dumps

        text = dumps(analysis.report)
    if text is not None and keepable:
        cache.keep(key, text)
    files = [item.path for item in items if not item.url]
    remote = [f"{item.url} {item.url_bytes} {item.url_version}" for item in items if item.url]
    return Found(analysis.report, text, analysis.failed, files, remote, analysis.hosts)


def _import_numpy() -> None:
    """Without its BLAS's threads, which start in a fifth of a short process's time for systems of a few equations."""
    threads = "OPENBLAS_NUM_THREADS"
    if threads not in os.environ:
        os.environ[threads] = "1"
        try:
            import numpy  # noqa: F401
        finally:
            del os.environ[threads]


def _analyse(asked: Asked, cached: bool) -> tuple[Analysis, list[Input]]:
    """The analysis, and what it read."""
    _import_numpy()
    from gpuscope.analyzers.run.analysis import executor_named
    from gpuscope.analyzers.run.file_part import Options
    from gpuscope.analyzers.run.runner import run
    from gpuscope.progress import reading
    from gpuscope.sources.opening import inputs as find_inputs
    from gpuscope.sources.opening import total_size
    from gpuscope.sources.source import ReadOptions

    chosen = executor_named(asked.executor)
    items = find_inputs(asked.paths, asked.ranks, asked.window, asked.role, skip_unreadable=asked.skip_unreadable)
    with reading(total_size(items), "reading", files=len(items)) as progress:
        read = ReadOptions(asked.partial, asked.nsys, progress, cache=cached, device=asked.device, status=progress.say)
        advice, workers = not asked.no_advice, asked.jobs or os.cpu_count() or 1
        options = Options(
            asked.ranks,
            asked.steps,
            workers,
            read,
            advice,
            replay=advice,
            world_size=asked.world_size,
            skip_unreadable=asked.skip_unreadable,
        )
        return run(items, options, begun=progress.file, executor=chosen), items


def _kept(asked: Asked, found: Found) -> int | None:
    """The number of the run in the store; None where it could not be kept."""
    from gpuscope.commands.options import cache_wanted
    from gpuscope.store.location import keep

    return keep(
        found.report, found.files, asked.paths, asked.question, asked.store, asked.label, found.remote, cache_wanted()
    )


def _write(asked: Asked, found: Found) -> None:
    """Write the files asked for."""
    from gpuscope.output import write_folder, write_text

    if asked.html is not None:
        write_text(asked.html, _page(found.report))
    if asked.share is not None:
        from gpuscope.report.read_report import dumps
        from gpuscope.report.section_tables import share

        shared = share(found.report, found.hosts)
        write_text(asked.share, _page(shared) if asked.share.suffix == ".html" else f"{dumps(shared)}\n")
    if asked.csv is not None:

        def fill(folder: Path) -> None:
            for section, frame in _tables(found.report).items():
                (folder / f"{section}.csv").write_text(frame.to_csv(index=False), encoding="utf-8")

        write_folder(asked.csv, fill)


def _page(report: Report) -> str:
    from gpuscope.report.html.html_report import render

    return render(report)


def _tables(report: Report) -> AnalysisTables:
    from gpuscope.analyzers.run.analysis import Analysis

    return Analysis(report).tables


def _say_written(asked: Asked, found: Found) -> None:
    """What was written, and how to open it."""
    from gpuscope.output import say_written

    if asked.html is not None:
        say_written(asked.html, f"open it in a browser: gpuscope open {asked.html}")
    if asked.csv is not None:
        say_written(asked.csv, f"{len(_tables(found.report))} tables as CSV")
    if asked.share is not None:
        say_written(asked.share, "look through it before you send it")


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
