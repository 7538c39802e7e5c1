"""`gpuscope tune -- COMMAND`: advice followed, measured, and kept only where it holds."""

from __future__ import annotations

from pathlib import Path

import click

from gpuscope.commands.options import command_words
from gpuscope.instrumented_runtime.tune.budget import DEFAULT


@click.command(context_settings={"ignore_unknown_options": True}, short_help="Follow advice; keep what gains.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder to make [default: gpuscope-tune-TIME].")
@click.option(
    "--budget",
    default=DEFAULT,
    show_default=True,
    metavar="N|TIME",
    help="Runs of the command at most, or a time: 8, 20m, 2h.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=10),
    default=40,
    show_default=True,
    help="Steps to time in each run, after 10 to warm up; the run is then ended.",
)
@click.option(
    "--allow", multiple=True, metavar="GROUP", help="Also try changes that may alter training: docs/tuning.md."
)
@click.option(
    "--out-arg",
    "output_argument",
    default="",
    metavar="NAME",
    help="The script's argument that says where it writes: each run gets a folder of its own.",
)
@click.option(
    "--nccl",
    is_flag=True,
    help="Also search NCCL's own settings (gloo's without a GPU) on the job's "
    "messages: in a quarter of the time left, 10 minutes at most.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the page as HTML, too.")
@click.option(
    "--take",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what to take along here, too: variables, arguments, a patch.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout.")
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...", callback=command_words
)
def command(
    command: tuple[str, ...],
    out: Path | None,
    budget: str,
    steps: int,
    allow: tuple[str, ...],
    output_argument: str,
    nccl: bool,
    html: Path | None,
    take: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """Run COMMAND again and again: as it stands, then with one suggestion after the other, and keep what makes its step
    shorter beyond chance and leaves its losses as they are.

    \b
    gpuscope tune --budget 20m -- torchrun --nproc-per-node 8 train.py --lr 1e-4
    gpuscope tune --allow tf32 --out-arg --output-dir -- python train.py

    The script is not changed; each run ends after --steps. Ctrl-C leaves the best found so far.
    """
    from gpuscope import output
    from gpuscope.errors import INTERRUPTED
    from gpuscope.instrumented_runtime.tune.running import Asked, default_folder, tune

    output.check_free([path for path in (html, take) if path is not None], force)
    found = tune(Asked(command, out or default_folder(), budget, steps, allow, output_argument, nccl))
    if html is not None:
        from gpuscope.report.html.html_report import tune_page_render as page

        output.write_text(html, page(found))
    if take is not None:
        output.write_text(take, "".join(f"{line}\n" for line in found["take"]))
    if as_json:
        import json

        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        from gpuscope.report.terminal.screen import ReportConsole, Writer, render

        render(found, Writer(ReportConsole()))
    return INTERRUPTED if found["ended"] == "interrupted" else 0
