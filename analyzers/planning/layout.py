"""A way to spread a model over a cluster: the sizes of its parallelisms, and which layers a stage gets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpuscope.analyzers.pipelines.schedules import bubble_frac
from gpuscope.words import units

NO, SELECTIVE, FULL, SQRT = "none", "selective", "full", "sqrt"
"""What is recomputed in the backward pass: nothing; norms, experts' activation functions and what latent attention
expands; whole layers; or groups of √n of n layers, of which only the first one's input is kept (Chen et al.,
arXiv:1604.06174)."""
RECOMPUTED = (NO, SELECTIVE, FULL, SQRT)
"""In the order of what they cost."""
RING, ULYSSES = "ring", "ulysses"
"""How context parallelism exchanges: keys and values in a ring, or all-to-alls of heads."""
CPU, NVME = "cpu", "nvme"
"""Where the optimizer and its states are, if not on the GPU."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallelisms; `tensor` includes sequence parallelism. ZeRO 0 is plain data parallelism."""

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    zero: int = 0
    micro_batch: int = 1
    recompute: str = NO
    chunks: int = 1
    """Model chunks of a pipeline stage: more than one is the interleaved schedule."""
    exchange: str = RING
    """Of context parallelism."""
    shard: int = 0
    """Ranks over which ZeRO divides, fewer than all: hybrid sharding (HSDP); 0 for all."""
    secondary: int = 0
    """ZeRO++: weights and gradients sent in 8 and 4 bits, and so many ranks of a host that divide a second copy of the
    weights; 0 for none of it."""
    offload: str = NO
    repeated: float = 1.0
    """Share of a stage's layers that full recomputation repeats: the first so many of them."""
    gradients: int = 4
    """Bytes of a gradient, kept and sent: 2 for bf16."""
    overlap: bool = False
    """Whether one micro-batch's all-to-alls of experts run beside another's compute: in pairs of a forward and a
    backward pass, as DualPipe (DeepSeek-V3, section 3.2.1) and Megatron-Core's overlap of experts do."""

    @property
    def name(self) -> str:
        """`dp 8 (ZeRO-1) x tp 8 x pp 4 (2 chunks), micro-batch 1, full recomputation`."""
        zero = f"ZeRO-{self.zero}{'++' if self.secondary else ''}" if self.zero else ""
        zero += f" over {self.shard}" if zero and self.shards < self.replicas else ""
        others = (("tp", self.tensor), ("pp", self.pipeline), ("cp", self.context), ("ep", self.expert))
        notes = {"pp": f" ({self.chunks} chunks)" if self.chunks > 1 else "", "cp": f" ({self.exchange})"}
        sizes = "".join(f" x {kind} {size}{notes.get(kind, '')}" for kind, size in others if size > 1)
        tail = f", {self.recompute} recomputation" if self.recompute != NO else ""
        tail += f" of {units.whole_share(self.again)}" if 0 < self.again < 1 else ""
        tail += ", all-to-alls overlapped" if self.overlap else ""
        tail += ", gradients in bf16" if self.gradients == 2 else ""
        tail += f", optimizer on {'NVMe' if self.offload == NVME else 'the CPU'}" if self.offload != NO else ""
        return f"dp {self.data}{f' ({zero})' if zero else ''}{sizes}, micro-batch {self.micro_batch}{tail}"

    @property
    def again(self) -> float:
        """Forward passes of a layer besides the first, mean over layers."""
        return self.repeated if self.recompute == FULL else float(self.recompute == SQRT)

    @property
    def contradictory(self) -> bool:
        """Whether all-to-alls are to overlap although layers are computed again as wholes, which excludes each other
        (Megatron-LM, `TransformerConfig`)."""
        return self.overlap and self.recompute in (FULL, SQRT)

    @property
    def dual(self) -> bool:
        """Whether its pipeline is fed from both ends (DualPipe), so that a GPU has two stages: what overlaps
        all-to-alls in a pipeline with one chunk per stage."""
        return self.overlap and self.pipeline > 1 and self.chunks == 1

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights before ZeRO divides them."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO divides."""
        return self.shard or self.replicas

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts: those of a stage by the ranks that share the experts out. Experts
        are whole: they are shared over tensor-parallel ranks too (Megatron-Core's folding, arXiv:2504.14960)."""
        return max(self.replicas * self.tensor // self.expert, 1)

    @property
    def expert_shards(self) -> int:
        """Ranks over which ZeRO divides an expert's states."""
        return max(self.shards * self.tensor // self.expert, 1)

    @property
    def complexity(self) -> int:
        """Kinds of parallelism and of saving besides plain data parallelism."""
        sizes = sum(size > 1 for size in (self.tensor, self.pipeline, self.context, self.expert, self.chunks))
        savings = RECOMPUTED.index(self.recompute) + (self.offload != NO) + (self.secondary > 0) + self.overlap
        return sizes + self.zero + savings + (self.shards < self.replicas)

    @property
    def simplicity(self) -> tuple[int, int]:
        """The smaller, the simpler: kinds of parallelism, then ranks that are not data-parallel."""
        return self.complexity, self.tensor * self.pipeline * self.context


def micro_batches(layout: Layout, batch: int) -> int:
    """Micro-batches of a step per replica, for a global batch in sequences."""
    return batch // (layout.data * layout.micro_batch)


def bubble(layout: Layout, batch: int) -> float:
    """Share of a step that a pipeline stage idles: (p − 1) / (v·m + p − 1) with v chunks per stage. DualPipe's is
    (p/2 − 1)·(F&B + B − 3W) beside m·(F + B) of work (DeepSeek-V3, table 2), with B = 2F, W = F and F&B = F + B."""
    if layout.dual:
        return (layout.pipeline - 2) / (layout.pipeline - 2 + 3 * micro_batches(layout, batch))
    return bubble_frac(layout.pipeline, micro_batches(layout, batch), layout.chunks)


@dataclass(frozen=True)
class Stages:
    """How a pipeline's layers are split: those of each model chunk, in the order in which a micro-batch meets them."""

    chunks: tuple[int, ...]
    stages: tuple[int, ...]
    """Layers of each stage: stage s has chunks s, s + p, …"""

    @property
    def most(self) -> int:
        """Of the fullest stage."""
        return max(self.stages)

    @property
    def even(self) -> bool:
        """Whether all chunks are equal."""
        return len(set(self.chunks)) == 1


@cache
def split(layers: int, stages: int, chunks: int, head: float) -> Stages:
    """The split in which the slowest stage takes least, uneven where it must be, with the output layer counted as
    `head` layers on the last chunk: as Llama 3 (arXiv:2407.21783, section 3.3.2: one layer fewer on the first and the
    last stage) and DeepSeek-V3 do."""
    count = stages * chunks
    if count == 1:
        return Stages((layers,), (layers,))
    found = [_split(layers, stages, count, last) for last in range(-(-layers // count) + 1)]
    return min(found, key=lambda one: (max(*one.stages[:-1], one.stages[-1] + head), -one.chunks[-1]))


def _split(layers: int, stages: int, count: int, last: int) -> Stages:
    base, more = divmod(layers - last, count - 1)
    # The first stage has the embedding and most micro-batches in flight, so it gets a larger chunk last.
    sizes = (*(base + (index >= count - 1 - more) for index in range(count - 1)), last)
    return Stages(sizes, tuple(sum(sizes[stage::stages]) for stage in range(stages)))
