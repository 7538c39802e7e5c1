"""`python -m benchmarks.planner`: layouts that papers and vendors publish, and the place the planner gives each."""

from __future__ import annotations

from dataclasses import dataclass

import click

from gpuscope.analyzers.planning.candidates import Question, best_of_each, scored
from gpuscope.analyzers.planning.costs.rates import Rates
from gpuscope.analyzers.planning.costs.step_estimate import estimate, flops
from gpuscope.analyzers.planning.inputs.cluster_spec import cluster_of
from gpuscope.analyzers.planning.inputs.model_spec import model_named
from gpuscope.analyzers.planning.layout import Layout


@dataclass(frozen=True)
class Published:
    """A layout as published, and its share of the peak where that is too. `why`: what the planner does not know."""

    model: str
    cluster: str
    batch: int
    layout: Layout
    source: str
    why: str = ""
    mfu: float | None = None
    precision: str = "bf16"
    sequence: int | None = None


_LLAMA = "Llama 3, arXiv:2407.21783, table 4"
_NEMO = "NeMo 25.04, performance summary, GB200 in FP8"
PUBLISHED = (
    Published("llama-3-8b", "1x8xGB200", 128, Layout(8, zero=1), _NEMO, precision="fp8"),
    Published("llama-3-70b", "1x64xGB200", 128, Layout(64, zero=3), _NEMO, precision="fp8"),
    Published("llama-3.1-405b", "1024x8xH100", 2048, Layout(64, 8, 16, zero=1), _LLAMA, mfu=0.43),
    Published("llama-3.1-405b", "2048x8xH100", 2048, Layout(128, 8, 16, zero=1), _LLAMA, mfu=0.41),
    Published(
        "llama-3.1-405b", "2048x8xH100", 128, Layout(8, 8, 16, 16, zero=1), _LLAMA,
        "it gathers keys and values where a ring hides them, so wide context parallelism costs it more", 0.38,
        sequence=131072,
    ),
    Published(
        "mixtral-8x7b", "1x64xGB200", 256, Layout(64, expert=8, zero=1), _NEMO,
        "gathering all experts looks as cheap where thin matrices are not modelled", precision="fp8", sequence=4096,
    ),
    Published(
        "deepseek-v3", "256x8xH800", 15360, Layout(128, pipeline=16, expert=64, zero=1),
        "DeepSeek-V3, arXiv:2412.19437, section 3.2",
        "its DualPipe hides the all-to-alls, here exposed, and a token goes to at most 4 hosts", precision="fp8",
    ),
    Published(
        "gpt3-175b", "8x8xA100", 64, Layout(1, 8, 8, chunks=3), "Korthikanti et al., arXiv:2205.05198, table 5",
        mfu=0.514,
    ),
    Published(
        "gpt3-175b", "128x8xA100", 1536, Layout(16, 8, 8), "Narayanan et al., arXiv:2104.04473, table 1",
        "from before ZeRO-1 and sequence parallelism were usual", 0.44,
    ),
    Published(
        "nemotron-4-340b", "768x8xH100", 2304, Layout(64, 8, 12, zero=1, chunks=8),
        "Nemotron-4 340B, arXiv:2406.11704, table 2", mfu=0.41,
    ),
)  # fmt: skip

HEAD = ("model", "cluster", "published", "of the peak (published)", "first choice", "of the peak", "place", "source")


def _row(own: Published) -> tuple[str, ...]:
    """As in `HEAD`."""
    model, cluster = model_named(own.model, own.sequence), cluster_of(own.cluster)
    question = Question(model, cluster, own.batch, Rates(), own.precision)
    best = best_of_each(scored(question))
    sizes = _sizes(own.layout)
    found = [(index, row) for index, row in enumerate(best, 1) if _sizes(row.layout) == sizes]
    where, seconds = "not listed", estimate(model, cluster, own.layout, own.batch, Rates(), own.precision).seconds
    if found:
        where, seconds = f"{found[0][0]} of {len(best)}", found[0][1].estimate.seconds
    useful = flops(model, own.batch) / (cluster.gpus * cluster.peaks[own.precision])
    share = f"{useful / seconds:.0%}" + (f" ({own.mfu:.0%})" if own.mfu else "")
    first = best[0]
    return (
        own.model, cluster.name, _short(own.layout), share, _short(first.layout),
        f"{useful / first.estimate.seconds:.0%}", where, own.source + (f"; {own.why}" if own.why else ""),
    )  # fmt: skip


def _sizes(own: Layout) -> tuple[int, ...]:
    return own.data, own.tensor, own.pipeline, own.context, own.expert


def _short(own: Layout) -> str:
    return own.name.split(", micro-batch")[0]


def rows() -> list[tuple[str, ...]]:
    """As `HEAD`, one per published layout."""
    return [*map(_row, PUBLISHED)]


@click.command()
def main() -> None:
    """Print one table, as Markdown."""
    for row in (HEAD, ("---",) * len(HEAD), *rows()):
        click.echo("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
