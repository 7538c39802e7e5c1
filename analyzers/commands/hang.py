"""`gpuscope hang`: which ranks made a job hang, why, and which only waited."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuscope.schema.document import Report


@click.command(short_help="Say which ranks made a job hang, and why.")
@click.argument("paths", nargs=-1, required=True, metavar="PATHS...")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else, on stdout.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write one self-contained page.")
@click.option("--force", is_flag=True, help="Overwrite the file of --html.")
@click.option("--fail-on-hang", is_flag=True, help="Exit with 1 if the job hung.")
def command(paths: tuple[str, ...], as_json: bool, html: Path | None, force: bool, fail_on_hang: bool) -> int:
    """Say which ranks made a job hang, what they did instead of going on, and how certain that is.

    PATHS are what a job that hangs left, under any names: Flight Recorder dumps, stacks of its ranks (py-spy,
    faulthandler), its logs and NCCL's, reports of NCCL's RAS, /proc/PID/status, logs of torch.compile. Name a folder
    with all that you have; the answer says what is missing and how to get it.

    \b
    gpuscope hang /tmp/nccl_trace_rank_*
    gpuscope hang run/ --json
    """
    from gpuscope.output import check_free, write_text

    check_free([html] if html is not None else [], force, paths, folders=[])
    report = _analyse(paths)
    if html is not None:
        from gpuscope.report.html.html_report import render as page

        write_text(html, page(report))
    if as_json:
        from gpuscope.report.read_report import dumps

        click.echo(dumps(report))
    else:
        from gpuscope.report.terminal.hang_text import render
        from gpuscope.report.terminal.screen import ReportConsole, Writer

        render(report, Writer(ReportConsole()))
    return int(fail_on_hang and report.get("hang", {}).get("hung", False))


def _analyse(paths: tuple[str, ...]) -> Report:
    from gpuscope.analyzers.run.runner import Options, run
    from gpuscope.errors import AnalysisError
    from gpuscope.progress import reading
    from gpuscope.sources.opening import inputs, total_size
    from gpuscope.sources.source import ReadOptions

    items = inputs(_records(paths))
    with reading(total_size(items), "reading", files=len(items)) as progress:
        analysis = run(items, Options(read=ReadOptions(advance=progress)), begun=progress.file)
    for one in analysis.report["analyzers"]:
        if one["name"] == "hang" and one["status"] == "failed":
            raise AnalysisError(f"the analysis failed: hang: {one['why']}")
    return analysis.report


def _records(paths: tuple[str, ...]) -> list[Path]:
    """What tells of a hang among the files named, below the folders named. Raises `InputError` where nothing does."""
    import glob

    from gpuscope.errors import InputError
    from gpuscope.sources.source import hang_records_below, newest_dumps, source_for, tells_of_hang

    found: list[Path] = []
    others: list[Path] = []
    for named in paths:
        matches = [Path(named)] if Path(named).exists() else [Path(path) for path in sorted(glob.glob(named))]
        if not matches:
            raise InputError(f"{named}: no such file or directory")
        for path in matches:
            if path.is_dir():
                found += hang_records_below(path)
            else:
                (found if tells_of_hang(path) else others).append(path)
    if not found and len(others) == 1:
        source_for(others[0])  # says why, if it is of no known format
    if not found:
        raise InputError(
            f"{', '.join(paths)}: nothing that tells of a hang",
            hint="set TORCH_FR_BUFFER_SIZE=2000 to have Flight Recorder dumps written, or take each rank's stack: "
            "py-spy dump --pid PID > stack_rankN.txt",
        )
    for path in others:
        click.echo(f"left out, tells nothing of a hang: {path}", err=True)
    chosen = newest_dumps(found)
    for path in sorted(set(found) - set(chosen)):
        click.echo(f"left out, an older dump of its rank: {path}", err=True)
    return chosen
