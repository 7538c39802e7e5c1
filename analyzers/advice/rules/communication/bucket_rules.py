"""Gradient buckets: how many bytes one all-reduce (or reduce-scatter) carries."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import in_dialect, megabytes
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import deepspeed_settings, megatron_settings, other_settings, torch_settings
from gpuscope.analyzers.changes import BucketSize, Refused
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.when_used import dataclass
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


@dataclass(frozen=True)
class GradientBuckets(Suggestion):
    """Buckets of another size."""

    code = "bucket_size"
    answers = ("latency", "bandwidth", UNDIVIDED)
    sets = """DDP `bucket_cap_mb`, or `bucket_cap_mb_list` for a first bucket of another size (torch 2.13; before, \
`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`), DeepSpeed `reduce_bucket_size` (elements), Megatron \
`--ddp-bucket-size` (elements), `HOROVOD_FUSION_THRESHOLD` (bytes)"""
    action = "Gather gradients in buckets of {mib} MiB{which}"
    why = (
        "{cost}; every message has a fixed cost, which fewer and larger messages pay less often, but a large last "
        "bucket is sent only after the backward pass; the replay compares the sizes"
    )
    grounds = "{messages}"
    risk = (
        "larger buckets are sent later and need as much memory as the gradients (none with "
        "gradient_as_bucket_view=True); an explicit size also sets DDP's first bucket, by default 1 MiB"
    )
    verify = "record again: count and bytes of the gradient collectives, and `gpuscope diff BEFORE AFTER`"

    bytes: int
    first_bytes: int
    """Of the first bucket."""
    op: str | None
    """What most gradients are reduced by, where that is recorded."""
    count: int
    """How often in the recording."""
    mean_bytes: int

    @property
    def mib(self) -> str:
        return megabytes(self.bytes)

    @property
    def which(self) -> str:
        if self.first_bytes == self.bytes:
            return ""
        return ", DDP's default" if self.bytes == DEFAULT else " behind a first one of 1 MiB"

    @property
    def messages(self) -> str:
        if self.op is None:
            return ""
        what = units.plural(self.count, self.op.replace("_", "-"))
        return f"{what} in the recording, of {units.memory(self.mean_bytes)} each on average"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The default, larger and smaller buckets, as far as the framework has a name for them."""
    if _in_one_bucket(case):
        return
    now = messages(case)
    same = ((size, size) for size in SIZES)
    for size, first in ((DEFAULT, DEFAULT_FIRST), *same, *((size, DEFAULT_FIRST) for size in LISTED)):
        setting = _named(case, size, first)
        if setting is not None:
            yield Proposal(
                finding,
                GradientBuckets(size, first, *now),
                setting,
                (BucketSize(size, first),),
                differs=size == DEFAULT and _far_smaller(case),
            )


DEFAULT_BUCKETS = 2
"""A small first bucket and one of all the rest: of these other sizes could hardly gather more."""


def _in_one_bucket(case: Case) -> bool:
    """Whether there may be nothing to gather: sizes are not known, and a step reduces no more often than that."""
    if not isinstance(case.estimate((BucketSize(SIZES[0], SIZES[0]),)), Refused):
        return False
    steps = len({step["step"] for step in case.report["steps"] if step["step"] is not None})
    count = sum(row["count"] for row in case.report["collectives"] if row["op"] in GRADIENTS)
    return 0 < count <= DEFAULT_BUCKETS * steps


def _far_smaller(case: Case) -> bool:
    """Whether a step's gradients come in far more messages than DDP's default makes of as many bytes."""
    _, count, size = messages(case)
    steps = len({step["step"] for step in case.report["steps"] if step["step"] is not None})
    return bool(steps) and count / steps > FAR_SMALLER * (size * count / steps / DEFAULT + DEFAULT_BUCKETS)


FAR_SMALLER = 3
"""Times the messages of the default: a program reduces its losses and norms beside the gradients."""


def _named(case: Case, size: int, first: int) -> Setting | None:
    if first != size and size != DEFAULT:
        # An argument of its own, which only a program that wraps its model itself can give.
        listed = f"[{megabytes(first)}, {megabytes(size)}]"
        return torch_settings.BUCKET_CAP_MB_LIST.to(listed) if case.frameworks == ["ddp"] else None
    ddp = f"None  # the default: {megabytes(size)} MiB" if first != size else megabytes(size)
    return in_dialect(
        case,
        {
            "transformers": other_settings.TRAINER_BUCKET_CAP_MB.to(ddp),
            "ddp": torch_settings.BUCKET_CAP_MB.to(ddp),
            "deepspeed": deepspeed_settings.REDUCE_BUCKET_SIZE.to(str(size // DEEPSPEED_ELEMENT)),
            "megatron": megatron_settings.BUCKET_SIZE.to(str(size // MEGATRON_ELEMENT)),
            "horovod": other_settings.FUSION_THRESHOLD.to(str(size)),
        },
    )


def messages(case: Case) -> tuple[str | None, int, int]:
    """The gradient collectives that larger buckets change: operation, count, mean size."""
    sized = [one for one in case.report["collectives"] if one["op"] in GRADIENTS and one["count"] and one["bytes"]]
    if not sized:
        return None, 0, 0
    most = max(sized, key=lambda one: one["count"])
    return most["op"], most["count"], round((most["bytes"] or 0) / most["count"])


RULE = Rule("buckets", (GradientBuckets,), propose, place=40)
