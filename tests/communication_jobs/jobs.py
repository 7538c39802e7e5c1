"""A job in a page of numbers, drawn by a seed, and what each of its ranks does in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

KIB, MIB = 1 << 10, 1 << 20
STRUCTURES = ("buckets", "behind", "sharded_optimizer", "sharded", "tensor", "experts")
COMPUTE, COMMUNICATION, SECOND = 13, 21, 25
"""Streams."""
BUS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
SMALL = 256 * KIB
"""Bytes on the bus up to which a message goes by the protocol for small ones."""


@dataclass(frozen=True)
class Job:
    """Times are ns, sizes bytes; `rate` is bytes per ns on the bus."""

    name: str = "job"
    seed: int = 0
    structure: str = "buckets"
    cause: str = "bandwidth"
    ranks: int = 2
    steps: int = 7
    layers: int = 8
    kernels: int = 4
    """Of a layer's forward pass; its backward pass has twice as many."""
    kernel_ns: int = 150_000
    noise: float = 0.01
    layer_bytes: int = 16 * MIB
    """Gradients of a layer."""
    element: int = 4
    message_bytes: int = 25 * MIB
    """Gradients are sent as soon as so many are there."""
    activation_bytes: int = 8 * MIB
    fixed_ns: int = 20_000
    rate: float = 100.0
    slowed: float = 1.0
    """Times that a kernel takes beside a transfer."""
    wire: float = 1.0
    ahead: int = 0
    """Layers whose parameters are gathered before they are needed (sharded)."""
    early: bool = False
    """Gradients that are sent behind the backward pass are sent within it."""
    reads_loss: bool = False
    marks: str = ""
    """A range around each step, with `{}` for its number."""
    naming: int = 0
    recorder: str = "kineto"
    hidden: bool = False
    """Nothing waits for communication."""

    def cost(self, op: str, nbytes: int, members: int) -> tuple[float, float]:
        """The fixed part of a transfer, and that of its bytes."""
        on_bus = nbytes * BUS[op](members)
        if on_bus < SMALL:
            return 0.6 * self.fixed_ns, on_bus / (0.5 * self.rate)
        return self.fixed_ns, on_bus / self.rate


@dataclass(frozen=True)
class Kernel:
    name: str
    ns: float
    stream: int = COMPUTE


@dataclass(frozen=True)
class Collective:
    """It begins behind what its rank's compute stream was given before it."""

    op: str
    nbytes: int
    element: int
    group: str
    members: tuple[int, ...]
    stream: int = COMMUNICATION
    gradients: bool = False


@dataclass(frozen=True)
class Await:
    """What follows on the compute stream waits for all given to this stream before, or but for the last few."""

    stream: int
    but: int = 0


@dataclass(frozen=True)
class ReadBack:
    """The host waits for the compute stream."""


@dataclass(frozen=True)
class Begin:
    """A step."""

    number: int


Instruction = Kernel | Collective | Await | ReadBack | Begin

_NAMES = (
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "triton_red_fused_add_mean_mul_{}", "triton_for_fused_{}"),
    (
        "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_tn_align8>",
        "void lm::glu_kernel<{}>(int)",
        "void lm::lion_update<float>(float*, float const*, int)",
    ),
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "void transformer_engine::normalization::rmsnorm_kernel<{}>(Params)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(long)",
    ),
)


def program(job: Job, rank: int) -> Iterator[Instruction]:
    """What one rank launches, in order."""
    rng = Random(f"{job.seed} {rank}")

    def kernels(count: int, kind: int = 0) -> Iterator[Kernel]:
        for number in range(count):
            name = _NAMES[job.naming][kind or number % 2].replace("{}", str(number))
            yield Kernel(name, job.kernel_ns * max(0.5, rng.gauss(1, job.noise)))

    everyone = tuple(range(job.ranks))
    pair = tuple(r for r in everyone if r // 2 == rank // 2)
    column = tuple(r for r in everyone if r % 2 == rank % 2)
    replicas = column if job.structure == "tensor" else everyone
    sharded = job.structure in ("sharded_optimizer", "sharded")
    reduce = "reduce_scatter" if sharded else "all_reduce"
    dp = f"dp{rank % 2}" if job.structure == "tensor" else "world"
    sent = round(job.layer_bytes * job.wire)

    def gradients(nbytes: int) -> Collective:
        return Collective(reduce, nbytes, max(1, round(job.element * job.wire)), dp, replicas, gradients=True)

    def parameters(nbytes: int) -> Collective:
        return Collective(
            "all_gather", nbytes, 2, dp, replicas, SECOND if job.structure == "sharded" else COMMUNICATION
        )

    def exchange() -> Iterator[Instruction]:
        if job.structure == "tensor":
            yield Collective("all_reduce", job.activation_bytes, 2, f"tp{rank // 2}", pair, SECOND)
            yield Await(SECOND)
        elif job.structure == "experts":
            yield Collective("all_to_all", job.activation_bytes, 2, "world_ep", everyone, SECOND)
            yield Await(SECOND)

    def gathered(layer: int) -> Iterator[Instruction]:
        """A layer's parameters, and those of the layers that are gathered ahead of their use."""
        last = min(layer + job.ahead, job.layers - 1)
        first = 0 if layer == 0 else layer + job.ahead
        for _ in range(first, last + 1):
            yield parameters(job.layer_bytes // 2)
        yield Await(SECOND, last - layer)

    def messages(total: int) -> list[int]:
        count = max(1, round(total / job.message_bytes))
        return [total * (place + 1) // count - total * place // count for place in range(count)]

    for step in range(job.steps):
        yield Begin(step)
        if job.structure == "sharded_optimizer":
            yield from (parameters(nbytes) for nbytes in messages(job.layer_bytes * job.layers // 2))
            yield Await(COMMUNICATION)
        for layer in range(job.layers):
            if job.structure == "sharded":
                yield from gathered(layer)
            yield from kernels(job.kernels // 2)
            yield from exchange()
            yield from kernels(job.kernels - job.kernels // 2)
        held = 0
        for layer in range(job.layers):
            if job.structure == "sharded":
                yield from gathered(layer)
            yield from kernels(job.kernels)
            yield from exchange()
            yield from kernels(job.kernels)
            held += sent
            least = sent if job.structure == "sharded" else job.message_bytes
            if (job.structure != "behind" or job.early) and (held >= least or layer == job.layers - 1):
                yield from (gradients(nbytes) for nbytes in messages(held))
                held = 0
        if held:
            yield from (gradients(nbytes) for nbytes in messages(held))
        yield Await(COMMUNICATION)
        yield from kernels(max(2, job.layers // 2), 2)
        if job.reads_loss:
            yield ReadBack()


def draw(seed: int) -> Job:
    """A job of a seed that communication bounds, by the number of its messages or by their bytes."""
    rng = Random(f"communication {seed}")
    structure = STRUCTURES[seed % len(STRUCTURES)]
    cause = ("latency", "bandwidth")[seed // len(STRUCTURES) % 2]

    def log(low: float, high: float) -> float:
        return float(low * (high / low) ** rng.random())

    ranks = 4 if structure == "tensor" else rng.choice((2, 4, 8))
    job = Job(
        f"{structure}_{cause}_{seed}",
        seed,
        structure,
        cause,
        ranks,
        rng.randint(6, 8),
        rng.randint(3, 8),
        rng.choice((2, 4)),
        round(log(40_000, 250_000)),
        log(0.002, 0.02),
        element=rng.choice((2, 4)),
        slowed=rng.choice((1.0, rng.uniform(1.05, 1.25))),
        reads_loss=rng.random() < 0.5,
        marks=rng.choice(("", "ProfilerStep#{}", "iteration {}")),
        naming=rng.randrange(len(_NAMES)),
        recorder=rng.choice(("kineto", "kineto", "nsys")),
    )
    compute = 3 * job.layers * job.kernels * job.kernel_ns
    if cause == "latency":
        job = replace(
            job,
            layer_bytes=round(log(MIB // 2, 4 * MIB)) // 1024 * 1024,
            rate=log(150, 350),
            fixed_ns=round(log(20_000, 80_000)),
        )
        each = rng.choice((4, 8, 16)) if structure not in ("sharded", "tensor", "experts") else 2
        activations = round(log(32 * KIB, 512 * KIB)) // 64 * 64
        job = replace(job, message_bytes=job.layer_bytes // each, activation_bytes=activations)
        spent = sum(sum(job.cost(o.op, o.nbytes, len(o.members))) for o in _collectives(job))
        kernels = 3 * job.layers * job.kernels
        return replace(job, kernel_ns=max(12_000, round(spent / kernels / rng.uniform(0.6, 1.5))))
    job = replace(job, layer_bytes=round(log(8 * MIB, 64 * MIB)) // 64 * 64, fixed_ns=round(log(8_000, 30_000)))
    message, activations = rng.choice((8, 25, 40)) * MIB, round(log(4 * MIB, 32 * MIB)) // 64 * 64
    job = replace(job, message_bytes=message, activation_bytes=activations)
    moved = sum(one.nbytes * BUS[one.op](len(one.members)) for one in _collectives(job))
    return replace(job, rate=moved / (rng.uniform(0.7, 1.8) * compute))


def _collectives(job: Job) -> list[Collective]:
    """Of a step of the first rank."""
    return [one for one in program(replace(job, steps=1), 0) if isinstance(one, Collective)]
