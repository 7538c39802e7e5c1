"""`gpuscope mcp`: questions of a coding assistant about runs, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Answer a coding assistant's questions about runs (MCP).")
@click.argument("roots", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER]...")
@click.option("--partial", is_flag=True, help="Analyse what is left of a truncated file.")
@click.option("--nsys", envvar="GPUSCOPE_NSYS", metavar="PROGRAM", help="nsys executable for exporting reports.")
@click.option("--allow-tune", is_flag=True, help="Let the assistant run commands with gpuscope tune, in FOLDER.")
@click.option("--skill", is_flag=True, help="Print the skill file for assistants, and end.")
def command(roots: tuple[Path, ...], partial: bool, nsys: str | None, allow_tune: bool, skill: bool) -> None:
    """Serve the Model Context Protocol on standard input and output, until its client ends.

    Only traces below each FOLDER can be opened; without one, those below the working directory. Nothing is written but
    gpuscope's own cache of exports of Nsight Systems, and with --allow-tune what commands and their recordings write.

    \b
    gpuscope mcp runs/
    gpuscope mcp --skill > .claude/skills/gpuscope/SKILL.md
    """
    if skill:
        from importlib.resources import files

        click.echo(files("gpuscope.analyzers.assistant").joinpath("SKILL.md").read_text(encoding="utf-8"), nl=False)
        return
    from gpuscope.analyzers.assistant.mcp_server import server
    from gpuscope.analyzers.assistant.opened_runs import OpenRuns, Tunings
    from gpuscope.sources.source import ReadOptions

    opened = OpenRuns(roots or (Path.cwd(),), ReadOptions(partial=partial, nsys=nsys))
    tunings = Tunings(opened.roots[0]) if allow_tune else None
    server(opened, tunings).run("stdio")
