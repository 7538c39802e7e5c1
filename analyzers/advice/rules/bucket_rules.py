"""Gradient buckets: how many bytes one all-reduce (or reduce-scatter) carries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, in_dialect, megabytes, of_anyone
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.what_if_changes import SENT_EARLY, BucketSize, Change, Overlap, Refused
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.frameworks import WRAPPERS
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Debug settings that cost time in every step.


@dataclass(frozen=True)
class NoDebugChecks(Suggestion):
    """torch's checks of every collective switched off."""

    code = "no_debug_checks"
    answers: ClassVar[tuple[str, ...]] = ("debug_checks",)
    sets = "`TORCH_DISTRIBUTED_DEBUG` unset, where the trace shows the checks of `DETAIL`"
    action = "Unset TORCH_DISTRIBUTED_DEBUG"
    why = "{message}"
    why_not = "what the ranks wait for in the checks, they may wait for in the collectives themselves"
    risk = "a mismatch of collectives then hangs, where the checks would name it"
    verify = "record again: no sends, receives and gathers inside c10d:: calls of collectives"


@dataclass(frozen=True)
class NoRecordedDebug(NoDebugChecks):
    """The same where the environment alone tells of it: what the checks cost is then not known."""

    answers = ("latency", "straggler", "exposed_communication", "sync", "host_other")
    why = "{cost}; the recorded environment has TORCH_DISTRIBUTED_DEBUG=DETAIL, which checks every collective first"
    why_not = "the recording does not show the checks"
    bounded = False


def debug_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The variable taken away: where its checks were recorded, or the environment says that it is set."""
    setting = torch_settings.DISTRIBUTED_DEBUG.to("OFF")
    if finding["code"] == "debug_checks":
        yield Proposal(finding, NoDebugChecks(), setting)
    elif case.variables.get(setting["name"], "").upper() == "DETAIL" and case.finding("debug_checks") is None:
        yield Proposal(finding, NoRecordedDebug(), setting)


DEBUG_RULE = Rule("debug_settings", (NoDebugChecks, NoRecordedDebug), debug_rules_propose, place=40)


MIB = 1 << 20
DEFAULT, DEFAULT_FIRST = 25 * MIB, 1 * MIB
"""DDP's own sizes where none is given (torch.nn.parallel.distributed, kDefaultFirstBucketBytes)."""
SIZES = tuple(size * MIB for size in (50, 100, 200, 10, 5))
"""Tried besides the default: larger against the fixed cost per message, smaller against a long last bucket."""
SMALL = (2 * MIB, MIB)
"""The same of small models. None below 1 MiB: torch.compile of a DDP model refuses a `bucket_cap_mb` below that of its
first bucket."""
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
        return f"{what} in the recording, of {units.size(self.mean_bytes)} each on average"


@dataclass(frozen=True)
class BucketsOfAnyone(GradientBuckets):
    """The same where no framework left a mark: whoever reduces the gradients."""

    action = "Gather gradients in buckets of {mib} MiB ({dialects})"

    dialects: str
    """The setting in the words of each framework that could have made the messages."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The default, larger and smaller buckets, as far as the framework has a name for them."""
    if _in_one_bucket(case) or _smaller_than_buckets(case):
        return
    now = messages(case)
    if not WRAPPERS & set(case.frameworks):
        yield from _of_anyone(case, finding)
        return
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


def _of_anyone(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    now = messages(case)
    for size in (DEFAULT, *SIZES, *SMALL):
        change = BucketSize(size, size)
        if isinstance(case.estimate((change,)), Refused):
            return
        names = _dialects(size, megabytes(size))
        if now[0] == "reduce_scatter":  # these reduce all of them on every rank
            names = {name: own for name, own in names.items() if name not in ("ddp", "horovod")}
        setting = of_anyone(case, "gradient buckets", names, f"a flat tensor for {megabytes(size)} MiB of gradients")
        if setting is not None:
            yield Proposal(finding, BucketsOfAnyone(size, size, *now, setting["value"]), setting, (change,))


DEFAULT_BUCKETS = 2
"""A small first bucket and one of all the rest: of these other sizes could hardly gather more."""


def _in_one_bucket(case: Case) -> bool:
    """Whether there may be nothing to gather: sizes are not known, and a step reduces no more often than that."""
    if not isinstance(case.estimate((BucketSize(SIZES[0], SIZES[0]),)), Refused):
        return False
    steps = len({step["step"] for step in case.report["steps"] if step["step"] is not None})
    count = sum(row["count"] for row in case.report["collectives"] if row["op"] in GRADIENTS)
    return 0 < count <= DEFAULT_BUCKETS * steps


def _smaller_than_buckets(case: Case) -> bool:
    """Whether no message fills the first bucket that the recorder saw in effect: then each backward pass already sends
    all its gradients in one."""
    caps = case.settings.get("ddp.bucket_cap_mb", [])
    sizes = [
        row["bytes"] / row["count"]
        for row in case.report["collectives"]
        if row["op"] in GRADIENTS and row["count"] and row["bytes"]
    ]
    first = [DEFAULT_FIRST if cap == "default" else float(cap.split(",")[0]) * MIB for cap in caps]
    return bool(first and sizes) and max(sizes) < min(first)


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
    return in_dialect(case, _dialects(size, ddp))


def _dialects(size: int, ddp: str) -> dict[str, Setting]:
    return {
        "transformers": other_settings.TRAINER_BUCKET_CAP_MB.to(ddp),
        "ddp": torch_settings.BUCKET_CAP_MB.to(ddp),
        "deepspeed": other_settings.REDUCE_BUCKET_SIZE.to(str(size // DEEPSPEED_ELEMENT)),
        "megatron": other_settings.BUCKET_SIZE.to(str(size // MEGATRON_ELEMENT)),
        "horovod": other_settings.FUSION_THRESHOLD.to(str(size)),
    }


def messages(case: Case) -> tuple[str | None, int, int]:
    """The gradient collectives that larger buckets change: operation, count, mean size."""
    sized = [one for one in case.report["collectives"] if one["op"] in GRADIENTS and one["count"] and one["bytes"]]
    if not sized:
        return None, 0, 0
    most = max(sized, key=lambda one: one["count"])
    return most["op"], most["count"], round((most["bytes"] or 0) / most["count"])


BUCKET_RULE = Rule("buckets", (GradientBuckets, BucketsOfAnyone), propose, programs=("pytorch", "native"), place=40)


# Gradient communication beside the backward pass instead of after it.
#
# DDP and FSDP2 overlap unasked; DeepSpeed and Megatron do it on request; a program that reduces its gradients itself,
# once the backward pass is over, gets it by DDP. Whether gradients are sent late a rank's own timeline settles: the
# replay refuses where they go out during the backward pass already.

NAMES = {
    "deepspeed": other_settings.OVERLAP_COMM.to("true"),
    "megatron": other_settings.OVERLAP_GRAD_REDUCE.to(""),
}
BY_DDP = torch_settings.DDP.to("around the model, in place of the loop that reduces its gradients")


@dataclass(frozen=True)
class Overlapped(Suggestion):
    """Gradients reduced during the backward pass, by the framework's option."""

    code = "overlap"
    answers: ClassVar[tuple[str, ...]] = ("latency", "bandwidth", UNDIVIDED)
    sets = """DeepSpeed `overlap_comm`, Megatron `--overlap-grad-reduce`; `DistributedDataParallel` where the program \
reduces gradients itself behind the backward pass; DDP and FSDP2 overlap unasked"""
    action = "Reduce gradients while the backward pass still computes"
    why = "{cost}; the gradients of the last layers are ready long before those of the first"
    risk = "it needs further buffers of the bucket's size; communication takes SMs from compute"
    verify = "record again: overlap_frac of the ranks rises"


@dataclass(frozen=True)
class OverlappedByDdp(Overlapped):
    """The same for a program that reduces its gradients itself."""

    risk = (
        "DDP averages gradients: leave out a division of your own; it keeps as much memory again for its buckets; "
        "communication takes SMs from compute"
    )


def overlap_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Overlap, by the name of the framework that asks for it."""
    setting = in_dialect(case, NAMES)
    if setting is not None:
        yield Proposal(finding, Overlapped(), setting, (Overlap(on=True),))
    elif changes := _by_hand(case):
        yield Proposal(finding, OverlappedByDdp(), BY_DDP, changes)


def _by_hand(case: Case) -> tuple[Change, ...]:
    """What DDP would change of a program that reduces its gradients without a framework, after its backward pass: when
    they are sent, and in buckets where they are small, as far as the replay knows; empty of another program."""
    if case.program != "pytorch" or WRAPPERS & set(case.frameworks):
        return ()
    buckets, beside = BucketSize(DEFAULT, DEFAULT_FIRST), Overlap(on=True)
    late = case.predict((beside,))
    if isinstance(late, Refused) and late.code == SENT_EARLY:
        return ()
    small = messages(case)[2] < DEFAULT_FIRST
    for changes in ((buckets, beside), (buckets,), (beside,)) if small else ((beside,),):
        if not isinstance(case.predict(changes), Refused):
            return changes
    return ()


OVERLAP_RULE = Rule("overlap", (Overlapped, OverlappedByDdp), overlap_rules_propose, place=190)


# A loop that reduces each gradient by itself: DDP in its place, or one message.

WHOLE = 1 << 50
"""Bytes of a bucket that holds all gradients."""


@dataclass(frozen=True)
class BucketsOfDdp(OverlappedByDdp):
    """DDP in place of the loop: in buckets, beside the backward pass."""

    answers = ("separate_reductions",)
    why = "{message}; DDP sends them in buckets of 25 MiB while the backward pass still computes"
    verify = "record again: a few all-reduces per step within the backward pass; overlap_frac of the ranks rises"


@dataclass(frozen=True)
class OneReduction(Suggestion):
    """All gradients in one message."""

    code = "one_reduction"
    answers = ("separate_reductions",)
    sets = "one all-reduce of all gradients in one flat tensor, where a loop reduces each by itself"
    action = "Reduce all gradients in one message instead of one each"
    why = "{message}; every message has a fixed cost, which one large message pays once"
    risk = (
        "the flat tensor needs as much memory as the gradients, and parameters without a gradient must be left out on "
        "all ranks alike; a tensor for each element type; nothing of it is hidden behind the backward pass"
    )
    verify = "record again: one all-reduce behind the backward pass"


def separate_reduction_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """DDP first, which hides messages as well; what it gains beside the backward pass alone, where buckets are not
    known."""
    del case
    for changes in ((Overlap(on=True), BucketSize(DEFAULT, DEFAULT_FIRST)), (Overlap(on=True),)):
        yield Proposal(finding, BucketsOfDdp(), BY_DDP, changes)
    value = (
        "flat = torch.nn.utils.parameters_to_vector(grads); all_reduce(flat); "
        "torch.nn.utils.vector_to_parameters(flat, grads)"
    )
    yield Proposal(finding, OneReduction(), torch_settings.ALL_REDUCE.to(value), (BucketSize(WHOLE),))


SEPARATE_REDUCTION_RULE = Rule(
    "separate_reductions", (BucketsOfDdp, OneReduction), separate_reduction_rules_propose, place=45
)


RULES = (BUCKET_RULE, DEBUG_RULE, OVERLAP_RULE, SEPARATE_REDUCTION_RULE)
