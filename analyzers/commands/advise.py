"""`gpuscope advise`: which parallelism for which model on which cluster."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Choose a parallelism for a model and a cluster.")
@click.option(
    "--model",
    "model_name",
    metavar="MODEL",
    help="llama-3-8b …, layers=32,width=4096,…, or a .toml file, or a config.json.",
)
@click.option("--cluster", "spec", metavar="SPEC", help="8xH100, 16x8xH100 for 16 hosts, or a .toml or .json file.")
@click.option(
    "--from",
    "run",
    type=click.Path(exists=True, path_type=Path),
    metavar="RUN",
    help="A recorded run: what it measured replaces what is assumed.",
)
@click.option(
    "--bench",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="What gpuscope bench collectives --json or nccl-tests measured, for the links.",
)
@click.option(
    "--link-gbps",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB/S",
    help="What a GPU sends between hosts, or in the only one.  [default: the link's usual rate]",
)
@click.option(
    "--layout",
    metavar="SIZES",
    help="How RUN was spread, where it does not say: tp=2,pp=4,zero=1,micro_batch=1,batch=512.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A ds_config.json, or a file of torchtitan or Accelerate: what is wrong with it?",
)
@click.option(
    "--sequence", type=click.IntRange(min=1), metavar="TOKENS", help="Length of a sequence.  [default: the model's]"
)
@click.option("--global-batch", type=click.IntRange(min=1), metavar="N", help="Sequences per step.")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Tokens per step.  [default: 4194304]")
@click.option(
    "--network",
    metavar="KEY",
    help="The link of a host's network port: ib_ndr, ethernet_100 …  [default: the GPU's usual]",
)
@click.option(
    "--ports", type=click.IntRange(min=1), metavar="N", help="Network ports of a host.  [default: one per GPU]"
)
@click.option(
    "--gpu-memory", type=click.FloatRange(min=1), metavar="GB", help="Memory of a GPU.  [default: its data sheet's]"
)
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp8", "fp4"]),
    help="Of the matrix multiplications.  [default: the --config's, else bf16]",
)
@click.option(
    "--framework",
    type=click.Choice(["torchtitan", "megatron", "deepspeed", "accelerate"]),
    help="Only layouts that it can run.",
)
@click.option(
    "--launch",
    type=click.Choice(["eager", "compiled", "graphs"]),
    help="How kernels are launched: a slow host can set the pace.  [default: eager]",
)
@click.option(
    "--nvlink-domain",
    type=click.IntRange(min=1),
    metavar="GPUS",
    help="GPUs that NVLink joins, if several hosts.  [default: the GPU's usual]",
)
@click.option("--lossy", is_flag=True, help="Gradients in bf16, and also consider ZeRO++ (fewer bits).")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=4, show_default=True, help="Candidates to show.")
@click.option("--full", is_flag=True, help="Also print the literature's rules and every assumption.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, and nothing else, on stdout.")
def command(
    model_name: str | None,
    spec: str | None,
    run: Path | None,
    bench: Path | None,
    link_gbps: float | None,
    layout: str | None,
    config: Path | None,
    sequence: int | None,
    global_batch: int | None,
    tokens: int | None,
    network: str | None,
    ports: int | None,
    gpu_memory: float | None,
    precision: str | None,
    framework: str | None,
    launch: str | None,
    nvlink_domain: int | None,
    lossy: bool,
    limit: int,
    full: bool,
    as_json: bool,
) -> None:
    """Say what fits: memory per GPU by part, bytes sent per step, pipeline bubble, placement; and why.

    \b
    gpuscope advise --model llama-3-8b --cluster 8xH100
    gpuscope advise --model llama-3-70b --cluster 16x8xH100 --global-batch 512
    gpuscope advise --model config.json --cluster cluster.toml --tokens 8388608
    gpuscope advise --from runs/today --cluster 4x8xH100
    gpuscope advise --config ds_config.json --model llama-3-8b --cluster 8xH100
    """
    from gpuscope.analyzers.planning.advising import advise

    document = advise(
        model_name,
        spec,
        run=run,
        bench=bench,
        link_gbps=link_gbps,
        layout=layout,
        config=config,
        sequence=sequence,
        global_batch=global_batch,
        tokens=tokens,
        network=network,
        ports=ports,
        gpu_memory=gpu_memory,
        precision=precision,
        framework=framework,
        launch=launch,
        nvlink_domain=nvlink_domain,
        lossy=lossy,
        limit=limit,
    ).document
    if as_json:
        import json

        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from gpuscope.report.terminal.plan_text import render
    from gpuscope.report.terminal.screen import ReportConsole, Writer

    render(document, Writer(ReportConsole()), full=full)
