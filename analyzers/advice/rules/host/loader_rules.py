"""The data loader: workers that load while the device computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.analyzers.advice.framework_settings import by_framework, config, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.changes import LoaderWorkers, MoreLoaderWorkers
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry

WORKERS = (1, 2, 4, 8, 16)
TIMES = {2.0: "twice", 4.0: "four times"}
NO_WORKERS, WITH_WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
"""The iterators of a DataLoader with num_workers=0 and more (torch.utils.data.dataloader)."""


@dataclass(frozen=True)
class MoreWorkers(Suggestion):
    """More worker processes than there are, however many these are."""

    code = "loader_workers"
    answers = ("input",)
    sets = "`DataLoader(num_workers=…)`, by the framework's name for it"
    action = "Give the data loader {times:g} times as many worker processes as it has now"
    why = "{cost}; the worker processes make batches more slowly than the device takes them"
    risk = (
        "each worker is a process with its own memory, per rank; beyond the free CPU cores, or what the storage gives, "
        "more are no faster"
    )
    verify = "record again: the cause `input` is gone; if not, the storage or the CPU cores are the limit"

    times: float


@dataclass(frozen=True)
class Workers(Suggestion):
    """Worker processes where there are none."""

    code = MoreWorkers.code
    answers = MoreWorkers.answers
    sets = MoreWorkers.sets
    verify = MoreWorkers.verify
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
        for times, words in TIMES.items():
            value = f"{words} as many as now, as far as there are free CPU cores"
            setting = python("the workers of the data loader", value)
            yield Proposal(finding, MoreWorkers(times), setting, (MoreLoaderWorkers(times),))
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
