"""The data loader: workers that load while the device computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.analyzers.advice.framework_settings import by_framework, config, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.changes import LoaderWorkers
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry

WORKERS = (1, 2, 4, 8, 16)
NO_WORKERS, WITH_WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
"""The iterators of a DataLoader with num_workers=0 and more (torch.utils.data.dataloader)."""


@dataclass(frozen=True)
class MoreWorkers(Suggestion):
    """More worker processes than there are: neither their number nor what a batch takes them is recorded, so that the
    replay refuses."""

    code = "loader_workers"
    answers = ("input",)
    sets = "`DataLoader(num_workers=…)`, by the framework's name for it"
    action = "Give the data loader more worker processes than it has now"
    why = "{cost}; the worker processes make batches more slowly than the device takes them"
    risk = "each worker is a process with its own memory, per rank; beyond the free CPU cores more are slower"
    verify = "record again: the cause `input` is gone; if not, the storage or the CPU cores are the limit"


@dataclass(frozen=True)
class Workers(MoreWorkers):
    """Worker processes where there are none."""

    action = "Load batches in {workers} worker process{plural} (with persistent_workers=True)"
    why = "{cost}; a worker loads the next batches while the device computes"
    risk = (
        "each worker is a process with its own memory, per rank; needs as many free CPU cores; the order of random "
        "augmentations changes"
    )

    workers: int

    @property
    def plural(self) -> str:
        return "es" if self.workers > 1 else ""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The fewest workers that hide the loading; where there are workers already, more than now."""
    names = [evidence["name"] for evidence in finding["evidence"]]
    if any(WITH_WORKERS in name for name in names):
        setting = python("the workers of the data loader", "twice as many as now, as far as there are free CPU cores")
        yield Proposal(finding, MoreWorkers(), setting, (LoaderWorkers(2),))
        return
    for workers in WORKERS:
        setting = by_framework(
            case,
            python("DataLoader.num_workers", str(workers)) | {"besides": "persistent_workers=True"},
            transformers=python("TrainingArguments.dataloader_num_workers", str(workers))
            | {"besides": "dataloader_persistent_workers=True"},
            megatron=config("--num-workers", str(workers)),
        )
        if names and all(NO_WORKERS in name for name in names):
            setting = setting | {"now": "0"}
        yield Proposal(finding, Workers(workers), setting, (LoaderWorkers(workers),))


RULE = Rule("loader", (MoreWorkers, Workers), propose, place=140)
