"""What can be changed in a replay: one small value per change, nothing of how it is replayed.

Rules, the dashboard's switches and `gpuscope advise` all name their changes with these, and the replay
alone says what they would bring. Sizes are bytes, factors are dimensionless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Literal, get_args

from gpuscope.schema.provenance import Provenance
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class BucketSize:
    """Gradient all-reduces (or reduce-scatters) regrouped into buckets of at most `size` bytes, the first of
    `first` bytes (DDP's default first bucket is smaller; any explicit size makes it the same)."""

    size: int
    first: int | None = None


@dataclass(frozen=True)
class AccumulatedGradients:
    """Gradients reduced in the last of a step's `micro_batches` alone (DDP's `no_sync`)."""

    micro_batches: int


@dataclass(frozen=True)
class Overlap:
    """Gradient communication beside the backward pass (`on`) or after it."""

    on: bool = True


@dataclass(frozen=True)
class Prefetch:
    """Parameter all-gathers issued `depth` modules ahead of their use (FSDP2)."""

    depth: int = 2


@dataclass(frozen=True)
class KeepParameters:
    """Parameters not resharded after forward (FSDP2 `reshard_after_forward=False`): no all-gather in backward."""


@dataclass(frozen=True)
class GroupModules:
    """`count` neighbouring modules' all-gathers and reduce-scatters joined into one (FSDP2 wrapping unit)."""

    count: int = 2


@dataclass(frozen=True)
class EarlyMessages:
    """Messages between pipeline stages received beside compute: each receive posted before the kernels before it."""


@dataclass(frozen=True)
class WireBytes:
    """Gradients sent with `factor` times their bytes: 0.5 for a bf16 or fp16 hook, less for PowerSGD."""

    factor: float


@dataclass(frozen=True)
class LinkSpeed:
    """A link of `bandwidth` times the speed and `latency` times the fixed cost."""

    bandwidth: float = 1.0
    latency: float = 1.0


BoundPart = Literal["no_fixed_cost", "half_bytes", "double_bandwidth", "hidden"]


@dataclass(frozen=True)
class AtBest:
    """What transfers could be at best: without their fixed cost, with half the bytes, at twice the bandwidth, or hidden
    behind compute as far as their links carry them in a step."""

    part: BoundPart


@dataclass(frozen=True)
class Algorithm:
    """Collectives by another NCCL algorithm or protocol, or over more channels; None keeps what is. `op` limits it
    to one operation (`all_reduce`…). `unasked`: by what NCCL's cost model chooses for each message by itself."""

    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    op: str | None = None
    unasked: bool = False


@dataclass(frozen=True)
class LineRate:
    """Transfers over links that carry what healthy ones do, by number of ranks in the group their line rate per GPU and
    direction in GB/s: what a fallback to a slower way (host memory, sockets) kept them from."""

    rates: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class MeasuredTransfers:
    """Collectives of `op` over `group_size` ranks at the times that something else measured: per size in bytes the
    factor on the transfer, at best and at worst. `published` names the source where that is no measurement of the run's
    own machine."""

    op: str
    group_size: int
    factors: tuple[tuple[int, float, float], ...]
    published: str = ""


@dataclass(frozen=True)
class LoaderWorkers:
    """The data loader with `workers` processes, `prefetch` batches ahead each. Where the rank has `cores`, more workers
    are predicted only for batches that are known to wait rather than compute."""

    workers: int
    prefetch: int = 2
    cores: int | None = None


@dataclass(frozen=True)
class MoreLoaderWorkers:
    """The data loader with `times` as many processes as it has, each with a core of its own: batches come so much
    faster."""

    times: float


@dataclass(frozen=True)
class PinnedCopies:
    """Host-to-device copies from pinned memory, asynchronous, beside compute."""


@dataclass(frozen=True)
class CopyStream:
    """Host-to-device copies on a stream of their own, so that they run beside kernels."""


@dataclass(frozen=True)
class RemovedSyncs:
    """Blocking calls within a step gone; `name` limits it to calls of that name (`aten::item`…), `sites` to these
    places of the program (`host_time/blocking_sites.py`). `needed`: the host still needs what they bring, and reads it
    behind the last launch of the step."""

    name: str | None = None
    sites: tuple[str, ...] = ()
    needed: bool = False


@dataclass(frozen=True)
class CapturedGraphs:
    """Kernels launched as CUDA graphs (or compiled): no host cost between them within a step."""


@dataclass(frozen=True)
class NoCollector:
    """Python's garbage collector no longer runs within a step."""


@dataclass(frozen=True)
class NoAllocatorStalls:
    """cudaMalloc, cudaFree and cache flushes within a step gone."""


@dataclass(frozen=True)
class NoHostWork:
    """Checkpoint, logging, file and network calls moved off the launching thread."""


@dataclass(frozen=True)
class ReplacedRank:
    """The compute and host time of `rank` made the median of its peers'."""

    rank: int


@dataclass(frozen=True)
class SharedWork:
    """What `rank` computes beyond the median of its peers shared evenly by all ranks (sequences, tokens); without a
    rank, what all compute in a step."""

    rank: int | None = None


@dataclass(frozen=True)
class MicroBatches:
    """The batch cut into `count` micro-batches of the same size (`keep_batch`: cut smaller instead)."""

    count: int
    keep_batch: bool = True


@dataclass(frozen=True)
class Schedule:
    """Another pipeline schedule: gpipe, 1f1b, interleaved_1f1b or zbv."""

    name: str


@dataclass(frozen=True)
class EvenStages:
    """The model split so that each pipeline stage takes as long as the mean stage."""


@dataclass(frozen=True)
class OtherLink:
    """What a ring of an operation costs over links other than those recorded: fixed cost, and GB/s of bus bandwidth at
    best, as expected and at worst."""

    op: str
    latency_ns: float
    gbps: tuple[float, float, float]


@dataclass(frozen=True)
class MoreRanks:
    """`factor` times the data-parallel ranks, each with the same batch, over links as recorded or over `links`."""

    factor: int
    links: tuple[OtherLink, ...] = ()


@dataclass(frozen=True)
class Precision:
    """Matrix products of 32 bits at another precision: `tf32`, `bf16` or `fp16` (the two by autocast)."""

    to: str


@dataclass(frozen=True)
class PaddedProducts:
    """Matrix products padded to sizes that tensor cores handle well."""


@dataclass(frozen=True)
class NearerRoof:
    """The calls of an operator that run below half of their roof brought nearer to it."""

    operator: str
    certain: bool
    """Whether what keeps it below is known to cost time, so that something is gained in the worst case too."""
    reaches: float | None = None
    """Share of the roof that what keeps it below leaves by itself; None where that is not known."""


@dataclass(frozen=True)
class FusedKernels:
    """Chains of memory-bound kernels made a few kernels (torch.compile)."""


@dataclass(frozen=True)
class ExpertLoads:
    """Experts with other numbers of tokens: by rank, begin and end (ns on its clock) what they compute takes `factor`
    times as long, in `windows` and in `transfers`; the latter are calls of collectives as recorded."""

    windows: tuple[tuple[int, int, int, float], ...]
    transfers: tuple[tuple[int, int, int, float], ...]
    what: str


@dataclass(frozen=True)
class NoLayoutConversion:
    """Convolutions on tensors in the layout they want (`channels_last`): nothing converted around them."""


@dataclass(frozen=True)
class FusedAttention:
    """Attention in one kernel instead of two products with a softmax between them."""


@dataclass(frozen=True)
class HopperAttention:
    """FlashAttention 2 replaced by a kernel made for Hopper (cuDNN's, FlashAttention 3)."""


@dataclass(frozen=True)
class FusedOptimizer:
    """The optimizer's passes over parameters and states as one kernel (`fused=True`)."""


@dataclass(frozen=True)
class GradientViews:
    """Gradients as views of DDP's buckets (`gradient_as_bucket_view=True`): nothing copied between the two."""


Change = (
    BucketSize
    | AccumulatedGradients
    | Overlap
    | Prefetch
    | KeepParameters
    | GroupModules
    | EarlyMessages
    | WireBytes
    | LinkSpeed
    | AtBest
    | Algorithm
    | LineRate
    | MeasuredTransfers
    | LoaderWorkers
    | MoreLoaderWorkers
    | PinnedCopies
    | CopyStream
    | RemovedSyncs
    | CapturedGraphs
    | NoCollector
    | NoAllocatorStalls
    | NoHostWork
    | ReplacedRank
    | SharedWork
    | MicroBatches
    | Schedule
    | EvenStages
    | MoreRanks
    | Precision
    | PaddedProducts
    | NearerRoof
    | FusedKernels
    | NoLayoutConversion
    | FusedAttention
    | HopperAttention
    | FusedOptimizer
    | GradientViews
    | ExpertLoads
)

PipelineChange = MicroBatches | Schedule | EvenStages
RegroupedCommunication = (
    BucketSize | AccumulatedGradients | Overlap | Prefetch | KeepParameters | GroupModules | EarlyMessages
)
"""Changes of when collectives are issued, or of how many there are: what of these is waiting matters."""


_ORDER = get_args(Change)


def of_pipeline_alone(changes: Sequence[Change]) -> tuple[PipelineChange, ...]:
    """The changes, if all are of the pipeline; nothing else of the run need be replayed for these."""
    found = tuple(change for change in changes if isinstance(change, PipelineChange))
    return found if len(found) == len(changes) else ()


def in_order(changes: Iterable[Change]) -> list[Change]:
    """Each once, in the order in which they are best made together: communication is regrouped by when the recording
    issued it, so before the host's times change."""
    return sorted(dict.fromkeys(changes), key=lambda change: _ORDER.index(type(change)))


@dataclass(frozen=True)
class Refused:
    """Why a change can't be predicted on this trace, and what to record so that it can."""

    why: str
    code: str = ""
    """Of a reason that rules ask for."""


NOT_GATHERED_AGAIN = "not_gathered_again"
"""`Refused.code` of keeping parameters that no backward pass gathers again."""
SENT_EARLY = "sent_early"
"""`Refused.code` of sending gradients earlier where that is done as soon as they are there."""
NO_GRADIENTS = "no_gradients"
"""`Refused.code` where it can't be told which collectives carry gradients."""
UNMATCHED = "unmatched_messages"
"""`Refused.code` of several changes to steps with messages whose other ends are not there."""


@dataclass(frozen=True)
class Predicted:
    """Step times in ns, mean over ranks and steps; `low` and `high` bound `after`."""

    before: int
    after: int
    low: int
    high: int
    basis: str
    """What the prediction rests on, in a sentence: replayed steps, the replay's own error, fitted or assumed costs."""
    provenance: Provenance = "inferred"
    """`assumed` where costs in it are a link's figures and not fitted to the trace."""
    saved: Mapping[str, int] = field(default_factory=dict)
    """ns by part of the step's breakdown that a replay of the whole timeline saves, mean over ranks; less than 0 where
    a part grows. Empty where the parts are not known."""
    unshown: bool = False
    """Whether the trace does not show what its gain hangs on (what of a transfer is fixed cost): then one end of its
    range is nearly as likely as the middle."""


def __dir__() -> list[str]:
    return sorted(n for n, found in globals().items() if isinstance(found, type) and found.__module__ == __name__)
