"""The section `pipeline` in the terminal: schedule, bubble by stage, and what would make it smaller."""

from __future__ import annotations

from typing import Literal

from rich.console import RenderableType

from gpuscope.catalogue.prediction_sentences import with_basis
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report
from gpuscope.schema.pipeline_section import Pipeline
from gpuscope.when_used import dataclass
from gpuscope.words import units

STAGES_SHOWN = 16
PARTS: tuple[Literal["warm_up", "steady", "drain", "imbalance"], ...] = ("warm_up", "steady", "drain", "imbalance")
"""Parts of a bubble, as labelled."""
BUBBLE = "whatever keeps a stage from computing: neighbours, messages, its host"
"""What the bubble holds beyond the cause `pipeline_bubble`, which is exposed waiting for a neighbour alone."""
_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved 1F1B",
    "looped_bfs": "looped breadth-first",
    "interleaved_zero_bubble": "interleaved zero-bubble",
    "zbv": "ZB-V",
    "unknown": "unknown",
}


@dataclass(frozen=True)
class StageRow:
    """A stage over all pipelines and steps: shares of the pipeline's time."""

    stage: int
    ranks: list[int]
    compute_frac: float
    part_fracs: list[float]
    """In the order of `PARTS`."""


def section(report: Report, writer: Writer) -> None:
    """Nothing for a job without a pipeline."""
    if "pipeline" not in report:
        return
    pipeline = report["pipeline"]
    writer.heading("Pipeline")
    for line in sentences(pipeline):
        writer.line(line, hang=2)
    rows = by_stage(pipeline)
    if not rows:
        return
    cells: list[tuple[RenderableType, ...]] = [
        (str(row.stage), writer.cell(units.ranks(row.ranks)), *map(units.share, (row.compute_frac, *row.part_fracs)))
        for row in rows[:STAGES_SHOWN]
    ]
    writer.rows((">stage", "<ranks", ">compute", *(f">{part.replace('_', '-')}" for part in PARTS)), cells)
    if len(rows) > STAGES_SHOWN:
        writer.line(writer.text(f"and {units.plural(len(rows) - STAGES_SHOWN, 'more stage')} (--html, --json)", "dim"))


def sentences(pipeline: Pipeline) -> list[str]:
    """What the section says in words."""
    count = len({entry["pipeline"] for entry in pipeline["stages"]})
    stages = max((entry["stage"] for entry in pipeline["stages"]), default=-1) + 1
    said = [f"{units.plural(count, 'pipeline')} of {units.plural(stages, 'stage')}, from {pipeline['basis']}"]
    if "schedule" in pipeline:
        schedule = pipeline["schedule"]
        chunks = schedule["chunks_per_stage"]
        each = f", {chunks} model chunks per stage" if chunks > 1 else ""
        batches = units.plural(schedule["micro_batches"], "micro-batch", "micro-batches")
        said.append(f"schedule: {_NAMES[schedule['name']]} with {batches}{each}; {schedule['why']}")
        best = schedule["ideal_bubble_frac"]
        ideal = f"; ideal for this schedule {units.share(best)}: {schedule['ideal_basis']}" if best is not None else ""
        share = units.share(pipeline.get("bubble_frac"))
        said.append(f"bubble: {share} of the pipeline's time, {BUBBLE}{ideal}")
    for words, gain in (
        ("an even split of the stages", pipeline.get("even_split")),
        ("twice the micro-batches, same batch", pipeline.get("more_micro_batches")),
    ):
        if gain is not None:
            said.append(f"{words}: {with_basis(gain)}")
    if pipeline["incomplete"]:
        said.append(f"incomplete: {pipeline['incomplete']}")
    return said


def by_stage(pipeline: Pipeline) -> list[StageRow]:
    """The rows of the section added up by stage."""
    rows = pipeline.get("rows", [])
    found = []
    for stage in sorted({row["stage"] for row in rows}):
        own = [row for row in rows if row["stage"] == stage]
        whole = max(sum(row["dur_ns"] for row in own), 1)
        parts = [sum(row["bubble_ns"][part] for row in own) / whole for part in PARTS]
        ranks = sorted({row["rank"] for row in own})
        found.append(StageRow(stage, ranks, sum(row["compute_ns"] for row in own) / whole, parts))
    return found
