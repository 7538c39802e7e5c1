"""Settings as reports name them, and which framework's name for a change a trace calls for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from gpuscope.analyzers.advice.rule import Case, Proposal
from gpuscope.analyzers.changes import Refused
from gpuscope.report.view.per_step import per_step_ns
from gpuscope.schema.document import FindingEntry, RankEntry, Setting
from gpuscope.words import units


def env(name: str, value: str) -> Setting:
    """An environment variable."""
    return {"kind": "env", "name": name, "value": value}


def python(name: str, value: str) -> Setting:
    """An argument or call in the training script: `name` is where it goes, `value` is Python."""
    return {"kind": "python", "name": name, "value": value}


def config(name: str, value: str) -> Setting:
    """A key of a framework's configuration, or an option of its command line."""
    return {"kind": "config", "name": name, "value": value}


def in_dialect(case: Case, names: Mapping[str, Setting]) -> Setting | None:
    """The setting as the outermost framework of the trace names it; None where it has no name for it.

    A job of DeepSpeed, Megatron or Horovod is configured there and nowhere else, whatever it uses inside.
    """
    for framework in case.frameworks:
        if framework in names:
            return names[framework]
        if framework in ("deepspeed", "megatron", "horovod"):
            return None
    return None


def spelled(case: Case, text: str) -> str:
    """Calls of CUDA's runtime as the job's own runtime names them."""
    return text.replace("cudaMallocHost", "hipHostMalloc").replace("cuda", "hip") if case.rocm else text


def megabytes(size: int) -> str:
    """Bytes as a whole number of MiB, the unit of DDP's buckets."""
    return str(size >> 20)


UNDIVIDED = "exposed_communication"
"""The finding of exposed communication whose waiting can't be told from its transfer, as with one rank of many."""


def seen_alone(case: Case, finding: FindingEntry, proposals: Iterable[Proposal]) -> Iterator[Proposal]:
    """Of proposals on when collectives are issued those that the ranks at hand settle: for `UNDIVIDED` those that the
    replay can make on their own timeline, with the other ranks assumed and said."""
    if finding["code"] != UNDIVIDED:
        yield from proposals
        return
    if case.report["verdict"]["abstained"] or finding["severity"] == "low":
        return
    for proposal in proposals:
        if not isinstance(case.predict(proposal.changes), Refused):
            yield replace(proposal, why=f"{proposal.why}; the ranks that are not recorded are assumed to do the same")


def cost(finding: FindingEntry) -> str:
    """What a finding costs, in words: the beginning of a reason; the finding's own message says the rest."""
    if not finding["share_frac"]:
        return finding["message"]
    return f"{finding['code']} takes {units.share(finding['share_frac'])} of the time"


def step_now(case: Case) -> int:
    """What predictions start from, ns: «the step», without steps the longest window."""
    step = case.report["step_time"]
    return step["median_ns"] if step else max((rank["window_ns"] for rank in case.report["ranks"]), default=0)


def device_floor(case: Case, *parts: PartName) -> float:
    """ns that the busiest device needs per step for these parts of its breakdown: no change of the host saves them."""
    return max((needed(case, rank, *parts) for rank in case.report["ranks"]), default=0)


def needed(case: Case, rank: RankEntry, *parts: PartName) -> int:
    """ns per step that these parts of a rank's breakdown take; without steps in its window."""
    spent, step = sum(rank["breakdown_ns"][part] for part in parts), case.report["step_time"]
    of_step = per_step_ns(spent / max(rank["window_ns"], 1), step["median_ns"] if step else None)
    return spent if of_step is None else of_step


PartName = Literal["compute", "exposed_communication", "exposed_memory"]
BUSY: tuple[PartName, ...] = ("compute", "exposed_communication", "exposed_memory")
"""All that a device does: what is left of a step without idle time."""


def on_cpu(case: Case) -> bool:
    """Whether the training threads are the devices."""
    return all(rank["device"] is None for rank in case.report["ranks"])
