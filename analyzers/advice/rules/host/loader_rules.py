"""The data loader: workers that load while the device computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.analyzers.advice.framework_settings import by_framework, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import megatron_settings, other_settings, torch_settings
from gpuscope.analyzers.advice.tries import TIE_FRAC
from gpuscope.analyzers.changes import LinkSpeed, LoaderWorkers, MoreLoaderWorkers
from gpuscope.catalogue.cause_table import BY_CODE
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

WORKERS = (1, 2, 4, 8, 16)
NO_LINK = LinkSpeed(1e3, 1e-3)
"""Communication that costs next to nothing."""
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
    risk = "each worker is a process with its own memory, per rank; {limit}, or than the storage serves, are no faster"
    verify = "record again: the cause `input` is gone; if not, the storage or the CPU cores are the limit"

    times: float
    cores: int | None
    """CPU cores for each rank; None where they are not recorded."""

    @property
    def limit(self) -> str:
        return _limit(self.cores)


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
        "each worker is a process with its own memory, per rank; {limit} are no faster; the order of random "
        "augmentations changes"
    )

    workers: int
    cores: int | None
    """CPU cores for each rank; None where they are not recorded."""

    @property
    def limit(self) -> str:
        return _limit(self.cores)

    @property
    def plural(self) -> str:
        return "es" if self.workers > 1 else ""


def _limit(cores: int | None) -> str:
    if cores is None:
        return (
            "how many CPU cores the rank has is not recorded, as many are assumed to be free: more workers than these"
        )
    return f"unless they wait, more than the {units.plural(cores, 'CPU core')} of this machine for each rank"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The fewest workers that hide the loading, of a step without communication too: that may be mended at the same
    time. No more than there are cores, unless they are known to wait. Where there are some, more than now."""
    names, cores = [evidence["name"] for evidence in finding["evidence"]], case.cores_per_rank
    if any(WITH_WORKERS in name for name in names):
        for times, words in TIMES.items():
            value = f"{words} as many as now, {_at_most(cores)}"
            setting = python("the workers of the data loader", value)
            yield Proposal(finding, MoreWorkers(times, cores), setting, (MoreLoaderWorkers(times),))
        return
    for workers in _in_order(case, cores):
        setting = by_framework(
            case,
            torch_settings.NUM_WORKERS.to(str(workers)) | {"besides": "persistent_workers=True"},
            transformers=other_settings.TRAINER_WORKERS.to(str(workers))
            | {"besides": "dataloader_persistent_workers=True"},
            megatron=megatron_settings.NUM_WORKERS.to(str(workers)),
        )
        if names and all(NO_WORKERS in name for name in names):
            setting = setting | {"now": "0"}
        yield Proposal(finding, Workers(workers, cores), setting, (LoaderWorkers(workers, cores=cores),))


def _in_order(case: Case, cores: int | None) -> Sequence[int]:
    """From the fewest workers on that hide the loading of a step whose communication costs nothing, then fewer ones."""
    found = [one for one in case.report["findings"] if one["code"] in BY_CODE and one["severity"] != "low"]
    if all(BY_CODE[one["code"]].class_name != "communication" for one in found):
        return WORKERS
    told = {count: case.estimate((LoaderWorkers(count, cores=cores), NO_LINK)) for count in WORKERS}
    steps = {count: step for count, step in told.items() if isinstance(step, int)}
    near = min(steps.values(), default=0) + TIE_FRAC * (case.step_ns or 0)
    enough = next((count for count, step in steps.items() if step <= near), WORKERS[0])
    return [*(one for one in WORKERS if one >= enough), *reversed([one for one in WORKERS if one < enough])]


def _at_most(cores: int | None) -> str:
    return "as far as there are free CPU cores" if cores is None else f"{units.plural(cores, 'core')} per rank at most"


RULE = Rule("loader", (MoreWorkers, Workers), propose, place=140)
