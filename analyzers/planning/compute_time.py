"""The time of a layer's compute: each matrix product by its shape, and what passes through memory between them.

A product of m × k by k × n takes 2·m·n·k FLOPs at what large products reach of the peak on that GPU
(`device_peaks.reached_frac`), and the passage of both operands and the result through memory. So thin matrices are
slow: of DeepGEMM's table of FP8 products on H800 (its README of February 2025) this gives every row within a quarter.
Where a run is measured, one share of the peak stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.plan_memory import COMPILED, EAGER, GRAPHS, RING, SELECTIVE, Layout, Rates
from gpuscope.analyzers.planning.transformer import ATTENTION_BACKWARD, Model

BANDWIDTH_REACHED = 0.8
"""Of a memory's bandwidth: 2,668 of 3,352 GB/s in the thinnest of DeepGEMM's products."""
SUSTAINED = 0.87
"""Of what the best products reach alone, in training: clocks fall under load, other kernels share memory. Fitted."""
PASSES = 1.5
"""Times that the bytes between products pass through memory as counted in `_between`, with kernels fused. Fitted."""
MERGED = 10
"""Bytes of an output of attention that are read and written for each further part of the ring: itself in bf16, and the
sum so far in fp32; backward as many for queries."""
FUSED_PASSES = 1.0
"""The same where bias, activation, dropout and sum are one kernel each, as in Megatron-LM."""
EAGER_PASSES = 2 * PASSES
"""The same where each operator is a kernel of its own, PyTorch without compilation: what is between two is written and
read once more."""
COPIES = 9
"""Times that a token's copies are read or written on their way to experts and back, forward: sorted, padded, sent,
received, weighted, summed. Fitted."""
FLASH_2 = 0.33e15
"""FLOP/s at most in FlashAttention-2, which has no kernels for Hopper: 35 % of an H100's peak forward
(arXiv:2407.08608), where an A100 reaches the usual share."""
HOST_SECONDS = 8.5e-3
"""That a host takes to launch the forward and backward kernels of a layer of experts one by one. Fitted to Qwen3 on
B200 with micro-batches of one sequence; the recipes of NVL72 racks launch CUDA graphs."""
HANDED_OVER = 2
"""Layers of experts that take a host as long as what it does besides for a model chunk and a micro-batch: receiving,
sending, the schedule. Fitted to Qwen3 on B300 in four chunks; one, two and twelve chunks then follow within 15 %."""
CAUSAL = 0.5
"""Of attention's multiplications: those above the diagonal are skipped."""
LAUNCHES = 30
"""Kernels of a dense layer's forward pass in eager PyTorch, messages of tensor parallelism aside: two norms, four
products with their biases, attention, the activation function, two sums with dropout, copies. Backward has twice as
many, as each product has two gradients."""
KERNEL_SECONDS = 3e-6
"""That a kernel takes on the device however little it does: start, one wave, end. Counted where there are many small
ones: operators that nothing fuses, and below bf16, where operands are scaled, cast and transposed before a product."""
HOST_PER_LAUNCH = {EAGER: 28e-6, COMPILED: 8e-6, GRAPHS: 0.0}
"""Seconds of a host for a launch and the Python around it. Eager: fitted to two thirds of the layouts that vTrain
measured on one A100 host (arXiv:2312.12391; `benchmarks.planner --measured` names the third that was kept back).
Compiled: fewer and cheaper launches, as much less as Inductor's generated wrapper takes per kernel (3 to 10 µs). A
graph's nodes cost the host nothing."""
WHOLE_ROWS = 20.0
"""Bytes per element of a token's width between products: two norms, two sums, dropout."""
SCORE_PASSES = 4
"""Times that the matrix of attention's scores passes through memory forward where it is stored: written by the first
product, read and written by masking and softmax in one kernel, read by the second product. Backward twice as many."""
SELECTIVE_COST = 0.02
"""Of the compute, for norms and activation functions computed again: Korthikanti et al., arXiv:2205.05198, table 4,
has 1.6 to 7 % for its selective recomputation, which also repeats attention."""
_ELEMENT = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Bytes of an operand."""


@dataclass(frozen=True)
class Speed:
    """Of a GPU: FLOP/s in large products of the plan's precision and of bf16 and in attention, bytes/s of memory.
    `element`: bytes of an operand; 0 where one measured share of the peak contains what passes through memory."""

    product: float
    plain: float
    attention: float
    memory: float
    element: float
    passes: float
    """Times that what is between products passes through memory."""
    launched: float
    """Seconds of a layer at least, mean over layers: launching the kernels of experts one by one."""
    stored_scores: bool = False
    """Whether attention stores its scores, all of them, in separate kernels."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer and a micro-batch, mean over all layers."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


def speed_of(cluster: Cluster, rates: Rates, precision: str) -> Speed:
    """As published, or as a run measured it."""
    bf16, peak = (cluster.clock * (cluster.peaks.get(kind) or cluster.peaks["bf16"]) for kind in ("bf16", precision))
    attention = bf16 * rates.attention_frac
    attention = (min(attention, cluster.clock * FLASH_2) if rates.flash_2 or rates.eager else attention) / rates.slower
    if rates.gemm_frac is not None:
        share = rates.gemm_frac / rates.slower
        return Speed(peak * share, bf16 * share, attention, float("inf"), 0.0, 0.0, 0.0)
    memory = BANDWIDTH_REACHED * cluster.memory_bandwidth / rates.slower
    product, plain = (
        SUSTAINED * cluster.reached[kind] * of / rates.slower for kind, of in ((precision, peak), ("bf16", bf16))
    )
    launched = HOST_SECONDS if cluster.launched_singly else 0.0
    passes = EAGER_PASSES if rates.eager else FUSED_PASSES if rates.early_megatron else PASSES
    return Speed(product, plain, attention, memory, _ELEMENT[precision], passes, launched, rates.early_megatron)


def host_time(model: Model, layout: Layout, rates: Rates) -> float:
    """Seconds that a host takes to launch a layer's kernels for a micro-batch, forward and backward, mean over layers.
    Layers of experts have their own figure (`HOST_SECONDS`), and a measured run contains its host."""
    if rates.gemm_frac is not None:
        return 0.0
    messages = (4 + 2 * layout.again) if layout.tensor > 1 else 0
    launches = LAUNCHES * (3 + layout.again) + messages
    return rates.slower * launches * HOST_PER_LAUNCH[rates.launched] * (1 - model.moe_layers / model.layers)


def layer_time(model: Model, layout: Layout, speed: Speed) -> LayerTime:
    """Compute of a layer and a micro-batch on a GPU."""
    tokens = layout.micro_batch * model.sequence / layout.context
    if layout.overlap and speed.element:  # CUDA graphs do not hold two micro-batches that take turns
        speed = replace(speed, launched=HOST_SECONDS)
    if speed.launched:
        # Where all-to-alls overlap, a forward and a backward pass are handed over in one.
        each = HANDED_OVER / 2 if layout.overlap else HANDED_OVER
        handed = each * layout.pipeline * layout.chunks if layout.pipeline > 1 else 0
        speed = replace(speed, launched=speed.launched * (model.moe_layers + handed) / model.layers)
    found = _layer(model, speed, tokens, layout.tensor, layout.expert, layout.recompute, layout.again)
    if layout.context == 1 or layout.exchange != RING or not speed.element:
        return found
    merged = MERGED * (layout.context - 1) * tokens / layout.tensor * model.heads / speed.memory
    forward = found.forward + merged * model.value
    return LayerTime(forward, found.backward + merged * (model.query + layout.again * model.value))


def head_time(model: Model, layout: Layout, speed: Speed) -> float:
    """The output layer, forward and backward. It stays in bf16 where the rest is in FP8, as in DeepSeek-V3 (section
    3.3.1); the loss reads and writes the logits in fp32 four times."""
    tokens = layout.micro_batch * model.sequence / layout.context
    plain = Speed(
        speed.plain, speed.plain, speed.attention, speed.memory, 2.0 if speed.element else 0.0, speed.passes, 0.0
    )
    own = _product(plain, tokens, model.vocabulary / layout.tensor, model.width)
    return sum(own) + 4 * 4 * tokens * model.vocabulary / layout.tensor / speed.memory


def update_time(weights: float, cluster: Cluster, rates: Rates) -> float:
    """Adam of so many weights: gradient, master weight, momentum and variance read, three written, and the weight."""
    return 0.0 if rates.gemm_frac is not None else 30 * weights / (BANDWIDTH_REACHED * cluster.memory_bandwidth)


@lru_cache(1 << 16)
def _layer(
    model: Model, speed: Speed, tokens: float, tensor: int, expert: int, recompute: str, again: float
) -> LayerTime:
    forward = backward = 0.0
    for m, n, k, count in products(model, tokens, tensor, expert):
        there, back = _product(speed, m, n, k)
        forward, backward = forward + count * there, backward + count * back
    attention = CAUSAL * tokens * model.attention_flops / tensor / speed.attention
    if speed.stored_scores:
        scores = 2.0 * tokens * model.sequence * model.heads / tensor
        attention = attention / CAUSAL + SCORE_PASSES * scores / speed.memory
    between = speed.passes * tokens / tensor * _between(model, speed.element) / speed.memory
    if speed.stored_scores:
        # Without sequence parallelism every tensor-parallel rank has norms, sums and dropout of all tokens.
        between += speed.passes * tokens * (1 - 1 / tensor) * WHOLE_ROWS * model.width / speed.memory
    if speed.stored_scores or 0 < speed.element < 2:
        between += KERNEL_SECONDS * LAUNCHES * (1 - model.moe_layers / model.layers)
    forward += attention + between
    backward += (2.0 if speed.stored_scores else ATTENTION_BACKWARD) * attention + 2 * between
    backward += again * forward
    if recompute == SELECTIVE:
        backward += SELECTIVE_COST * (forward + backward) + _latent(model, speed, tokens, tensor)
    if speed.launched and model.moe_layers:
        short = speed.launched / (forward + backward)
        forward, backward = forward * max(short, 1.0), backward * max(short, 1.0)
    return LayerTime(forward, backward)


def _latent(model: Model, speed: Speed, tokens: float, tensor: int) -> float:
    """Queries, keys and values made again from their compressed forms (DeepSeek-V3, section 3.2.3)."""
    if not model.kv_rank:
        return 0.0
    queries = _product(speed, tokens, model.heads * model.query / tensor, model.q_rank)[0] if model.q_rank else 0.0
    return queries + _product(speed, tokens, model.heads * (model.head + model.value) / tensor, model.kv_rank)[0]


def _product(speed: Speed, m: float, n: float, k: float) -> tuple[float, float]:
    """Seconds forward, and backward: the gradient of the input, and that of the weight, added to one in fp32."""
    compute = 2 * m * n * k / speed.product
    if not speed.element:
        return compute, 2 * compute
    there, back = m * k + k * n, 2 * m * n + k * n + m * k
    moved = speed.element * there + 2 * m * n, speed.element * back + 2 * m * k + 8 * n * k
    return compute + moved[0] / speed.memory, 2 * compute + moved[1] / speed.memory


def products(model: Model, tokens: float, tensor: int, expert: int) -> Iterator[tuple[float, float, float, float]]:
    """Rows, columns and depth of each product of a layer, and how many, mean over layers. Experts are whole and get a
    tensor-parallel rank's part of the tokens."""
    width, sparse = model.width, model.moe_layers / model.layers
    up = 2 if model.gated else 1
    if model.kv_rank:
        if model.q_rank:
            yield tokens / tensor, model.q_rank, width, 1
            yield tokens, model.heads * model.query / tensor, model.q_rank, 1
        else:
            yield tokens, model.heads * model.query / tensor, width, 1
        yield tokens / tensor, model.kv_rank + model.rope_width, width, 1
        yield tokens, model.heads * (model.head + model.value) / tensor, model.kv_rank, 1
    else:
        yield tokens, (model.heads * model.query + model.kv) / tensor, width, 1
    yield tokens, width, model.heads * model.value / tensor, 1
    if sparse < 1:
        yield tokens, up * model.ffn / tensor, width, 1 - sparse
        yield tokens, width, model.ffn / tensor, 1 - sparse
    if sparse:
        if model.shared_experts:
            yield tokens, up * model.shared_experts * model.expert_width / tensor, width, sparse
            yield tokens, width, model.shared_experts * model.expert_width / tensor, sparse
        local = model.experts / expert
        rows = tokens / tensor * model.experts_per_token / local
        yield rows, up * model.expert_width, width, sparse * local
        yield rows, width, model.expert_width, sparse * local


def _between(model: Model, element: float) -> float:
    """Bytes of a token that pass through memory between a layer's products, forward: two norms, two sums, positions,
    the activation function; copies of tokens out to experts and back; operands made of bf16 where they are smaller."""
    sparse = model.moe_layers / model.layers
    between = (1 - sparse) * model.ffn + sparse * (model.experts_per_token + model.shared_experts) * model.expert_width
    found = (
        WHOLE_ROWS * model.width + 4 * (model.heads * model.query + model.kv / 2) + (6 if model.gated else 4) * between
    )
    found += sparse * COPIES * 2 * model.experts_per_token * model.width
    if element < 2:
        inputs = 2 * model.width + model.heads * model.value + between
        found += (2 + 2 * element) * inputs
    return found
