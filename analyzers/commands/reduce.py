"""`gpuscope reduce`: a trace's small part, made where the trace lies."""

from __future__ import annotations

from pathlib import Path

import click

from gpuscope.commands.options import StepRange, inputs


@click.command(short_help="Reduce traces to their small parts, to be merged elsewhere.")
@inputs
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE|DIR",
    help="FILE.gsr for one trace, else a folder for one per trace.",
)
@click.option("--steps", type=StepRange(), metavar="A-B", help="Only these steps, e.g. 3-8.")
@click.option(
    "--of",
    "files",
    type=click.IntRange(min=1),
    metavar="N",
    help="Traces of the whole run, which share the replay's size.  [default: as the trace says]",
)
@click.option("--share", is_flag=True, help="Replace the names of folders, hosts and users, to give the parts away.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def command(
    paths: tuple[str, ...],
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    out: Path,
    steps: tuple[int, int] | None,
    files: int | None,
    share: bool,
    force: bool,
) -> None:
    """Write what the analysis of a whole run needs of each trace: steps, breakdown, collectives, replay graph.

    Run it on each node; copy the parts to one place; there, `gpuscope analyze` merges them. The report is the same as
    from the traces themselves.

    \b
    gpuscope reduce rank0.json.gz -o rank0.gsr
    gpuscope reduce traces/ -o parts/
    gpuscope analyze parts/*.gsr
    """
    from gpuscope.analyzers.run.file_part import Options
    from gpuscope.analyzers.run.reduction.reduced_file import SUFFIX
    from gpuscope.analyzers.run.reduction.reducing import reduced
    from gpuscope.output import check_free
    from gpuscope.progress import reading
    from gpuscope.sources.opening import inputs as find_inputs
    from gpuscope.sources.opening import total_size
    from gpuscope.sources.source import ReadOptions
    from gpuscope.words import units

    items = find_inputs(paths, ranks)
    one = out.suffix == SUFFIX
    check_free([out] if one else [], force, paths)
    with reading(total_size(items), "reducing", files=len(items)) as progress:
        read = ReadOptions(partial=partial, nsys=nsys, advance=progress, status=progress.say)
        written = reduced(items, Options(ranks, steps, 1, read, files=files or 0), out, force, progress.file, share)
    size, before = sum(path.stat().st_size for path in written), total_size(items)
    click.echo(
        f"{units.plural(len(written), 'part')} of {units.size(size)} from {units.size(before)}: "
        f"gpuscope analyze {written[0] if one else out}"
    )
