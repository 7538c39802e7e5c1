"""`gpuscope bench`: measures what collectives, copies and links of this machine give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure what this machine can do: collectives, transfers, topology, scaling.

    Tables go to standard output, or with --json one JSON document. Bandwidths are GB/s (1e9 bytes per
    second); algbw and busbw are those of nccl-tests.
    """


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")


def _print_json(document: dict[str, Any]) -> None:
    # What could not be computed (a bandwidth over no time) is null: NaN is not JSON.
    import json

    click.echo(json.dumps(_without_nan(document), indent=2, allow_nan=False))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and value != value else value


@command.command()
@click.option("--op", "ops", multiple=True, metavar="OP", help="Operation; may be repeated.  [default: all of them]")
@click.option("-b", "--minbytes", "smallest", default="1K", show_default=True, help="Smallest size in bytes.")
@click.option("-e", "--maxbytes", "largest", default="16M", show_default=True, help="Largest size in bytes.")
@click.option(
    "-f", "--stepfactor", "factor", default=4, show_default=True, help="Each size is so many times the one before."
)
@click.option("--nproc", default=2, show_default=True, help="Processes to start; under torchrun, its ranks.")
@click.option("--backend", type=click.Choice(["nccl", "gloo"]), help="[default: nccl with a GPU, else gloo]")
@click.option("--dtype", default="float32", show_default=True, help="float32, float16, bfloat16 or int32.")
@click.option("-n", "--iterations", default=20, show_default=True, help="Timed calls per size.")
@click.option("-w", "--warmup", default=5, show_default=True, help="Calls before the timed ones.")
@click.option("--no-check", is_flag=True, help="Don't compare the results with what they should be.")
@click.option("--link", metavar="KEY", help="Compare busbw with this link's peak: nvlink4, pcie5, ib_ndr …")
@_json
def collectives(
    ops: tuple[str, ...],
    smallest: str,
    largest: str,
    factor: int,
    nproc: int,
    backend: str | None,
    dtype: str,
    iterations: int,
    warmup: int,
    no_check: bool,
    link: str | None,
    as_json: bool,
) -> None:
    """Time, algbw and busbw of collectives per size.

    The size is that of the whole array, as in nccl-tests: what an all-gather ends up with, what a
    reduce-scatter starts from. Starts its own processes on this machine, or joins those of torchrun.
    """
    from gpuscope.hardware.link_rates import link_named
    from gpuscope.instrumented_runtime.bench.bench_tables import print_collectives
    from gpuscope.instrumented_runtime.bench.topology_links import (
        OPERATIONS,
        CollectiveOptions,
        check_ranks,
        parse_size,
        sweep,
    )
    from gpuscope.report.terminal.screen import ReportConsole

    peak = link_named(link) if link else None
    check_ranks(int(os.environ.get("WORLD_SIZE", nproc)))
    options = CollectiveOptions(
        ops=ops or OPERATIONS,
        sizes=sweep(parse_size(smallest), parse_size(largest), factor),
        iterations=iterations,
        warmup=warmup,
        dtype=dtype,
        check=not no_check,
    )
    from gpuscope.instrumented_runtime.bench.collectives_bench import run  # imports torch: seconds

    report = run(options, nproc, backend)
    if report is None:
        return
    if as_json:
        _print_json(report.as_json())
    else:
        print_collectives(report, ReportConsole(), peak)


@command.command()
@click.option("--size", help="Bytes per copy.  [default: 256M with a GPU, else 64M]")
@click.option("--iterations", default=20, show_default=True, help="Timed copies of each kind.")
@_json
def transfers(size: str | None, iterations: int, as_json: bool) -> None:
    """Bandwidth of host-device and device copies.

    Without a GPU it copies within host memory and says so: that is no host-device bandwidth.
    """
    from gpuscope.instrumented_runtime.bench.bench_tables import print_transfers
    from gpuscope.instrumented_runtime.bench.topology_links import parse_size
    from gpuscope.report.terminal.screen import ReportConsole

    nbytes = parse_size(size) if size else None
    import torch  # after what can be refused without: it takes seconds

    from gpuscope.instrumented_runtime.bench.collectives_bench import copies_bench_measure

    report = copies_bench_measure(nbytes or parse_size("256M" if torch.cuda.is_available() else "64M"), iterations)
    if as_json:
        _print_json(report.as_json())
    else:
        print_transfers(report, ReportConsole())


@command.command()
@click.option("--nproc", "nprocs", default="1,2", show_default=True, help="Numbers of processes, rising.")
@click.option("--parallel", default="ddp", show_default=True, help="As `gpuscope train --parallel`.")
@click.option("--preset", default="tiny", show_default=True, help="As `gpuscope train --preset`.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.OPTION=VALUE", help="Set a training option.")
@click.option("--steps", default=20, show_default=True, help="Timed steps.")
@click.option("--warmup", default=5, show_default=True, help="Steps before the timed ones.")
@click.option("--strong", is_flag=True, help="Keep the sum of the batches instead of each process's.")
@_json
def scaling(
    nprocs: str,
    parallel: str,
    preset: str,
    settings: tuple[str, ...],
    steps: int,
    warmup: int,
    strong: bool,
    as_json: bool,
) -> None:
    """Throughput of the demo trainer on 1 to n processes, and its scaling efficiency.

    Efficiency is throughput(n) / (n × throughput of one process).
    """
    from gpuscope.errors import UsageError
    from gpuscope.instrumented_runtime.bench.bench_tables import print_scaling
    from gpuscope.instrumented_runtime.bench.topology_links import ScalingOptions, plan
    from gpuscope.report.terminal.screen import ReportConsole

    numbers = nprocs.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(f"--nproc {nprocs!r} is not a list of numbers", hint="--nproc 1,2,4")
    options = ScalingOptions(
        tuple(int(number) for number in numbers), parallel, preset, settings, steps, warmup, strong
    )
    for number in options.nprocs:
        plan(options, number)
    from gpuscope.instrumented_runtime.bench.processes import measure  # imports torch: seconds

    report = measure(options)
    if as_json:
        _print_json(report.as_json())
    else:
        print_scaling(report, ReportConsole())


@command.command()
@click.option(
    "--from-file",
    "source",
    type=click.Path(path_type=Path),
    help="Read `nvidia-smi topo -m` output from a file.",
)
@click.option("--gpu", metavar="NAME", help="The GPUs' product name, where nvidia-smi can't be asked: H100 …")
@_json
def topology(source: Path | None, gpu: str | None, as_json: bool) -> None:
    """What the link between each two GPUs should give, and the machine around them.

    From `nvidia-smi topo -m` and sysfs. The rates are those of data sheets; `gpuscope bench transfers` and
    `collectives` measure.
    """
    from gpuscope.instrumented_runtime.bench.bench_tables import print_topology
    from gpuscope.instrumented_runtime.bench.topology_links import query_gpus, read_matrix, report
    from gpuscope.report.terminal.screen import ReportConsole

    # A file's matrix may be another machine's: this one's GPUs and ports do not belong to it.
    matrix = read_matrix(source)
    found = report(matrix, {}, gpu, sysfs=None) if source else report(matrix, query_gpus(), gpu)
    if as_json:
        _print_json(found.as_json())
    else:
        print_topology(found, ReportConsole())
