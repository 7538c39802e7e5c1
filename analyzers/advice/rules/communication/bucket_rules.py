"""Gradient buckets: how many bytes one all-reduce (or reduce-scatter) carries."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import (
    UNDIVIDED,
    config,
    cost,
    env,
    in_dialect,
    megabytes,
    python,
    seen_alone,
)
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import BucketSize
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.words import units

MIB = 1 << 20
DEFAULT, DEFAULT_FIRST = 25 * MIB, 1 * MIB
"""DDP's own sizes where none is given (torch.nn.parallel.distributed, kDefaultFirstBucketBytes)."""
SIZES = tuple(size * MIB for size in (50, 100, 200, 10, 5))
"""Tried besides the default: larger against the fixed cost per message, smaller against a long last bucket."""
GRADIENTS = ("all_reduce", "reduce_scatter")
"""Operations that gradients are reduced by."""
LISTED = tuple(size * MIB for size in (50, 100, 200))
"""Tried behind a first bucket of 1 MiB too, which begins to send as soon as the first gradients are there."""

# Bytes per gradient element, for frameworks that count elements: DeepSpeed reduces in the model's 16 bits,
# Megatron in 32 unless --grad-reduce-in-bf16 is given.
DEEPSPEED_ELEMENT, MEGATRON_ELEMENT = 2, 4


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The default, larger and smaller buckets, as far as the framework has a name for them."""
    yield from seen_alone(case, finding, _sizes(case, finding))


def _sizes(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    same = ((size, size) for size in SIZES)
    for size, first in ((DEFAULT, DEFAULT_FIRST), *same, *((size, DEFAULT_FIRST) for size in LISTED)):
        setting = _named(case, size, first)
        if setting is not None:
            yield _proposal(finding, setting, BucketSize(size, first), _messages(case))


def _named(case: Case, size: int, first: int) -> Setting | None:
    if first != size and size != DEFAULT:
        # An argument of its own, which only a program that wraps its model itself can give.
        listed = f"[{megabytes(first)}, {megabytes(size)}]"
        return python("DistributedDataParallel.bucket_cap_mb_list", listed) if case.frameworks == ["ddp"] else None
    ddp = f"None  # the default: {megabytes(size)} MiB" if first != size else megabytes(size)
    return in_dialect(
        case,
        {
            "transformers": python("TrainingArguments.ddp_bucket_cap_mb", ddp),
            "ddp": python("DistributedDataParallel.bucket_cap_mb", ddp),
            "deepspeed": config("zero_optimization.reduce_bucket_size", str(size // DEEPSPEED_ELEMENT)),
            "megatron": config("--ddp-bucket-size", str(size // MEGATRON_ELEMENT)),
            "horovod": env("HOROVOD_FUSION_THRESHOLD", str(size)),
        },
    )


def _messages(case: Case) -> str:
    """How many gradient collectives there are, and of what size: what larger buckets change."""
    sized = [one for one in case.report["collectives"] if one["op"] in GRADIENTS and one["count"] and one["bytes"]]
    if not sized:
        return ""
    most = max(sized, key=lambda one: one["count"])
    each = units.memory(round((most["bytes"] or 0) / most["count"]))
    return f"{units.plural(most['count'], most['op'].replace('_', '-'))} in the recording, of {each} each on average"


def _proposal(finding: FindingEntry, setting: Setting, change: BucketSize, messages: str) -> Proposal:
    default = ", DDP's default" if change.first != change.size else ""
    if change.first != change.size != DEFAULT:
        default = " behind a first one of 1 MiB"
    return Proposal(
        code="bucket_size",
        action=f"Gather gradients in buckets of {megabytes(change.size)} MiB{default}",
        why=f"{cost(finding)}; fewer, larger messages pay the fixed cost less often; a smaller last bucket "
        "leaves less to send after the backward pass; the replay weighs one against the other",
        setting=setting,
        risk="larger buckets start later and take as much memory again (none with gradient_as_bucket_view=True); "
        "any explicit size also sets DDP's first bucket",
        verify="record again: count and bytes of the gradient collectives, and `gpuscope diff BEFORE AFTER`",
        changes=(change,),
        grounds=messages,
    )


RULE = Rule(
    "buckets",
    (
        Knob(
            "bucket_size",
            ("latency", "bandwidth", UNDIVIDED),
            "DDP `bucket_cap_mb`, or `bucket_cap_mb_list` for a first bucket of another size (torch 2.13; before, "
            "`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`), DeepSpeed `reduce_bucket_size` (elements), Megatron "
            "`--ddp-bucket-size` (elements), `HOROVOD_FUSION_THRESHOLD` (bytes)",
        ),
    ),
    propose,
    place=40,
)
