"""Changes to what the device computes: precision, fusion, layout, attention, optimizer.

What a kernel would take instead is not in a trace. It is bounded by what its work needs at the device's peak, and what
share of the peak such kernels reach is assumed, with a best, an expected and a worst case; the range says so.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from gpuscope.analyzers.device_time.kernel_facts import PRECISIONS
from gpuscope.analyzers.device_time.kernel_roofs import times_faster
from gpuscope.analyzers.device_time.operator_work import codes
from gpuscope.analyzers.replay.graph import CAUSES, Edge, Graph, Node, Trait, UnreplayableError, operation_number
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting
from gpuscope.analyzers.what_if_changes import (
    FusedAttention,
    FusedKernels,
    FusedOptimizer,
    GradientViews,
    HopperAttention,
    NearerRoof,
    NoLayoutConversion,
    PaddedProducts,
    Precision,
)
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.trace import kernel_categories
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.words import units

REACHED = {-1: 0.8, 0: 0.5, 1: 0.25}
"""Share of the tensor cores' peak that products reach which ran on other units before: large ones reach 60–80 % on
A100 and H100 (NVIDIA's cuBLAS figures), those of small models a quarter."""
REACHED_SINGLE = {-1: 0.6, 0: 0.85, 1: 0.95}
"""Share of the FP32 peak that products reach where their FLOPs are not known; cuBLAS' sgemm 80–90 % on A100."""
LEAST_NS = 4_000
"""What even a small kernel takes (launching its blocks, filling the pipeline, writing back): no precision, fusion or
layout shortens that."""
HALVED = {-1: 0.55, 0: 0.75, 1: 1.1}
"""What autocast makes of memory-bound kernels: half the bytes at best, and casts in between."""
PADDED = {-1: 0.8, 0: 0.5}
LEAST_PADDED = 0.1
"""Products of aligned sizes reach 50 to 80 % of their floor; where it turns out badly they get a tenth shorter."""
ROOF = {-1: 0.8, 0: 0.5}
"""Share of their roof that operators reach at best, and at most as expected, once what keeps them below it is mended:
large products and copies reach 60 to 90 %."""
BELOW = 0.5
"""Share of the roof from which nothing is promised."""
PER_KERNEL = 5
"""Memory-bound kernels of eager mode that Inductor makes one of, about: five to seven in a normalisation, six in
a rotary embedding, five in a masked softmax."""
FUSED = {-1: 0.5, 0: 1.0}
"""A fused kernel's time, by that of the longest kernels it replaces: it reads and writes what these do, or less."""
KEPT_LAUNCHES = {-1: 0.0, 0: 0.3, 1: 0.7}
"""Share of the host's time for launches of merged kernels that stays: guards and compiled code take some."""
CONVERTED = {-1: 0.0, 0: 0.15, 1: 0.5}
"""Share of the layout conversions that stay: of the batch, and of operators without a kernel for the layout."""
PRODUCTS_KEPT = {-1: 0.7, 0: 1.0, 1: 1.4}
"""Time of the two products of an attention within the fused kernel, by what they took: recomputation in its backward
pass costs some, tiles that stay on the chip save some."""
HOPPER = {-1: 1 / 2.0, 0: 1 / 1.5, 1: 0.95}
"""FlashAttention 3 runs 1.5 to 2 times as fast as FlashAttention 2 on H100 (arXiv:2407.08608); short sequences
gain less."""
OPTIMIZER_LAUNCHES = {-1: 0.2, 0: 0.4, 1: 0.8}
"""Share of the host's time for the optimizer's launches that stays: it still groups tensors by device and type."""
VIEW_LAUNCHES = {-1: 0.0, 0: 0.2, 1: 0.6}
"""Share of the host's time for a copy that stays: DDP still visits each gradient of a bucket."""
ONE_PASS = {-1: 0.3, 0: 0.4, 1: 0.75}
"""Adam's fused kernel makes 7 passes over tensors of the parameters' size (reads parameter, gradient and two moments,
writes all but the gradient); torch's foreach implementation about 20 (torch/optim/adam.py)."""


def precision(graph: Graph, change: Precision, setting: Setting) -> Rewritten:
    """Products of 32 bits at the peak of another precision, as far as such products reach it."""
    faster = _times_faster(change.to, setting)
    dur, floor = _columns(graph)
    now = graph.nodes["precision"]
    products, new, scaled = np.zeros(len(graph), np.bool_), dur.copy(), floor.copy()
    peaks: list[str] = []
    for name, times in faster.items():
        own = _kernels(graph) & (now == PRECISIONS.index(name))
        if not own.any():
            continue
        peaks.append(f"{times:.1f} times the {name.upper()} peak")
        # Of today's peak, as counted from shapes; else as such products usually do, then never better than now.
        reached = REACHED_SINGLE if name == kernel_categories.SINGLE else REACHED
        least = np.where(
            floor > 0, floor / REACHED[setting.bias], dur * max(reached[setting.bias] / REACHED[setting.bias], 1.0)
        )
        wanted = np.maximum(least / times, np.minimum(LEAST_NS, dur))
        new = np.where(own, np.minimum(dur, wanted), new)
        scaled = np.where(own, np.rint(floor / times), scaled)
        products |= own
    if not products.any():
        raise UnreplayableError(f"no product at a lower rate than {change.to} ran on the device")
    if change.to in ("bf16", "fp16"):
        fixed = np.minimum(LEAST_NS, dur)
        new = np.where(_memory_bound(graph), fixed + (dur - fixed) * HALVED[setting.bias], new)
    counted = int((products & (floor > 0)).sum())
    how = (
        f"{units.share(counted / int(products.sum()))} of the products have known FLOPs"
        if counted
        else "no FLOPs known"
    )
    graph = graph.with_nodes(
        precision=np.where(products, PRECISIONS.index(change.to), now), floor=scaled.astype(np.int64)
    )
    shown = "" if setting.gpu else f" on the typical GPU of the generation that kernels show ({setting.generation})"
    return _shortened(
        graph,
        new,
        f"products at {change.to}, {' and '.join(peaks)}{shown}, of which they reach "
        f"{units.whole_share(REACHED[0])} (assumed {units.whole_share(REACHED[1])}–"
        f"{units.whole_share(REACHED[-1])}); {how}",
    )


def _times_faster(to: str, setting: Setting) -> dict[str, float]:
    """By the precision that products have now, by how much the new one's peak exceeds that: of the model; where it is
    not recorded, of the generation for which kernels were compiled, whose models differ."""
    if not setting.gpu and not setting.generation:
        raise UnreplayableError(
            "the model of the device is not recorded, so how much faster it is at another precision is unknown"
        )
    peaks, found = peaks_of(setting.gpu), {}
    for now in ("fp32", "tf32"):
        if not setting.gpu and (times := times_faster(setting.generation, now, to)) is not None and now != to:
            found[now] = times[1 - setting.bias]
        elif peaks.get(to, 0.0) > peaks.get(now, np.inf):
            found[now] = peaks[to] / peaks[now]
    if not found:
        raise UnreplayableError(f"no peak at {to} is known for {setting.gpu or f'GPUs of {setting.generation}'!r}")
    return found


def fused_kernels(graph: Graph, change: FusedKernels, setting: Setting) -> Rewritten:
    """Of each chain one kernel in `PER_KERNEL` stays, the longest ones; the launches of the others go, in part."""
    del change
    chain = np.where(_kernels(graph), graph.nodes["chain"], -1)
    if not (chain >= 0).any():
        raise UnreplayableError("no memory-bound kernels follow each other")
    dur, floor = _columns(graph)
    new, gone = dur.copy(), np.zeros(len(graph), np.bool_)
    rows = np.flatnonzero(chain >= 0)
    keys = graph.nodes["rank"][rows] * (int(chain.max()) + 1) + chain[rows]
    order = rows[np.lexsort((-dur[rows], keys))]
    for own in np.split(order, np.flatnonzero(np.diff(np.sort(keys))) + 1):
        stay = ceil(len(own) / PER_KERNEL)
        kept, whole = own[:stay], float(dur[own].sum())
        expected = float(dur[kept].sum())
        spent = (expected + whole) / 2 if setting.bias > 0 else expected * FUSED[setting.bias]
        least = max(float(floor[kept].sum()), stay * LEAST_NS)
        spent = min(max(spent, least), whole)
        new[own] = 0
        new[kept] = spent / stay
        gone[own[stay:]] = True
    found = _without_launches(graph, gone, KEPT_LAUNCHES[setting.bias])
    chains = len(np.unique(keys))
    return _shortened(
        found,
        new,
        f"{units.plural(chains, 'chain')} of {len(rows):,} memory-bound kernels, of each one "
        f"kernel in {PER_KERNEL} left, as long as the longest (assumed)",
    )


def padded_products(graph: Graph, change: PaddedProducts, setting: Setting) -> Rewritten:
    """Products of odd sizes at the share of their floor that aligned ones reach."""
    del change
    dur, floor = _columns(graph)
    odd = _of(graph, Trait.ODD, "no product of an odd size whose floor is known ran", floor > 0)
    wanted = np.minimum(dur, floor / PADDED[setting.bias]) if setting.bias <= 0 else dur * (1 - LEAST_PADDED)
    wanted = np.maximum(wanted, LEAST_NS)
    return _shortened(
        graph,
        np.where(odd, np.minimum(dur, wanted), dur),
        f"{int(odd.sum()):,} products at {units.whole_share(PADDED[0])} of their FLOPs' or bytes' peak "
        f"(assumed: from {units.whole_share(LEAST_PADDED)} shorter to "
        f"{units.whole_share(PADDED[-1])})",
    )


def nearer_roof(graph: Graph, change: NearerRoof, setting: Setting) -> Rewritten:
    """The operator's kernels at a share of their floor; in the worst case as they are, or a tenth shorter."""
    dur, floor = _columns(graph)
    own = _kernels(graph) & (graph.nodes["operation"] == operation_number(change.operator))
    own &= (floor > 0) & (floor < BELOW * dur)
    if not own.any():
        raise UnreplayableError(f"no kernel of {change.operator} below half of its roof was kept for the replay")
    least = LEAST_PADDED if change.certain else 0.0
    rate = np.divide(floor, dur, out=np.ones(len(dur)), where=own)
    # Without what keeps it below it is as many times as fast, as far as anything explains it.
    expected = rate / change.reaches if change.reaches else np.sqrt(rate * ROOF[-1])
    expected = np.minimum(expected, ROOF[0])
    reached = np.maximum(floor / (ROOF[-1] if setting.bias < 0 else expected), np.minimum(LEAST_NS, dur))
    wanted = dur * (1 - least) if setting.bias > 0 else reached
    typical = float(np.median(expected[own]))
    worst = (
        f"a tenth shorter to {units.whole_share(ROOF[-1])}"
        if change.certain
        else (f"as they are to {units.whole_share(ROOF[-1])}")
    )
    return _shortened(
        graph,
        np.where(own, np.minimum(dur, wanted), dur),
        f"{int(own.sum()):,} kernels of {change.operator} at {units.whole_share(typical)} of their roof "
        f"(assumed: from {worst})",
    )


def no_layout_conversion(graph: Graph, change: NoLayoutConversion, setting: Setting) -> Rewritten:
    """Without most of the conversions."""
    del change
    converts = _of(graph, Trait.LAYOUT, "nothing converts between memory layouts")
    dur, _ = _columns(graph)
    kept = CONVERTED[setting.bias]
    return _shortened(
        graph,
        np.where(converts, dur * kept, dur),
        f"{int(converts.sum()):,} conversions gone but for {units.whole_share(CONVERTED[0])} (assumed, "
        f"at most {units.whole_share(CONVERTED[1])})",
    )


def fused_attention(graph: Graph, change: FusedAttention, setting: Setting) -> Rewritten:
    """Without what lies between the two products."""
    del change
    attention = _of(graph, Trait.ATTENTION, "no attention runs as products with a softmax between them")
    dur, _ = _columns(graph)
    products = attention & np.isin(graph.nodes["category"], codes("gemm"))
    between = attention & ~products
    new = np.where(products, dur * PRODUCTS_KEPT[setting.bias], np.where(between, 0, dur))
    return _shortened(
        _without_launches(graph, between, KEPT_LAUNCHES[setting.bias]),
        new,
        f"{int(between.sum())} kernels between the products gone, these {PRODUCTS_KEPT[-1]:g}–"
        f"{PRODUCTS_KEPT[1]:g} times as long (assumed)",
    )


def hopper_attention(graph: Graph, change: HopperAttention, setting: Setting) -> Rewritten:
    """FlashAttention 2 at the published speed of its successor."""
    del change
    flash = _of(graph, Trait.FLASH_2, "no kernel of FlashAttention 2 ran")
    dur, _ = _columns(graph)
    return _shortened(
        graph,
        np.where(flash, dur * HOPPER[setting.bias], dur),
        "FlashAttention 2 replaced by a kernel 1.05 to 2 times as fast, 1.5 expected (published for H100)",
    )


def fused_optimizer(graph: Graph, change: FusedOptimizer, setting: Setting) -> Rewritten:
    """The optimizer's kernels as one pass over parameters and states."""
    del change
    own = _kernels(graph) & np.isin(graph.nodes["category"], codes("optimizer"))
    if not own.any():
        raise UnreplayableError("the optimizer's kernels are not known")
    dur, _ = _columns(graph)
    rows = np.flatnonzero(own)
    steps = len(np.unique(graph.nodes["step"][rows] * (max(graph.ranks) + 1) + graph.nodes["rank"][rows]))
    longest = rows[np.argsort(-dur[rows], kind="stable")][:steps]
    gone = own.copy()
    gone[longest] = False
    gone &= _behind_another(graph, own)
    new = np.where(own, dur * ONE_PASS[setting.bias], dur)
    return _shortened(
        _without_launches(graph, gone, OPTIMIZER_LAUNCHES[setting.bias]),
        new,
        f"{len(rows):,} kernels of the optimizer in {units.whole_share(ONE_PASS[0])} of their time (by "
        "its passes over memory, 7 of about 20)",
    )


def _behind_another(graph: Graph, own: Mask) -> Mask:
    """Which of these operations are launched directly behind another of them: what the host does before the first of
    them is no work of theirs."""
    launch = graph.edges["why"] == Edge.LAUNCH
    src, dst = graph.edges["src"][launch], graph.edges["dst"][launch]
    launches = np.zeros(len(graph), np.bool_)
    launches[src[own[dst]]] = True
    program = (graph.edges["why"] == Edge.PROGRAM) & launches[graph.edges["src"]]
    follows = np.zeros(len(graph), np.bool_)
    follows[graph.edges["dst"][program]] = True
    found = np.zeros(len(graph), np.bool_)
    found[dst[follows[src]]] = True
    return found & own


def gradient_views(graph: Graph, change: GradientViews, setting: Setting) -> Rewritten:
    """Without the copies between gradients and buckets; of what the host does to launch them a part stays."""
    del change
    copies = _of(graph, Trait.GRADIENT_COPY, "nothing is copied between gradients and buckets")
    dur, _ = _columns(graph)
    return _shortened(
        _without_launches(graph, copies, VIEW_LAUNCHES[setting.bias]),
        np.where(copies, 0, dur),
        f"{int(copies.sum())} copies between gradients and buckets gone",
    )


def _columns(graph: Graph) -> tuple[Array, Array]:
    return graph.nodes["dur"].astype(np.float64), graph.nodes["floor"].astype(np.float64)


def _kernels(graph: Graph) -> Mask:
    return np.asarray(graph.of(Node.DEVICE) & (graph.nodes["category"] >= 0))


def _memory_bound(graph: Graph) -> Mask:
    kinds = codes("normalisation", "softmax", "reduction", "copy", "elementwise")
    return np.asarray(_kernels(graph) & np.isin(graph.nodes["category"], kinds))


def _of(graph: Graph, trait: Trait, why: str, among: Mask | None = None) -> Mask:
    """The operations of a trait, `among` some; `UnreplayableError` with `why` where there are none."""
    found = graph.of(Node.DEVICE) & ((graph.nodes["traits"] & int(trait)) > 0)
    if among is not None:
        found &= among
    if not found.any():
        raise UnreplayableError(why)
    return np.asarray(found)


def _without_launches(graph: Graph, gone: Mask, kept: float) -> Graph:
    """The host's segments before launches of operations that are gone keep only this share of their own work."""
    edges = (graph.edges["why"] == Edge.LAUNCH) & gone[graph.edges["dst"]]
    launching = np.zeros(len(graph), np.bool_)
    launching[graph.edges["src"][edges]] = True
    launching &= graph.of(Node.HOST)
    causes: Times = sum((graph.nodes[cause] for cause in CAUSES), np.zeros(len(graph), np.int64))
    fixed = np.minimum(causes, graph.nodes["dur"])
    left = fixed + np.rint((graph.nodes["dur"] - fixed) * kept).astype(np.int64)
    return graph.with_nodes(dur=np.where(launching, left, graph.nodes["dur"]))


def _shortened(graph: Graph, dur: Array, basis: str) -> Rewritten:
    found = np.where(graph.of(Node.DEVICE), np.rint(dur).astype(np.int64), graph.nodes["dur"])
    return Rewritten(graph.with_nodes(dur=found), basis, "assumed")
