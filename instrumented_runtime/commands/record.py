"""`gpuscope record -- COMMAND`: record a training script without changing it."""

from __future__ import annotations

import time
from pathlib import Path

import click


@click.command("record", context_settings={"ignore_unknown_options": True})
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Run folder to make [default: gpuscope-run-TIME].")
@click.option(
    "--profiler",
    type=click.Choice(["torch", "nsys", "none"]),
    default="torch",
    show_default=True,
    help="What records kernels and operators.",
)
@click.option("--wait", default=2, show_default=True, help="Steps to skip first.")
@click.option("--warmup", default=1, show_default=True, help="Steps to profile and throw away after these.")
@click.option("--active", default=5, show_default=True, help="Steps to record.")
@click.option("--whole", is_flag=True, help="Record from start to end: for scripts without an optimizer.")
@click.option("--stacks", is_flag=True, help="Record Python stacks (costs much).")
@click.option("--shapes/--no-shapes", default=True, help="Record the operators' input shapes.")
@click.option("--collectives/--no-collectives", default=True, help="Record the metadata of gloo's collectives.")
@click.option(
    "--flight-recorder",
    default=2000,
    show_default=True,
    metavar="N",
    help="Collectives to keep for a dump; 0: none.",
)
@click.option(
    "--hang-timeout",
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Report a collective that takes longer; 0: never.",
)
@click.option(
    "--memory",
    type=click.Choice(["off", "oom", "on"]),
    default="oom",
    show_default=True,
    help="GPU allocator history: snapshot on OOM only, or also on demand and at the end.",
)
@click.option(
    "--nvml-interval",
    default=200,
    show_default=True,
    metavar="MS",
    help="GPU power, clocks and utilisation; 0: none.",
)
@click.option("--nccl-log/--no-nccl-log", default=True, help="Have NCCL write its INFO log into the run folder.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(
    command: tuple[str, ...],
    out: Path | None,
    profiler: str,
    wait: int,
    warmup: int,
    active: int,
    whole: bool,
    stacks: bool,
    shapes: bool,
    collectives: bool,
    flight_recorder: int,
    hang_timeout: float,
    memory: str,
    nvml_interval: int,
    nccl_log: bool,
) -> int:
    """Run COMMAND and record what each of its ranks does into one run folder.

    \b
    gpuscope record -- torchrun --nproc-per-node 8 train.py --lr 1e-4
    gpuscope record --profiler nsys -o runs/nsys -- torchrun --nproc-per-node 8 train.py

    The script is not changed: a step is what its optimizer's step() ends. While it runs, `touch RUN/dump`
    has every rank write its collectives, stacks and memory. The exit code is COMMAND's.
    """
    from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
    from gpuscope.instrumented_runtime.record.launch import record

    options = RecordOptions(
        profiler=profiler,
        wait=wait,
        warmup=warmup,
        active=active,
        whole=whole,
        with_stack=stacks,
        record_shapes=shapes,
        collectives=collectives,
        flight_recorder=flight_recorder,
        hang_timeout_s=hang_timeout,
        memory=memory,
        nvml_interval_ms=nvml_interval,
        nccl_log=nccl_log,
    )
    return record(command, out or Path(time.strftime("gpuscope-run-%Y%m%d-%H%M%S")), options.check())
