"""`gpuscope advise`: which parallelism for which model on which cluster."""

from __future__ import annotations

import click


@click.command(short_help="Choose a parallelism for a model and a cluster.")
@click.option("--model", "model_name", required=True, metavar="MODEL", help="llama-3-8b … or layers=32,width=4096,…")
@click.option("--cluster", "spec", required=True, metavar="SPEC", help="8xH100, or 16x8xH100 for 16 hosts.")
@click.option("--sequence", type=click.IntRange(min=1), metavar="TOKENS",
              help="Length of a sequence.  [default: the model's]")  # fmt: skip
@click.option("--global-batch", type=click.IntRange(min=1), metavar="N",
              help="Sequences per step.  [default: about 4 M tokens]")  # fmt: skip
@click.option("--network", metavar="KEY",
              help="What joins hosts, per GPU: ib_ndr, roce_200 …  [default: the GPU's usual]")  # fmt: skip
@click.option("--gpu-memory", type=click.FloatRange(min=1), metavar="GB",
              help="Memory of a GPU.  [default: its data sheet's]")  # fmt: skip
@click.option("-n", "--limit", type=click.IntRange(min=1), default=5, show_default=True, help="Candidates to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, and nothing else, on stdout.")
def command(
    model_name: str, spec: str, sequence: int | None, global_batch: int | None, network: str | None,
    gpu_memory: float | None, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """Say what fits: memory per GPU by part, bytes sent per step, pipeline bubble, placement; and why.

    \b
    gpuscope advise --model llama-3-8b --cluster 8xH100
    gpuscope advise --model llama-3-70b --cluster 16x8xH100 --global-batch 512
    gpuscope advise --model layers=48,width=6144,heads=48,ffn=24576,vocabulary=50304,sequence=4096 --cluster 4x8xA100
    """
    from gpuscope.analyzers.planning.advising import advise

    document = advise(
        model_name, spec, sequence=sequence, global_batch=global_batch, network=network, gpu_memory=gpu_memory,
        limit=limit,
    ).document  # fmt: skip
    if as_json:
        import json

        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from gpuscope.report.terminal.plan_text import render
    from gpuscope.report.terminal.screen import ReportConsole, Writer

    render(document, Writer(ReportConsole()))
