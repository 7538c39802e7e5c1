"""`gpuscope train`: train a small GPT under any parallelism and record what it does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click


class _Kinds(click.Option):
    """`--parallel`, whose help lists the parallelisms; they are imported when it is asked for."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from gpuscope.instrumented_runtime.train.settings.sections import PARALLELISMS

        names = ", ".join(one.names[0] for one in PARALLELISMS)
        self.help = f"{names}, 3d; or several: pp=2+tp=2+fsdp."
        return super().get_help_record(ctx)


def _list_options(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from gpuscope.instrumented_runtime.train.settings.sections import options

    for name, kind, default, text in options():
        shown = "none" if default is None else str(default).lower() if isinstance(default, bool) else default
        choices = f"[{', '.join(get_args(kind))}]" if get_origin(kind) is Literal else ""
        click.echo(f"{name:31} {shown!s:9} {text} {choices}".rstrip())
    ctx.exit()


@click.command("train")
@click.option("--parallel", cls=_Kinds, default="single", metavar="KINDS", show_default=True)
@click.option("--nproc", type=click.IntRange(1), default=1, show_default=True, help="Processes to start here.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Run folder to make.")
@click.option("--preset", default="tiny", show_default=True, help="Size: tiny[-moe] … h100[-moe].")
@click.option("--steps", type=int, help="Optimizer steps (train.steps).")
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file of options.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.OPTION=VALUE", help="Set any option.")
@click.option("--fault", "faults", multiple=True, metavar="NAME[:OPTION=VALUE,…]", help="Inject a fault.")
@click.option("--resume", type=click.Path(path_type=Path), help="Run folder or checkpoint to go on from.")
@click.option("--max-restarts", type=click.IntRange(0), default=0, help="Restarts by torchrun after a failure.")
@click.option(
    "--list-options",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_options,
    help="Show every SECTION.OPTION with its default, and exit.",
)
@click.option("--launched", is_flag=True, hidden=True, help="Started by another `gpuscope train`.")
def command(nproc: int, out: Path, faults: tuple[str, ...], launched: bool, max_restarts: int, **options: Any) -> int:
    """Train a small GPT and record a trace per rank into a run folder.

    Starts torchrun for --nproc processes, or joins the torchrun that started it. A fault's ground truth
    is written into the run folder's manifest.
    """
    from gpuscope.instrumented_runtime.train.faults import check_reached, parse_faults
    from gpuscope.instrumented_runtime.train.settings.parallel_spec import (
        assemble,
        check_device,
        refuse_unused,
        validate,
    )

    again = _arguments(out=out, faults=faults, **options)
    joined = "WORLD_SIZE" in os.environ
    world_size = int(os.environ["WORLD_SIZE"]) if joined else nproc
    resume = options.pop("resume")
    more = {"train.steps": options.pop("steps"), "checkpoint.resume": None if resume is None else str(resume)}
    config = assemble(world_size=world_size, more=more, **options)
    injected = parse_faults(faults)
    for fault in injected:
        config = fault.configure(config, world_size)
    degrees = validate(config, world_size)
    for fault in injected:
        check_reached(fault, config)
    check_device(config)
    refuse_unused(options["settings"], config, degrees)
    if resume is not None:
        from gpuscope.instrumented_runtime.train.run_options import find

        find(resume)  # before anything is started
    if joined:
        from gpuscope.instrumented_runtime.train.run_options import describe
        from gpuscope.instrumented_runtime.train.train_run import run_rank

        run_rank(config, injected, out, None if launched else describe(config, degrees, injected, world_size))
    else:
        from gpuscope.instrumented_runtime.train.train_launch import launch

        launch(config, degrees, injected, out, again, nproc=nproc, max_restarts=max_restarts)
    return 0


def _arguments(
    out: Path,
    faults: tuple[str, ...],
    parallel: str,
    preset: str,
    steps: int | None,
    file: Path | None,
    settings: tuple[str, ...],
    resume: Path | None,
) -> list[str]:
    """This call's arguments, for the workers and the manifest."""
    pairs: list[tuple[str, object]] = [("--parallel", parallel), ("--out", out), ("--preset", preset)]
    pairs += [("--steps", steps)] * (steps is not None) + [("--config", file)] * (file is not None)
    pairs += [("--set", text) for text in settings] + [("--fault", text) for text in faults]
    pairs += [("--resume", resume)] * (resume is not None)
    return [str(word) for pair in pairs for word in pair]


if __name__ == "__main__":  # a worker that torchrun started
    from gpuscope.cli import main

    main(sys.argv[1:])
