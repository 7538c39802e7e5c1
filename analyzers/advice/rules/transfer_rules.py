"""What reaches for each bound of exposed transfers, where no replay can put a figure on it: by what is transferred."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, config, could_be, on_cpu
from gpuscope.analyzers.what_if_changes import NO_GRADIENTS, BucketSize, Refused
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.frameworks import SERVERS, WRAPPERS, parallelism_of
from gpuscope.when_used import dataclass

MOST_FRAC = 0.25
"""Of the time of all collectives, from which an operation is worth a setting of its own."""
_ANSWERS = ("latency", "bandwidth", UNDIVIDED)
_KINDS: Mapping[str, Sequence[str]] = {
    "gradients": ("all_reduce", "reduce_scatter", "reduce"),
    "activations": ("all_reduce",),
    "exchanged data": ("all_to_all",),
    "parameters": ("all_gather", "broadcast"),
    "messages": ("send", "recv", "send_recv"),
}
_PROBE = (BucketSize(1 << 40, 1 << 40),)
"""A change of gradients: the replay refuses it where it can't tell which collectives carry them."""


@dataclass(frozen=True)
class _OfTransfers(Suggestion):
    """For what most of the time is transferred."""

    answers: ClassVar[tuple[str, ...]] = _ANSWERS
    why = "{cost}; {ops} of {what} take most of the time of communication"
    why_not = "what of it can be had only a run shows; the bound is what it could give at most"

    ops: str
    what: str
    dialects: str


@dataclass(frozen=True)
class EarlierLaunch(_OfTransfers):
    """Transfers beside compute."""

    code = "hide_transfers"
    reaches = ("hidden_ns",)
    sets = """when transfers are launched, in the words of whoever may have made them: Megatron \
`--overlap-grad-reduce`, `--overlap-param-gather` and `--tp-comm-overlap`, DeepSpeed `overlap_comm`, FSDP2's prefetch \
lists, `async_op=True` with a later `wait()` in a program's own code"""
    action = "Launch {what} earlier, so that compute hides them ({dialects})"
    risk = "buffers live longer; kernels beside a collective run slower"
    verify = "record again: overlap_frac of the ranks rises"


@dataclass(frozen=True)
class FewerBytes(_OfTransfers):
    """Less to transfer in a step."""

    code = "fewer_bytes"
    reaches = ("half_bytes_ns",)
    sets = "bytes per step: 16 or 8 bits on the wire, more accumulated micro-batches to a reduction, sharding in a host"
    action = "Transfer fewer bytes of {what} per step ({dialects})"
    risk = "fewer bits round; accumulation makes the batch larger, or micro-batches smaller"
    verify = "record again: bytes per step of the collectives"
    alters_training = True


@dataclass(frozen=True)
class FewerTransfers(_OfTransfers):
    """Fewer, larger messages."""

    code = "fewer_messages"
    reaches = ("no_fixed_cost_ns",)
    sets = "how many messages carry the same bytes: buckets, coalescing, larger units, `ncclGroupStart`"
    action = "Send {what} in fewer, larger messages ({dialects})"
    risk = "larger messages are sent later and need buffers of their size"
    verify = "record again: count and mean size of the collectives"


@dataclass(frozen=True)
class FasterTransfers(_OfTransfers):
    """The same messages over the same links, sooner."""

    code = "faster_transfers"
    reaches = ("double_bandwidth_ns", "no_fixed_cost_ns")
    sets = """NCCL's registered buffers (2.19) and symmetric windows (2.27), by `register_mem_pool` of torch's process \
group or Megatron `--use-nccl-ub`; algorithm, protocol and CTAs as `gpuscope tune --nccl` measures them"""
    action = "Make the same transfers faster ({dialects})"
    risk = "registered buffers take memory for good; more CTAs take SMs from kernels beside them"
    verify = "record again: busbw of the collectives"


_WORDS: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]] = {
    "hide": {
        "gradients": (
            ("ddp", "DDP bucket_cap_mb smaller, so that the last bucket is short"),
            ("megatron", "Megatron --overlap-grad-reduce"),
            ("deepspeed", "DeepSpeed overlap_comm=true"),
            ("", "own code: async_op=True from a gradient hook"),
        ),
        "parameters": (
            ("fsdp2", "FSDP2 set_modules_to_forward_prefetch of two modules"),
            ("fsdp", "FSDP1 forward_prefetch=True"),
            ("megatron", "Megatron --overlap-param-gather"),
            ("deepspeed", "DeepSpeed stage3_prefetch_bucket_size larger"),
            ("", "own code: async_op=True a layer ahead"),
        ),
        "activations": (
            ("megatron", "Megatron --tp-comm-overlap"),
            ("", "own code: async_op=True in chunks, each beside the product of the one before"),
        ),
        "exchanged data": (
            ("megatron", "Megatron --overlap-moe-expert-parallel-comm"),
            ("", "own code: two half batches, one exchanged while the other computes"),
        ),
        "messages": (("", "own code: receives posted ahead"),),
    },
    "bytes": {
        "gradients": (
            ("ddp", "DDP no_sync over more micro-batches"),
            ("megatron", "Megatron --grad-reduce-in-bf16"),
            ("deepspeed", "DeepSpeed communication_data_type"),
            ("", "16 bits; more micro-batches to a reduction; sharding within hosts"),
        ),
        "parameters": (
            ("fsdp2", "FSDP2 MixedPrecisionPolicy(param_dtype=torch.bfloat16)"),
            ("fsdp", "FSDP1 MixedPrecision(param_dtype=torch.bfloat16)"),
            ("deepspeed", "DeepSpeed zero_hpz_partition_size"),
            ("", "parameters gathered in 16 or 8 bits"),
        ),
        "activations": (("megatron", "Megatron --sequence-parallel"), ("", "16 bits on the wire; a smaller group")),
        "exchanged data": (("", "16 or 8 bits on the wire"),),
        "messages": (("", "activations sent in 16 bits"),),
    },
    "fewer": {
        "gradients": (
            ("ddp", "DDP bucket_cap_mb larger"),
            ("megatron", "Megatron --ddp-bucket-size larger"),
            ("deepspeed", "DeepSpeed reduce_bucket_size larger"),
            ("", "own code: one flat tensor for many gradients"),
        ),
        "parameters": (
            ("fsdp2", "FSDP2 one fully_shard for several layers"),
            ("fsdp", "FSDP1 auto_wrap_policy with larger units"),
            ("deepspeed", "DeepSpeed stage3_prefetch_bucket_size larger"),
            ("", "own code: one gather for several layers"),
        ),
        "activations": (("", "larger micro-batches; a reduction fused with what follows it"),),
        "exchanged data": (("", "larger micro-batches"),),
        "messages": (("", "batch_isend_irecv"),),
    },
}
"""By aim and what is transferred: the words of each framework that may have made it, and of any other program last."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """For the operation with most of the time: what launches it earlier, shrinks it, joins it and speeds it up."""
    if SERVERS & set(case.frameworks) or (on_cpu(case) and finding["code"] != UNDIVIDED):
        return
    found = _most(case)
    if found is None:
        return
    ops, what = found
    records = {"hide": EarlierLaunch, "fewer": FewerTransfers, "bytes": FewerBytes}
    for aim, record in records.items():
        if finding["code"] in record.answers and (said := _said(case, _WORDS[aim][what])):
            proposal = record(ops, what, said)
            yield Proposal(finding, proposal, config(f"{record.code.replace('_', ' ')}: {what}", said))
    if not on_cpu(case) and any("nccl" in one["name"].lower() for one in case.report.get("kernels", ())):
        said = "NCCL 2.27: symmetric windows, 2.19: registered buffers; or what gpuscope tune --nccl finds"
        yield Proposal(finding, FasterTransfers(ops, what, said), config(f"NCCL buffers of {what}", said))


def _said(case: Case, words: Sequence[tuple[str, str]]) -> str:
    """In the words of the framework that left its mark, else of all that are not ruled out; empty without any."""
    marked = WRAPPERS & set(case.frameworks)
    possible = marked or set(could_be(case))
    return "; ".join(text for name, text in words if name in possible or (not name and not marked))


def _most(case: Case) -> tuple[str, str] | None:
    """The operation with most of the time, and what it transfers."""
    spent: dict[str, int] = {}
    for row in case.report["collectives"]:
        spent[row["op"]] = spent.get(row["op"], 0) + (row["dur_ns"] or 0)
    most = max(spent, key=lambda op: spent[op], default="")
    if not most or spent[most] < MOST_FRAC * sum(spent.values()):
        return None
    kinds = [kind for kind, ops in _KINDS.items() if most in ops]
    if "activations" in kinds:
        kinds = ["gradients"] if _gradients(case, most) else ["activations"]
    return (most.replace("_", "-") + "s", kinds[0]) if kinds else None


def _gradients(case: Case, op: str) -> bool:
    """Whether most of such an operation's time is spent on gradients."""
    groups: dict[str, int] = {}
    for row in case.report["collectives"]:
        if row["op"] == op:
            kind = parallelism_of(row.get("group") or "") or ""
            groups[kind] = groups.get(kind, 0) + (row["dur_ns"] or 0)
    most = max(groups, key=lambda kind: groups[kind], default="")
    if most in ("tp", "sp", "ep", "cp"):
        return False
    refused = case.estimate(_PROBE)
    return bool(WRAPPERS & set(case.frameworks)) or not (isinstance(refused, Refused) and refused.code == NO_GRADIENTS)


RULE = Rule(
    "transfers",
    (EarlierLaunch, FewerTransfers, FewerBytes, FasterTransfers),
    propose,
    programs=("pytorch", "native", "jax"),
    place=400,
)
