"""`gpuscope.advise`: a model and a cluster in, the ways to spread the one over the other out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.plan import default_batch, plan
from gpuscope.analyzers.planning.transformer import model_named
from gpuscope.errors import UsageError
from gpuscope.report.schema.plan_document import Plan, PlanEntry, PlanRule
from gpuscope.report.section_tables import SectionTables

if TYPE_CHECKING:
    import pandas as pd

SECTIONS: dict[str, type] = {"candidates": PlanEntry, "rules": PlanRule}
"""Sections of the document that are tables, and what a row of each holds."""


@dataclass(frozen=True, repr=False)
class ParallelismPlan:
    """What `gpuscope.advise` found."""

    document: Plan
    """The document of `gpuscope advise --json` as a dict: every key is in docs/planning.md; bytes, and times in ns."""

    @property
    def best(self) -> PlanEntry | None:
        """The first candidate; None where no layout fits the GPUs' memory."""
        return self.document["candidates"][0] if self.document["candidates"] else None

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """`candidates` and `rules` as DataFrames, nested keys dotted (`memory_bytes.optimizer`)."""
        return SectionTables(self.document, SECTIONS)

    def __repr__(self) -> str:
        own = self.document
        best = self.best
        return (
            f"ParallelismPlan({own['model']['name']} on {own['cluster']['name']}: "
            f"{best['name'] if best is not None else 'nothing fits'}; {own['feasible']} of {own['considered']} fit)"
        )


def advise(
    model: str,
    cluster: str,
    *,
    sequence: int | None = None,
    global_batch: int | None = None,
    network: str | None = None,
    gpu_memory: float | None = None,
    limit: int = 5,
) -> ParallelismPlan:
    """Say which parallelisms fit a model on a cluster, without a trace, the quickest by estimate first.

    `model` is a preset (`llama-3-8b`), `layers=32,width=4096,…`, or a preset with parts changed; `cluster` is `8xH100`,
    or `16x8xH100` for 16 hosts. `sequence` is in tokens (default: the model's), `global_batch` in sequences per step
    (default: about 4 Mi tokens), `network` the link between hosts per GPU (`ib_ndr`; default: the GPU's usual one),
    `gpu_memory` in GB of a GPU (default: its data sheet's), `limit` the number of candidates kept.

    Raises `UsageError` for a model, cluster or network that is not known or not possible, or a batch that no layout
    divides.
    """
    for name, value, least in (("global_batch", global_batch, 1), ("gpu_memory", gpu_memory, 1), ("limit", limit, 1)):
        if value is not None and not value >= least:
            raise UsageError(f"{name}={value} must be at least {least}")
    shape, machines = model_named(model, sequence), cluster_of(cluster, network, gpu_memory)
    batch = global_batch if global_batch is not None else default_batch(shape, machines)
    return ParallelismPlan(plan(shape, model, machines, batch, limit))
