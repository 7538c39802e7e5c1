"""`gpuscope record -- COMMAND`: record a training script without changing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from gpuscope.commands.options import command_words
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions, option_texts


def flags(name: str) -> str:
    """How the command line spells an option of `RecordOptions`; what is on by default has a flag to turn it off."""
    flag = option_texts()[name].flag or name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if getattr(RecordOptions, name) is True else f"--{flag}"


def record_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A click option for every field of `RecordOptions`, in their order."""
    texts = option_texts()
    for option in reversed(fields(RecordOptions)):
        text = texts[option.name]
        more: dict[str, Any] = {"default": option.default, "help": text.help}
        if option.default is False:
            more["is_flag"] = True
        elif option.default is not True:
            more |= {"show_default": True, "metavar": text.unit or None}
        if text.choices:
            more["type"] = click.Choice(text.choices)
        function = click.option(flags(option.name), option.name, **more)(function)
    return function


@click.command("record", context_settings={"ignore_unknown_options": True})
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Run folder to make [default: gpuscope-run-TIME].")
@click.option(
    "--reduce",
    "parts",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Also reduce each trace into this folder at the end, as gpuscope reduce does.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a setting without a change of the script; as often as needed (docs/tuning.md).",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="GROUP",
    help="Allow changes of a group that may alter training, such as tf32 or compile.",
)
@record_options
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...", callback=command_words
)
def command(
    command: tuple[str, ...],
    out: Path | None,
    parts: Path | None,
    changes: tuple[str, ...],
    allow: tuple[str, ...],
    **options: Any,
) -> int:
    """Run COMMAND and record what each of its ranks does into one run folder.

    \b
    gpuscope record -- torchrun --nproc-per-node 8 train.py --lr 1e-4
    gpuscope record --set dataloader.num_workers=4 -- torchrun --nproc-per-node 8 train.py
    gpuscope record --profiler nsys -o runs/nsys -- torchrun --nproc-per-node 8 train.py

    The script is not changed: a step is what its optimizer's step() ends. While it runs, `touch RUN/dump`
    has every rank write its collectives, stacks and memory. The exit code is COMMAND's.
    """
    from gpuscope.instrumented_runtime.record.applied.change import Change, checked
    from gpuscope.instrumented_runtime.record.launch import record

    wanted = checked(map(Change.parse, changes), allow)
    folder = out or Path(time.strftime("gpuscope-run-%Y%m%d-%H%M%S"))
    return record(command, folder, RecordOptions(**options).check(), parts, wanted)
