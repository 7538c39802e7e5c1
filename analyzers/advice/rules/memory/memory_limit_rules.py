"""Memory is the wall: what frees some, at the price of time that only another run can tell.

Where the stacks of a snapshot show what holds the peak, only what they call for is proposed, each with the bytes it can
save at most; where a trace alone tells that memory ran out, the usual ways, from the cheapest in time to the dearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.analyzers.advice.framework_settings import config, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Refused
from gpuscope.report.view import memory_sentences
from gpuscope.schema.document import FindingEntry, MemoryBound, Setting
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.trace.naming.stack_frames import ACTIVATIONS, StackKind

UNKNOWN = "it saves memory, not time, and how much depends on the model: see `gpuscope advise --model … --cluster …`"
LEAST_SHARE = 0.05
"""Share of the peak that a change must be able to save to be worth proposing."""
SEEN_SHARE = 0.2
"""Share of the peak whose stacks must be known for them to say what would shrink it."""


@dataclass(frozen=True)
class _Way:
    """One way to need less memory."""

    code: str
    action: str
    names: dict[str, Setting]
    """Its setting by framework."""
    otherwise: Setting
    risk: str
    kinds: tuple[StackKind, ...] = ()
    """What it shrinks; nothing: no stack shows that."""
    keeps: float = 0.0
    """The part of that which stays whatever happens."""
    training_only: bool = False
    basis: str = "if all of it vanished and nothing else changed"


_FUSED_ATTENTION = _Way(
    "fused_attention",
    "Compute attention by a fused kernel, which never stores the matrix of scores",
    {"transformers": python("AutoModel.from_pretrained.attn_implementation", '"sdpa"')},
    python("softmax over attention scores", "torch.nn.functional.scaled_dot_product_attention"),
    "a mask or bias that the fused kernels don't support falls back to the slow one; results differ in rounding",
    (StackKind.ATTENTION_SCORES,),
)
_SMALLER_BATCH = _Way(
    "smaller_micro_batch",
    "Halve the micro-batch and accumulate gradients over twice as many",
    {
        "megatron": config("--micro-batch-size", "half of it"),
        "deepspeed": config("train_micro_batch_size_per_gpu", "half of it"),
        "transformers": python("TrainingArguments.per_device_train_batch_size", "half of it"),
    },
    python("batch size per rank", "half of it, with gradients accumulated over 2"),
    "smaller matrices use the device less well",
    (*ACTIVATIONS, StackKind.CHECKPOINTED, StackKind.LOADING),
    keeps=0.5,
    basis="half of what the forward pass and the loader hold at the peak",
)
_CHECKPOINTING = _Way(
    "activation_checkpointing",
    "Recompute activations in the backward pass instead of keeping them",
    {
        "megatron": config("--recompute-granularity", "selective"),
        "transformers": python("TrainingArguments.gradient_checkpointing", "True"),
        "deepspeed": config("activation_checkpointing.partition_activations", "true"),
    },
    python("torch.utils.checkpoint.checkpoint.use_reentrant", "False"),
    "one more forward pass of what is recomputed, up to a third more compute (Chen et al., arXiv:1604.06174)",
    ACTIVATIONS,
    training_only=True,
    basis="if nothing of the forward pass were kept; each checkpointed block's input stays",
)
_SHARDING = _Way(
    "shard_states",
    "Shard parameters, gradients and optimiser states over the data-parallel ranks",
    {
        "megatron": config("--use-distributed-optimizer", ""),
        "deepspeed": config("zero_optimization.stage", "3"),
    },
    python("torch.distributed.fsdp.fully_shard", "each layer, then the model"),
    "half as much communication again as plain data parallel (ZeRO stage 3, arXiv:1910.02054, 7.2)",
    (StackKind.GRADIENTS, StackKind.OPTIMIZER, StackKind.OPTIMIZER_TEMPORARIES, StackKind.SETUP),
    basis="over ever more ranks; of n ranks each keeps 1/n of it, so one rank alone gains nothing",
)
_ONE_AT_A_TIME = _Way(
    "single_tensor_optimizer",
    "Let the optimizer update without copies of all parameters at once",
    {},
    python("optimizer arguments", "fused=True, or foreach=False"),
    "foreach=False launches a kernel per parameter and operation, which is slower; fused=True needs CUDA tensors",
    (StackKind.OPTIMIZER_TEMPORARIES,),
)
_OFFLOAD = _Way(
    "cpu_offload",
    "Keep parameters and optimiser states in host memory",
    {
        "deepspeed": config("zero_optimization.offload_optimizer.device", "cpu"),
        "fsdp2": python("fully_shard.offload_policy", "CPUOffloadPolicy()"),
    },
    python("fully_shard.offload_policy", "CPUOffloadPolicy()"),
    "every step copies over PCI Express: the last resort",
    (StackKind.OPTIMIZER, StackKind.SETUP),
)
_SHOWN_BY_STACKS = (_FUSED_ATTENTION, _CHECKPOINTING, _SMALLER_BATCH, _ONE_AT_A_TIME, _SHARDING, _OFFLOAD)
_USUAL = (_SMALLER_BATCH, _CHECKPOINTING, _SHARDING, _OFFLOAD)


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What the stacks at the peak call for; without them the usual ways."""
    if finding["code"] == "memory_peak":
        for entry in _to_answer(case):
            yield from _by_stacks(case, finding, entry)
    elif not any(_seen(entry) for entry in _to_answer(case)):
        yield from (_proposal(case, finding, way) for way in _USUAL)


def _to_answer(case: Case) -> list[MemoryEntry]:
    """Each snapshot of its own; of those of a run's ranks the one to speak of first."""
    entries = [one for one in case.report.get("memory", []) if one["kind"] == "snapshot"]
    if not case.finding("memory_peak"):
        return []
    ranks = memory_sentences.leading([one for one in entries if one.get("rank_told", True)])
    own = [one for one in entries if not one.get("rank_told", True)]
    first = memory_sentences.leading(entries)
    return sorted(([] if ranks is None else [ranks]) + own, key=lambda one: one is not first)


def _seen(entry: MemoryEntry) -> bool:
    """Whether the stacks tell of enough of the peak what it is."""
    unknown = (StackKind.NO_STACK.value, StackKind.BEFORE.value, StackKind.OTHER.value)
    known = sum(one["bytes"] for one in entry.get("peak_by_kind", []) if one["kind"] not in unknown)
    return known >= SEEN_SHARE * max(entry["peak_allocated_bytes"], 1)


def _by_stacks(case: Case, finding: FindingEntry, entry: MemoryEntry) -> Iterator[Proposal]:
    """Those that can save enough, what saves most at the least price first."""
    peak = entry["peak_allocated_bytes"]
    held = {one["kind"]: one["bytes"] for one in entry.get("peak_by_kind", [])}
    several = len(_to_answer(case)) > 1
    for way in _SHOWN_BY_STACKS:
        saved = round(sum(held.get(kind.value, 0) for kind in way.kinds) * (1 - way.keeps))
        if saved < LEAST_SHARE * peak or not peak or (way.training_only and not entry.get("trains", False)):
            continue
        bound: MemoryBound = {"peak_bytes_before": peak, "peak_bytes_low": peak - saved, "basis": way.basis}
        yield _proposal(case, finding, way, bound, entry["path"] if several else "")


def _proposal(
    case: Case, finding: FindingEntry, way: _Way, bound: MemoryBound | None = None, path: str = ""
) -> Proposal:
    why_not = UNKNOWN if bound is None else "an allocator snapshot tells no times"
    return Proposal(
        code=way.code,
        action=way.action,
        why=finding["message"],
        setting=in_dialect(case, way.names) or way.otherwise,
        risk=way.risk,
        verify=VERIFY,
        outcome=Refused(f"{why_not}; the price: {way.risk}"),
        saves=bound,
        path=path,
    )


VERIFY = "record again with an allocator snapshot: the peak falls"
_BOTH = ("out_of_memory", "memory_peak")
RULE = Rule(
    "memory_wall",
    (
        Knob(
            "smaller_micro_batch",
            _BOTH,
            "half the micro-batch, gradients accumulated",
            risk="smaller matrices use the device less well",
            verify=VERIFY,
        ),
        Knob(
            "activation_checkpointing",
            _BOTH,
            "recompute in the backward pass, by the framework's name",
            risk="one more forward pass of what is recomputed",
            verify=VERIFY,
        ),
        Knob(
            "shard_states",
            _BOTH,
            "FSDP2, ZeRO stage 3, Megatron's distributed optimizer",
            risk="half as much communication again as plain data parallel",
            verify=VERIFY,
        ),
        Knob(
            "cpu_offload",
            _BOTH,
            "`CPUOffloadPolicy()`, ZeRO-Offload",
            risk="every step copies over PCI Express",
            verify=VERIFY,
        ),
        Knob(
            "fused_attention",
            ("memory_peak",),
            "`scaled_dot_product_attention` for a softmax over stored scores",
            risk="a mask or precision that no fused kernel takes",
            verify=VERIFY,
        ),
        Knob(
            "single_tensor_optimizer",
            ("memory_peak",),
            "`fused=True` or `foreach=False` of the optimizer",
            risk="a kernel per parameter instead of one for many",
            verify=VERIFY,
        ),
    ),
    propose,
    place=160,
)
