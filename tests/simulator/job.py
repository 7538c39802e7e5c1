"""A training job in a page of numbers. A change of the job is `dataclasses.replace` of some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from zlib import crc32

from simulator.device import Hardware, Link

MIB = 1 << 20
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Job:
    """Times are ns, sizes bytes. Where a field maps ranks to factors, ranks that are not in it have 1."""

    name: str = "job"
    seed: int = 1
    ranks: int = 2
    steps: int = 7
    parallel: str = "ddp"
    """`single` (no communication), `ddp`, `fsdp`, `tensor` (two ranks a group) with data parallelism, `pipeline`."""

    # The model: each layer has matrix products, each with a weight, then elementwise kernels.
    layers: int = 6
    gemms: int = 4
    smalls: int = 4
    gemm_ns: int = 200_000
    small_ns: int = 20_000
    layer_bytes: int = 32 * MIB
    """Gradients (and parameters) of a layer."""
    small_op: str = "gelu"
    """Operator of the elementwise kernels."""
    batched: bool = False
    """The products are batched ones, as those of attention heads are."""
    first_bytes: int = 0
    """Parameters of the first layer, where it has others (an embedding; fsdp)."""
    optimizer_kernels: int = 8
    optimizer_ns: int = 40_000
    kernel_jitter: float = 0.005

    mark: str = ""
    """A range around each step by which a framework is known (`DeepSpeedEngine.train_batch`)."""

    # The host.
    op_ns: int = 10_000
    """What an operator costs beside its launch call."""
    call_ns: int = 3_500
    latency_ns: int = 5_000
    host_jitter: float = 0.06
    host_slow: Mapping[int, float] = field(default_factory=dict)

    # Communication.
    alpha_ns: int = 15_000
    rate: float = 150.0
    """Bytes per ns of bus bandwidth."""
    bucket_bytes: int = 25 * MIB
    first_bucket: int = 0
    """Bytes of the first bucket, where it has others (ddp)."""
    wire: float = 1.0
    """Bytes of gradients sent, of those there are."""
    overlap: bool = True
    """Buckets are sent beside the backward pass, else behind it."""
    accumulate: int = 1
    """Forward and backward passes of a step (ddp, fsdp)…"""
    no_sync: bool = False
    """… of which only the last one reduces gradients."""
    wrapped: bool = True
    """Gradients are reduced by DDP; else by a loop of the program's own…"""
    each_waited: bool = False
    """… over its parameters from the first on, which waits for each and divides it by the number of ranks."""
    bias_bytes: int = 0
    """Gradient of a bias beside each product's weight (ddp)."""
    gradient_copies: bool = False
    """Reduced gradients are copied out of their buckets (ddp)."""
    search_ns: int = 0
    """What DDP's search for unused parameters takes before each backward pass."""
    prefetch: int = 1
    """Modules whose parameters are gathered ahead (fsdp)."""
    fsdp1: bool = False
    """FullyShardedDataParallel's ranges, in place of `fully_shard`'s (fsdp)…"""
    limited: bool = False
    """… whose host waits before it gathers a third module."""
    keep_parameters: bool = False
    """They stay gathered from the forward to the backward pass (fsdp)."""
    scatter_apart: bool = False
    """Gradients are scattered on a stream of their own, so that parameters are gathered meanwhile (fsdp)."""
    one_stream: bool = False
    """Collectives run on the stream that computes."""
    tensor_bytes: int = 16 * MIB
    one_link: bool = False
    """Tensor and data parallelism share a link, else each has its own."""
    crowd_cost: float = 1.0
    """What each further transfer at once on a link costs, by the time that one takes alone: 1 is a fair share."""
    micro_batches: int = 4
    one_by_one: bool = False
    """1F1B, else GPipe (pipeline)."""
    ahead: bool = False
    """A receive is posted before the kernels before it, so that it runs beside them (pipeline)."""
    pipeline_ranges: bool = True
    """torch.distributed.pipelining's ranges around each computation."""
    stage_slow: Mapping[int, float] = field(default_factory=dict)
    activation_bytes: int = 16 * MIB
    compute_slow: float = 1.0
    transfer_slow: float = 1.0
    queue: int = 1_024

    # What is different about ranks.
    device_slow: Mapping[int, float] = field(default_factory=dict)
    """Kernels of these take longer at equal shapes."""
    data_scale: Mapping[int, float] = field(default_factory=dict)
    """Batches of these are longer."""
    rotating: float = 1.0
    """In step k the batch of rank k mod ranks is this much longer."""

    # What stalls.
    loader_ns: int = 0
    """What a batch costs to load; 0: no loader."""
    loader_ranks: tuple[int, ...] | None = None
    """Those whose loader is slow; that of the others takes a hundredth of it."""
    workers: int = 4
    """Loader processes; 0 loads on the training thread."""
    workers_apart: bool = False
    """They deliver one after the other when the recording begins, else all at once."""
    copy_bytes: int = 0
    copies: int = 1
    link: float = 1.0
    """Share of its usual rate at which the link carries copies from pinned memory."""
    copy: str = "pinned"
    """`pageable` and `pinned_sync` block; `pinned` does not; `beside` runs on a stream of its own as well."""
    items: int = 0
    """`.item()` calls in a forward pass…"""
    item_own_ns: int = 2_000
    """… and what the host does with the number before it goes on."""
    read_late: bool = False
    """The numbers are read, and that is done, behind the step's last launch."""
    device_syncs: int = 0
    """torch.cuda.synchronize() calls in a backward pass."""
    blocking: bool = True
    """Else none of these waits: the same calls, copies and host work without the synchronisation."""
    gc_ns: int = 0
    gc_ranks: tuple[int, ...] | None = None
    host_work_ns: int = 0
    """On the training thread in every step…"""
    host_work: str = "save_checkpoint"
    """… within a range of this name; `Optimizer.step#…` names the optimizer's own."""
    host_work_ranks: tuple[int, ...] | None = None
    host_work_every: int = 1
    """In step k where it divides k."""
    allocations: int = 0
    allocation_ns: int = 150_000
    empty_cache: int = 0
    """Segments that torch.cuda.empty_cache() gives back at the end of each step, and that the next one asks for."""
    graphs: bool = False
    """Kernels between communication and blocking calls are launched as CUDA graphs."""

    # Steps that are not like the others.
    warmup_factor: float = 1.0
    """What operators cost the host in step 0."""
    compile_ns: int = 0
    """In step 0, within a range of this name."""
    first_use_ns: int = 0
    """What loading a kernel's module costs at its first launch."""
    outlier_step: int = -1
    outlier_ns: int = 0
    outlier_work: str = "save_checkpoint"
    outlier_ranks: tuple[int, ...] | None = None

    def bytes_of(self, layer: int) -> int:
        """Parameters of a layer."""
        return self.first_bytes if layer == 0 and self.first_bytes else self.layer_bytes

    def hardware(self) -> Hardware:
        link = Link(self.alpha_ns, self.rate)
        # Tensor-parallel groups are inside a node: what others do does not slow them.
        apart = self.parallel == "tensor" and not self.one_link
        links = {f"tp{n}": link for n in range(self.ranks // 2)} if apart else {}
        return Hardware(
            link,
            links,
            self.queue,
            compute_slow=self.compute_slow,
            transfer_slow=self.transfer_slow,
            crowd_cost=self.crowd_cost,
        )

    def noise(self, sigma: float, *key: object) -> float:
        """A factor about 1 that depends on the key alone, so that a change leaves all other numbers alone."""
        uniform = (crc32(":".join(map(str, (self.seed, *key))).encode()) + 0.5) / 2**32
        return max(0.5, 1 + sigma * _NORMAL.inv_cdf(uniform))

    def scale(self, rank: int, step: int) -> float:
        """How much longer than usual a rank's batch is."""
        turn = self.rotating if self.rotating != 1.0 and step % self.ranks == rank else 1.0
        return self.data_scale.get(rank, 1.0) * turn

    @property
    def message_bytes(self) -> int:
        """What a stage sends of one micro-batch."""
        return self.activation_bytes // self.micro_batches

    @property
    def group(self) -> tuple[int, ...]:
        return tuple(range(self.ranks))
