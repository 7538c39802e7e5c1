"""`gpuscope hang`: which ranks made a job hang, and which only waited."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuscope.schema.document import Report


@click.command(short_help="Say which ranks made a job hang, from Flight Recorder dumps.")
@click.argument("paths", nargs=-1, required=True, metavar="DUMPS...")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else, on stdout.")
@click.option("--fail-on-hang", is_flag=True, help="Exit with 1 if the job hung.")
def command(paths: tuple[str, ...], as_json: bool, fail_on_hang: bool) -> int:
    """Say which ranks never came to which collective, and which of them is the first cause.

    DUMPS are the Flight Recorder dumps of all ranks: a folder, a glob or files. PyTorch writes them when a
    collective of NCCL times out (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1), and `gpuscope
    record` when it sees a hang.

    \b
    gpuscope hang /tmp/nccl_trace_rank_*
    gpuscope hang run/flight_recorder/ --json
    """
    report = _analyse(paths)
    if as_json:
        from gpuscope.report.json_report import dumps

        click.echo(dumps(report))
    else:
        from gpuscope.report.terminal.screen import ReportConsole, Writer
        from gpuscope.report.terminal.sections.hang_text import render

        render(report, Writer(ReportConsole()))
    return int(fail_on_hang and report.get("hang", {}).get("hung", False))


def _analyse(paths: tuple[str, ...]) -> Report:
    from gpuscope.analyzers.run.runner import Options, run
    from gpuscope.errors import AnalysisError
    from gpuscope.progress import reading
    from gpuscope.sources.opening import inputs, total_size
    from gpuscope.sources.source import ReadOptions

    items = inputs(_dumps(paths))
    with reading(total_size(items), "reading", files=len(items)) as progress:
        analysis = run(items, Options(read=ReadOptions(advance=progress)), begun=progress.file)
    for one in analysis.report["analyzers"]:
        if one["name"] == "hang" and one["status"] == "failed":
            raise AnalysisError(f"the analysis failed: hang: {one['why']}")
    return analysis.report


def _dumps(paths: tuple[str, ...]) -> list[Path]:
    """The dumps among the files named, below the folders named. Raises `InputError` where there is none."""
    import glob

    from gpuscope.errors import InputError
    from gpuscope.sources.companion_files import is_record, records_below
    from gpuscope.sources.source import Role, source_for

    found: list[Path] = []
    others: list[Path] = []
    for named in paths:
        matches = [Path(named)] if Path(named).exists() else [Path(path) for path in sorted(glob.glob(named))]
        if not matches:
            raise InputError(f"{named}: no such file or directory")
        for path in matches:
            if path.is_dir():
                found += records_below(path, Role.HANG_RECORD)
            else:
                (found if is_record(path, Role.HANG_RECORD) else others).append(path)
    if not found and len(others) == 1:
        source_for(others[0])  # says why, if it is of no known format
    if not found:
        raise InputError(
            f"{', '.join(paths)}: no Flight Recorder dump",
            hint="a dump is a pickle such as nccl_trace_rank_0; set TORCH_FR_BUFFER_SIZE=2000 to have them written",
        )
    for path in others:
        click.echo(f"left out, no Flight Recorder dump: {path}", err=True)
    return _newest_of_each_rank(found)


def _newest_of_each_rank(dumps: list[Path]) -> list[Path]:
    """One dump per rank, the one written last: a run folder may hold those of several requests and of the end."""
    from gpuscope.sources.source import source_for

    newest: dict[int | Path, Path] = {}
    for path in dumps:
        source, head = source_for(path)
        rank = source.peek_rank(path, head)
        key = path if rank is None else rank
        other = newest.get(key)
        if other is None or path.stat().st_mtime_ns > other.stat().st_mtime_ns:
            newest[key] = path
    for path in sorted(set(dumps) - set(newest.values())):
        click.echo(f"left out, an older dump of its rank: {path}", err=True)
    return [path for path in dumps if path in newest.values()]
