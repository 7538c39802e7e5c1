"""Settings of PyTorch's caching allocator, as a replay of the recorded requests under each of them tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuscope.analyzers.advice.framework_settings import env, step_now
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.allocator.allocator_settings import merged
from gpuscope.analyzers.changes import NoAllocatorStalls, Predicted, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.memory_section import AllocatorChangeEntry, AllocatorReplayEntry, MemoryEntry
from gpuscope.when_used import dataclass
from gpuscope.words.units import memory, plural, signed

USUAL = ("expandable_segments", "True")
"""What PyTorch's own message recommends where memory is fragmented."""


@dataclass(frozen=True)
class AllocatorSetting(Suggestion):
    """An option of the caching allocator."""

    code = "allocator_setting"
    answers = ("out_of_memory", "allocator_retries", "fragmentation")
    sets = """`PYTORCH_CUDA_ALLOC_CONF` (`PYTORCH_ALLOC_CONF` where torch 2.9 or later is recorded and that is not \
set, on Ascend `PYTORCH_NPU_ALLOC_CONF`): the best of `expandable_segments`, `max_split_size_mb`, \
`roundup_power2_divisions`, `garbage_collection_threshold` by replaying the recorded requests; what is set besides is \
kept"""
    action = "Set {option}:{value} for the caching allocator"
    why = "{message}"
    verify = (
        "torch.cuda.memory_stats(): reserved_bytes.all.peak{near}, num_alloc_retries and num_ooms 0; or record memory "
        "history again and run gpuscope analyze on the snapshot"
    )

    option: str
    value: str
    peak_reserved_bytes: int | None
    """With it, where the recorded requests could be replayed."""

    @property
    def near(self) -> str:
        return "" if self.peak_reserved_bytes is None else f" near {memory(self.peak_reserved_bytes)}"


class SegmentsThatGrow(AllocatorSetting):
    """`expandable_segments`."""

    risk = (
        "older PyTorch can't pass such tensors to other processes by CUDA IPC; mapping pages is slower than cudaMalloc"
    )


class BlocksKeptWhole(AllocatorSetting):
    """`max_split_size_mb`."""

    risk = "blocks from that size on are kept whole: a request between two sizes may need a new segment"


class RequestsRoundedUp(AllocatorSetting):
    """`roundup_power2_divisions`."""

    risk = "every request is rounded up: each block in use gets a little larger"


class MemoryGivenBack(AllocatorSetting):
    """`garbage_collection_threshold`."""

    risk = (
        "it acts only under torch.cuda.set_per_process_memory_fraction(); what it gives back must be allocated "
        "anew, and cudaFree waits for the device"
    )


_BY_OPTION = {
    "expandable_segments": SegmentsThatGrow,
    "max_split_size_mb": BlocksKeptWhole,
    "roundup_power2_divisions": RequestsRoundedUp,
    "garbage_collection_threshold": MemoryGivenBack,
}


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The best setting that was replayed; where none could be, the usual one without a prediction."""
    own = [one for one in case.report.get("memory", []) if one["rank"] in finding["ranks"] or not finding["ranks"]]
    replayed = ((one, one["replay"]) for one in own if one["replay"])
    entry = next((one for one, replay in replayed if replay["changes"] or replay["why"]), None)
    if entry is None or entry["replay"] is None:
        return
    replay, best = entry["replay"], entry["replay"]["best"]
    if best is None and replay["usable"]:
        return  # nothing that was tried helps
    option, value = (best["option"], best["value"]) if best else USUAL
    record = _BY_OPTION[option](option, value, best["peak_reserved_bytes"] if best else None)
    setting = env(entry["variable"], merged(entry["settings"] or "", option, value))
    if option == "garbage_collection_threshold":
        setting = setting | {
            "besides": "with torch.cuda.set_per_process_memory_fraction(1.0), without which it is idle"
        }
    outcome = _outcome(case, entry, replay, best) if best else Refused(replay["why"])
    yield Proposal(finding, record, setting, outcome=outcome, gains_time=False)


def _outcome(case: Case, entry: MemoryEntry, replay: AllocatorReplayEntry, best: AllocatorChangeEntry) -> Predicted:
    """Memory is what is saved; the step gets shorter only where the trace shows the stalls of retries that go."""
    basis = _basis(entry, replay, best)
    if entry["retries"] and not (best["retries"] or best["failed"] or best.get("collections")):
        outcome = case.predict((NoAllocatorStalls(),))
        if isinstance(outcome, Predicted):
            return replace(outcome, basis=f"{basis}; {outcome.basis}")
    step = step_now(case)
    return Predicted(step, step, step, step, basis)


def _basis(entry: MemoryEntry, replay: AllocatorReplayEntry, best: AllocatorChangeEntry) -> str:
    now, then = replay["peak_reserved_bytes"], best["peak_reserved_bytes"]
    gains = [f"peak of reserved memory {memory(now)} → {memory(then)}"] if now != then else []
    if replay["failed"] > best["failed"]:
        gains.append(f"failed requests {replay['failed']} → {best['failed']}")
    if replay["retries"] > best["retries"]:
        gains.append(f"retries {replay['retries']} → {best['retries']}")
    return (
        f"{', '.join(gains)}, by replaying {plural(entry['events'], 'recorded event')} of rank {entry['rank']} under "
        f"this setting; replayed as it was, the peak is off by {signed(replay['error_frac'])}"
    )


RULE = Rule("memory", tuple(_BY_OPTION.values()), propose, place=20)
