"""`gpuscope again RUN`: a recorded command once more, with the advice followed."""

from __future__ import annotations

import time
from pathlib import Path

import click

from gpuscope.store.location import store_option


@click.command(short_help="Run a recorded command again with changes; compare.")
@click.argument("run")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Run folder to make [default: gpuscope-run-TIME].")
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="What to change, as gpuscope record has it."
)
@click.option("--allow", multiple=True, metavar="GROUP", help="Changes that may alter training so.")
@click.option(
    "--suggestion", metavar="CODE|auto", help="The suggestion of RUN that is followed.  [default: by the settings]"
)
@store_option
@click.option("--no-store", is_flag=True, envvar="GPUSCOPE_NO_STORE", help="Keep neither run in the run store.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(
    run: str,
    out: Path | None,
    changes: tuple[str, ...],
    allow: tuple[str, ...],
    suggestion: str | None,
    store: Path | None,
    no_store: bool,
    as_json: bool,
) -> int:
    """Run the command of a run folder anew, where and as it ran, and compare both runs.

    RUN is a run folder of gpuscope record, or the number in the run store of one. What was predicted for the
    suggestion that the settings show to be followed stands beside what is measured.

    \b
    gpuscope again runs/first --set dataloader.num_workers=8
    gpuscope again 3 --set env.NCCL_PROTO=unset -o runs/second
    """
    from gpuscope.instrumented_runtime.record.applied.change import Change, checked
    from gpuscope.instrumented_runtime.tune.rerun import Asked, again, folder_of

    made = out or Path(time.strftime("gpuscope-run-%Y%m%d-%H%M%S"))
    wanted = checked([Change.parse(one) for one in changes], allow)
    folder = folder_of(run, store).absolute()
    return again(
        Asked(folder, made.absolute(), wanted, allow, suggestion, store, not no_store, ("--json",) if as_json else ())
    )
