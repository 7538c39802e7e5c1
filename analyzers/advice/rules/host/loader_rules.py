"""The data loader: workers that load while the device computes."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import LoaderWorkers
from gpuscope.schema.document import FindingEntry

WORKERS = (1, 2, 4, 8, 16)
NO_WORKERS, WITH_WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
"""The iterators of a DataLoader with num_workers=0 and more (torch.utils.data.dataloader)."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The fewest workers that hide the loading; where there are workers already, more than now."""
    if any(WITH_WORKERS in place["name"] for place in finding["evidence"]):
        yield _more_workers(finding)
        return
    for workers in WORKERS:
        setting = in_dialect(
            case,
            {
                "transformers": python("TrainingArguments.dataloader_num_workers", str(workers))
                | {"besides": "dataloader_persistent_workers=True"},
                "megatron": config("--num-workers", str(workers)),
            },
        ) or python("DataLoader.num_workers", str(workers)) | {"besides": "persistent_workers=True"}
        if finding["evidence"] and all(NO_WORKERS in evidence["name"] for evidence in finding["evidence"]):
            setting = setting | {"now": "0"}
        yield Proposal(
            code="loader_workers",
            action=f"Load batches in {workers} worker process{'es' if workers > 1 else ''} "
            "(with persistent_workers=True)",
            why=f"{cost(finding)}; a worker loads the next batches while the device computes",
            setting=setting,
            risk="each worker is a process with its own memory, per rank; needs as many free CPU cores; "
            "the order of random augmentations changes",
            verify="record again: the cause `input` is gone; if not, the storage or the CPU cores are the limit",
            changes=(LoaderWorkers(workers),),
        )


def _more_workers(finding: FindingEntry) -> Proposal:
    """How many there are is not recorded, nor how long a batch takes them: the replay says so."""
    return Proposal(
        code="loader_workers",
        action="Give the data loader more worker processes than it has now",
        why=f"{cost(finding)}; the worker processes make batches more slowly than the device takes them",
        setting=python("the workers of the data loader", "twice as many as now, as far as there are free CPU cores"),
        risk="each worker is a process with its own memory, per rank; beyond the free CPU cores more are slower",
        verify="record again: the cause `input` is gone; if not, the storage or the CPU cores are the limit",
        changes=(LoaderWorkers(2),),
    )


RULE = Rule(
    "loader",
    (Knob("loader_workers", ("input",), "`DataLoader(num_workers=…)`, by the framework's name for it"),),
    propose,
    place=140,
)
