"""`python -m benchmarks.planner`: layouts that papers and vendors publish, the place the planner gives each, and its
estimate by the published rate. With `--measured FILE…` instead: layouts whose steps people measured
(`benchmarks.measured_steps`)."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click

from benchmarks import measured_steps
from gpuscope.analyzers.planning.calibrating import given_layout
from gpuscope.analyzers.planning.candidates import (
    CHUNKS,
    Question,
    Scored,
    as_it_is,
    best_of_each,
    least_recomputed,
    place,
    scored,
    sizes,
)
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.plan_memory import FULL, NO, Rates
from gpuscope.analyzers.planning.transformer import model_named

TABLE = Path(__file__).parent / "published_layouts.csv"
OUTCOME = Path(__file__).parent / "outcomes" / "published_layouts.md"
SOURCES = {
    "nemo-24.07": "NeMo 24.07, performance summary (NVIDIA/NeMo, docs/source/performance)",
    "dgxc-24.11": "NGC, Nemotron4 340B, DGXC Benchmarking 24.11",
    "bridge-25.09": "Megatron-Bridge, performance summary, NeMo 25.09",
    "bridge-25.11": "Megatron-Bridge, performance summary, NeMo 25.11",
    "bridge-26.02": "Megatron-Bridge, performance summary, NeMo 26.02",
    "automodel": "NeMo AutoModel, performance summary, October 2025",
    "mosaic-h100": "MosaicML llm-foundry, scripts/train/benchmarking, H100 BF16",
    "mosaic-a100": "MosaicML llm-foundry, scripts/train/benchmarking, A100",
    "titan-2412": "torchtitan, benchmarks/llama3_h100_202412",
    "titan-h200": "torchtitan, benchmarks/llama3_8b_h200_2025-06",
    "titan-2406": "torchtitan, docs/performance.md of June 2024 (041336434)",
    "titan-long": "torchtitan, benchmarks/llama3_h100_202412, tables 2, 4, 5 and 6",
    "llama-3": "Llama 3, arXiv:2407.21783, table 4",
    "deepseek-v3": "DeepSeek-V3, arXiv:2412.19437, section 1: 180,000 H800 hours for 1e12 tokens",
    "nemotron-4": "Nemotron-4 340B, arXiv:2406.11704, table 2",
    "korthikanti": "Korthikanti et al., arXiv:2205.05198, table 5",
    "narayanan": "Narayanan et al., arXiv:2104.04473, section 5.1: 140 TFLOP/s by its equation 3",
    "mt-nlg": "Smith et al., MT-NLG 530B, arXiv:2201.11990, section 2.3",
}
SEEN = ("llama-3", "deepseek-v3", "nemotron-4", "korthikanti", "narayanan")
"""Sources beside which the planner was developed before rows were held out."""
TEST = ("titan-2406", "titan-long")
"""Sources added before the model was last changed, whole, to test it alone."""
HEAD = (
    "source",
    "model",
    "cluster",
    "tokens of a sequence",
    "batch",
    "published layout",
    "place (strict, listed)",
    "slower than our quickest (as it ran)",
    "tokens/s per GPU",
    "published",
    "ratio",
    "never fitted",
)
WITHOUT_CHOICE = ("mosaic-h100", "mosaic-a100", "titan-2412", "titan-h200", "titan-2406", "titan-long", "automodel")
"""Sources whose layouts were not searched for: llm-foundry had FSDP alone; torchtitan's pages show what each kind of
parallelism gives, alone and then with others; AutoModel has no tensor parallelism for experts and keeps weights and
Adam in bf16, which no plan of ours does."""
MEGATRON = (
    "nemo-24.07",
    "dgxc-24.11",
    "bridge-25.09",
    "bridge-25.11",
    "bridge-26.02",
    "nemotron-4",
    "korthikanti",
    "narayanan",
    "mt-nlg",
)
"""Sources that ran on Megatron-LM: the place is among the layouts that it runs."""
WITHOUT_ZERO_3 = ("nemo-24.07", "dgxc-24.11", "deepseek-v3", "nemotron-4", "korthikanti", "narayanan", "mt-nlg")
"""Sources whose software did not have ZeRO-3: the place is among the layouts that it had."""
WITHIN = 0.15
FIRST = 3
PUBLISHED = {"none": (NO, 1.0), "half": (FULL, 0.5), "full": (FULL, 1.0)}
"""Recomputation where it is told, and of which share: torchtitan's by operators repeats every second product."""


@dataclass(frozen=True)
class Published:
    """A row of the table. `tokens` per second and GPU, where published; `why`: what the planner can't know of it."""

    source: str
    question: Question
    model: str
    row: Scored
    tokens: float | None
    why: str

    @property
    def held_out(self) -> bool:
        """Whether no figure of the planner was fitted to it. Drawn by its name, whole models on a GPU, before any fit:
        two fifths of those that are new."""
        group = f"{self.model[:30]} {self.question.cluster.gpu}"
        return self.source in TEST or (self.source not in SEEN and zlib.crc32(group.encode()) % 5 < 2)


@dataclass(frozen=True)
class Placed:
    """Where the planner sees a published layout: `place` counts the candidates that are quicker by more than the
    estimate's error, `strict` all that are quicker, `listed` those printed before it. None where it does not fit, is
    not considered or had no alternative. `slower` is by how much than the quickest candidate: its combination of
    sizes, and as it ran; `tenth` the same of the tenth quickest."""

    own: Published
    place: int | None = None
    strict: int | None = None
    listed: int | None = None
    of: int = 0
    slower: tuple[float, float] = (0.0, 0.0)
    tenth: float = 0.0

    @property
    def tokens(self) -> float:
        """Estimated, per second and GPU."""
        question = self.own.question
        return question.batch * question.model.sequence / self.own.row.estimate.seconds / question.cluster.gpus

    @property
    def ratio(self) -> float | None:
        """Estimated rate by published."""
        return self.tokens / self.own.tokens if self.own.tokens else None


def published() -> Iterator[Published]:
    """Every row of the table."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        cluster = cluster_of(row["cluster"])
        layout, batch = given_layout(f"{row['layout']},batch={row['batch']}", cluster.gpus)
        model = (
            model_named(row["model"], int(row["sequence"]))
            if "=" not in row["model"]
            else model_named(f"{row['model']},sequence={row['sequence']}")
        )
        kernels = Rates(eager=row["kernels"] == "eager", flash_2=row["kernels"] == "flash")
        question = Question(model, cluster, batch, kernels, row["precision"], lossy=layout.gradients == 2)
        open_chunks = layout.pipeline > 1 and "chunks" not in row["layout"]
        tried = [replace(layout, chunks=chunks) for chunks in (CHUNKS if open_chunks else (layout.chunks,))]
        rows = [
            least_recomputed(question, one)
            for one in tried
            if not open_chunks or layout.pipeline * one.chunks <= model.layers
        ]
        own = min(rows, key=lambda one: (one.lacks, one.estimate.seconds))
        if row["recompute"]:
            recompute, repeated = PUBLISHED[row["recompute"]]
            own = as_it_is(question, replace(own.layout, recompute=recompute, repeated=repeated))
        yield Published(
            row["source"], question, row["model"], own, float(row["tokens"]) if row["tokens"] else None, row["why"]
        )


def placed(own: Published) -> Placed:
    """The place among the best of each combination of sizes, of what the source's software had."""
    if own.source in WITHOUT_CHOICE:
        return Placed(own)
    question = replace(own.question, framework="megatron" if own.source in MEGATRON else "")
    rows = [row for row in scored(question) if not row.layout.secondary]
    if own.source in WITHOUT_ZERO_3:
        rows = [row for row in rows if row.layout.zero < 3]
    best = best_of_each(rows)
    listed = next((index for index, row in enumerate(best, 1) if sizes(row.layout) == sizes(own.row.layout)), None)
    if listed is None:
        return Placed(own, of=len(best))
    its, seconds = best[listed - 1], sorted(row.estimate.seconds for row in best)
    takes = its.estimate.seconds
    return Placed(
        own,
        place(its, best),
        1 + sum(one < takes for one in seconds),
        listed,
        len(best),
        (takes / seconds[0] - 1, own.row.estimate.seconds / seconds[0] - 1),
        seconds[min(9, len(best) - 1)] / seconds[0] - 1,
    )


def row_of(found: Placed) -> tuple[str, ...]:
    """As in `HEAD`."""
    own, question = found.own, found.own.question
    name = own.model if "=" not in own.model else f"{question.model.parameters / 1e9:.1f}B"
    return (
        own.source + (f"; {own.why}" if own.why else ""),
        name,
        question.cluster.name,
        f"{question.model.sequence:,}",
        f"{question.batch:,} {question.precision}",
        own.row.layout.name,
        f"{found.place} ({found.strict}, {found.listed}) of {found.of}" if found.place else "–",
        "{:.0%} ({:.0%})".format(*found.slower) if found.place else "–",
        f"{found.tokens:,.0f}",
        f"{own.tokens:,.0f}" if own.tokens else "–",
        f"{found.ratio:.2f}" if found.ratio else "–",
        "yes" if own.held_out else "",
    )


def summary(found: list[Placed], what: str) -> str:
    """How many are among the first and near the published rate."""
    off = [abs(one.ratio - 1) for one in found if one.ratio]
    within = sum(one <= WITHIN for one in off)
    chosen = [one for one in found if one.own.source not in WITHOUT_CHOICE]
    near = [[one.place is not None and one.slower[ran] <= WITHIN for one in chosen] for ran in (0, 1)]

    def share(which: Iterable[bool]) -> str:
        return f"{(count := sum(which))} of {len(chosen)} ({count / len(chosen):.0%})"

    def first(places: Iterable[int | None]) -> str:
        return share(one is not None and one <= FIRST for one in places)

    return (
        f"{what}: {within} of {len(off)} rates are within {WITHIN:.0%} ({within / len(off):.0%}), the median is off by "
        f"{median(off):.1%}. {first(one.place for one in chosen)} layouts are among the first {FIRST}, with all "
        f"quicker ones counted {first(one.strict for one in chosen)}, as listed "
        f"{first(one.listed for one in chosen)}. {share(near[0])} are at most {WITHIN:.0%} slower than our quickest, "
        f"the median {median(one.slower[0] for one in chosen):.1%}; as they ran {share(near[1])}. The tenth quickest "
        f"is {median(one.tenth for one in chosen):.1%} slower than the quickest, in the median"
    )


def table() -> list[str]:
    """The table, a summary and the sources, as Markdown."""
    found = [*map(placed, published())]
    held = [one for one in found if one.own.held_out]
    lines = [" | ".join(cells) for cells in (HEAD, ("---",) * len(HEAD), *map(row_of, found))]
    sources = "; ".join(f"`{key}`: {text}" for key, text in SOURCES.items())
    return [
        *(f"| {line} |" for line in lines),
        "",
        f"- {summary(found, 'All')}.",
        f"- {summary(held, 'Never fitted')}.",
        "",
        f"Sources. {sources}.",
    ]


@click.command()
@click.option("--write", is_flag=True, help="Write it where docs/planning.md takes it from.")
@click.option("--measured", is_flag=True, help="Of files of measured steps instead: a row a file.")
@click.option("--json", "as_json", is_flag=True, help="With --measured: as JSON.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(write: bool, measured: bool, as_json: bool, files: tuple[Path, ...]) -> None:
    """Print the table."""
    if measured:
        found = measured_steps.summaries(files)
        click.echo(json.dumps(found, indent=2) if as_json else "\n".join(measured_steps.table(found)))
        return
    text = "\n".join(table())
    click.echo(text)
    if write:
        OUTCOME.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
