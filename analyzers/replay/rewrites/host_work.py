"""Changes to what the host does: calls that wait, collections, allocations, work of its own, launches one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.device_time.own_work import least_stretch
from gpuscope.analyzers.replay.engine import beside_kernels, replay
from gpuscope.analyzers.replay.graph import CAUSES, COPY_CALL_NS, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting, edges_into, on_host
from gpuscope.analyzers.what_if_changes import (
    CapturedGraphs,
    CopyStream,
    NoAllocatorStalls,
    NoCollector,
    NoHostWork,
    PinnedCopies,
    RemovedSyncs,
)
from gpuscope.hardware.link_rates import gpu_pcie
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Mask, Times

_RECORD = {
    "gc": "garbage collection: record it with gpuscope record, or with_stack=True",
    "allocator": "allocator call: record CUDA runtime calls",
    "host_other": "checkpoint, logging, file or network call: record OS calls (nsys -t osrt) or name them with ranges",
}

NODE_GAP_NS = {-1: 500, 0: 700, 1: 1_000}
"""The pause between nodes of a CUDA graph at most, where that turns out well, as expected and badly. Assumed, after
NVIDIA's «Getting Started with CUDA Graphs» (2019), where graphs about halve what launched kernels pause."""

GRAPH_LAUNCH_NS = {-1: 10_000, 0: 30_000, 1: 350_000}
"""Host time to launch a graph, which no trace of a job without one holds. Published are 4 and 8 µs (CUDA.jl's manual),
15 (ahrefs/ocannl#488), and 41, of 345 with all that torch.compile does around one (pytorch/pytorch#150488)."""

LARGE_COPY = 1 << 16
"""Bytes from which a copy's time is that of its bytes: below, starting it takes as long."""


def _without(graph: Graph, cause: str) -> Rewritten:
    taken = np.where(on_host(graph), graph.nodes[cause], 0)
    if not taken.any():
        raise UnreplayableError(f"the replayed steps hold no {_RECORD[cause]}")
    nodes = {"dur": graph.nodes["dur"] - taken, cause: graph.nodes[cause] - taken}
    return Rewritten(graph.with_nodes(**nodes), f"{int((taken > 0).sum())} host segments shortened by their {cause}")


def no_collector(graph: Graph, change: NoCollector, setting: Setting) -> Rewritten:
    """Host time without garbage collection."""
    del change, setting
    return _without(graph, "gc")


def no_allocator(graph: Graph, change: NoAllocatorStalls, setting: Setting) -> Rewritten:
    """Host time without allocator calls, and without their waits for the device."""
    del change, setting
    return _without(graph.keep_edges(~edges_into(graph, graph.allocating(), Edge.SYNC)), "allocator")


def no_host_work(graph: Graph, change: NoHostWork, setting: Setting) -> Rewritten:
    """Host time without checkpoints, logging, files and network."""
    del change, setting
    return _without(graph, "host_other")


def _in_order(graph: Graph) -> Times:
    """The nodes of hosts, rank by rank in the order in which each comes to them: other changes may have moved some."""
    chain = np.flatnonzero(graph.of(Node.HOST, Node.WAIT))
    return np.asarray(chain[np.lexsort((replay(graph).start[chain], graph.nodes["rank"][chain]))])


def _sources(graph: Graph, edges: Mask) -> Mask:
    """The nodes that these edges lead from."""
    found = np.zeros(len(graph), np.bool_)
    found[graph.edges["src"][edges]] = True
    return found


def _begins(graph: Graph, chain: Times, launches: Mask) -> Mask:
    """Host nodes with which another graph begins: on another thread than the one before, or the operation that they
    launch (by these edges) waits for a collective."""
    src, dst = graph.edges["src"], graph.edges["dst"]
    waiting = np.zeros(len(graph), np.bool_)
    waiting[dst[(graph.edges["why"] == Edge.EVENT) & graph.of(Node.TRANSFER)[src]]] = True
    found = _sources(graph, launches & waiting[dst])
    thread, rank = graph.nodes["thread"][chain], graph.nodes["rank"][chain]
    turned = (np.diff(thread) != 0) & (np.diff(rank) == 0) & (thread[1:] != NA) & (thread[:-1] != NA)
    found[chain[1:][turned]] = True
    return found


def _graph_launches(
    graph: Graph, chain: Times, captured: Mask, begins: Mask, saved: Times, usual: Times, setting: Setting
) -> Times:
    """Per node, what launching a graph takes the host: once where a run of captured segments of a step begins in the
    `chain`, and where another graph `begins`. On a rank whose way to a launch (`usual`, by rank) is longer than
    others', as much longer. At best and at worst no more than capturing saves: other runs are left alone."""
    added = np.zeros(len(graph), np.int64)
    inside, rank, step = captured[chain], graph.nodes["rank"][chain], graph.nodes["step"][chain]
    goes_on = np.append(False, inside[:-1] & (np.diff(step) == 0) & (np.diff(rank) == 0)) & ~begins[chain]
    first = np.flatnonzero(inside & ~goes_on)
    if len(first):
        runs = np.add.reduceat(np.where(inside, saved[chain], 0), first)
        # Of two ranks the quicker one is what is usual.
        slower = usual[rank[first]] / max(float(np.percentile(usual[graph.ranks], 50, method="lower")), 1.0)
        cost = np.rint(GRAPH_LAUNCH_NS[setting.bias] * np.maximum(slower, 1.0)).astype(np.int64)
        added[chain[first]] = np.minimum(runs, cost) if setting.bias else cost
    return added


def _usual(graph: Graph, ways: Mask) -> Times:
    """By rank, how long such segments of its host last in the median."""
    found = np.zeros(max(graph.ranks) + 1, np.int64)
    for rank in graph.ranks:
        own = graph.nodes["dur"][ways & (graph.nodes["dur"] > 0) & (graph.nodes["rank"] == rank)]
        found[rank] = np.median(own) if len(own) else 0
    return found


def _after(graph: Graph, broken: Mask) -> Mask:
    """Host nodes that follow one of these on their thread."""
    program = graph.edges["why"] == Edge.PROGRAM
    found = np.zeros(len(graph), np.bool_)
    found[graph.edges["dst"][program & broken[graph.edges["src"]]]] = True
    return found


def _device_waits(graph: Graph, setting: Setting, what: str) -> Mask:
    """Waits of the host for the device."""
    if not setting.gpu and not bool((graph.nodes["work"][graph.of(Node.DEVICE)] == Kind.COMPUTE).any()):
        raise UnreplayableError(f"without a device there are no {what}: the training thread computes itself")
    return graph.blocking()


def removed_syncs(graph: Graph, change: RemovedSyncs, setting: Setting) -> Rewritten:
    """The host goes on where it waited; the work it waited for is still done."""
    # Named, it may also be one in which the training thread waits for other ranks: c10d::barrier.
    waits = graph.blocking() if change.name else _device_waits(graph, setting, "blocking calls")
    if change.name is not None:
        named = np.array([change.name in label.split("/") for label in graph.labels] + [False], np.bool_)
        waits &= named[graph.nodes["label"]]
    if change.sites:
        chosen = np.array([label in change.sites for label in graph.labels] + [False], np.bool_)
        waits &= chosen[graph.nodes["site"]]
    gone = _collectives(graph, change.name)
    if not waits.any() and not gone.any():
        called = "" if change.name is None else f" of {change.name}"
        raise UnreplayableError(f"the replayed steps hold no blocking call{called}: record CUDA runtime calls")
    # Of a collective nobody waits any more, neither its ranks for each other nor threads for its end.
    held = gone[graph.edges["src"]] & (graph.edges["why"] == Edge.SYNC)
    met = edges_into(graph, gone & graph.of(Node.TRANSFER), Edge.JOIN) & graph.of(Node.JOIN)[graph.edges["src"]]
    found = graph.keep_edges(~(edges_into(graph, waits, Edge.SYNC) | held | met))
    found = found.with_nodes(dur=np.where(waits | gone, 0, graph.nodes["dur"]))
    number = int(waits.sum()) or int((gone & graph.of(Node.TRANSFER)).sum())
    if not change.needed:
        return Rewritten(found, f"{number} blocking calls taken out")
    # Where it turns out well, nothing in the step needs what they bring.
    found = found if setting.bias < 0 else _read_later(graph, found, np.flatnonzero(waits))
    return Rewritten(
        found, f"what {number} blocking calls bring is read behind a step's last launch, at best not needed in the step"
    )


def _read_later(graph: Graph, freed: Graph, waits: Times) -> Graph:
    """Behind the last launch or wait of each step stands a wait for what the `waits` of that step waited for, and the
    host's own work that followed each: what is longer there than the way to a launch usually is."""
    host, nodes = graph.of(Node.HOST), graph.nodes
    usual = int(np.median(nodes["dur"][host & (nodes["dur"] > 0)])) if host.any() else 0
    program = graph.edges["why"] == Edge.PROGRAM
    after = dict(zip(graph.edges["src"][program].tolist(), graph.edges["dst"][program].tolist(), strict=True))
    dur = freed.nodes["dur"].copy()
    added: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    acting = graph.blocking()
    acting[graph.edges["src"][graph.edges["why"] == Edge.LAUNCH]] = True
    last = {(int(nodes["rank"][node]), int(nodes["step"][node])): int(node) for node in np.flatnonzero(acting)}
    reads: dict[tuple[int, int], list[int]] = defaultdict(list)
    for wait in waits.tolist():
        reads[int(nodes["rank"][wait]), int(nodes["step"][wait])].append(wait)
    for (rank, step), own in reads.items():
        end = last[rank, step]
        if end in own or end not in after:
            continue
        moved = 0
        for wait in own:
            if (behind := after.get(wait)) is not None and host[behind] and dur[behind] > usual:
                moved, dur[behind] = moved + int(dur[behind]) - usual, usual
        read = len(graph) + len(added)
        added.append({"kind": Node.HOST, "rank": rank, "step": step, "dur": moved})
        edges += [(end, read, 0, Edge.PROGRAM), (read, after[end], 0, Edge.PROGRAM)]
        for at in np.flatnonzero(edges_into(graph, _only(graph, own), Edge.SYNC)).tolist():
            edges.append((int(graph.edges["src"][at]), read, max(int(graph.edges["lag"][at]), 0), Edge.SYNC))
    return freed.with_nodes(dur=dur).add(added, edges)


def _only(graph: Graph, nodes: Sequence[int]) -> Mask:
    found = np.zeros(len(graph), np.bool_)
    found[nodes] = True
    return found


def _collectives(graph: Graph, name: str | None) -> Mask:
    """Nodes of collectives that a call of that name (c10d::barrier) issued for nothing but to wait."""
    own = np.array([name == "c10d::barrier" and call.op == "barrier" for call in graph.calls] + [False], np.bool_)
    return np.asarray(own[graph.nodes["call"]] & graph.of(Node.ARRIVAL, Node.TRANSFER))


def pinned_copies(graph: Graph, change: PinnedCopies, setting: Setting) -> Rewritten:
    """Host-to-device copies from pageable memory neither block the host nor wait for compute before them.

    A step that began with one begins with what follows it. The host does not stage them, and they run at the rate of
    the run's pinned copies, else of its link (`_pinned`).
    Where it turns out badly, they run as long as measured, and the host still stages them (copying into pinned memory
    is what the loader's own pinning thread would otherwise do).
    """
    del change
    waits = _device_waits(graph, setting, "copies to it")
    labels = [*graph.labels, ""]
    crossing = np.array([label.startswith("HtoD pageable") for label in labels], np.bool_)
    copies = graph.of(Node.DEVICE) & crossing[graph.nodes["label"]]
    if not copies.any():
        raise UnreplayableError("the replayed steps hold no host-to-device copy from pageable memory")
    src, dst, why = graph.edges["src"], graph.edges["dst"], graph.edges["why"]
    # Calls that waited for such a copy, and were part of one: the copy itself, or the framework's wait behind it.
    copying = np.array(["cpy" in label.lower() or "copy" in label.lower() for label in labels], np.bool_)
    held = np.zeros(len(graph), np.bool_)
    held[dst[(why == Edge.SYNC) & copies[src]]] = True
    blocked = waits & held & copying[graph.nodes["label"]]
    bypass = _around(graph, copies)
    ordered = (why == Edge.STREAM) & copies[dst] & ~copies[src]
    staged = (why == Edge.LAUNCH) & copies[dst]
    usual = graph.edges["lag"][(why == Edge.LAUNCH) & ~copies[dst]]
    launch = int(np.median(usual)) if len(usual) else 0
    lag, dur = graph.edges["lag"], graph.nodes["dur"]
    if setting.bias <= 0:
        lag = np.where(staged, np.minimum(lag, launch), lag)
        dur = np.where(on_host(graph), dur - graph.nodes["staging"], dur)
    found = graph.with_edges(lag=lag).keep_edges(~(edges_into(graph, blocked, Edge.SYNC) | ordered))
    itself = np.array(["memcpy" in label.rpartition("/")[2].lower() for label in labels], np.bool_)
    calls = np.where(itself[graph.nodes["label"]], np.minimum(COPY_CALL_NS, _lasted(graph)), 0)
    dur, rate = _pinned(graph, copies, np.where(blocked, calls, dur), setting)
    found = replace(found.with_nodes(dur=dur).add([], bypass), marks=_past(graph, copies))
    return Rewritten(found, f"{int(copies.sum())} copies beside compute, {rate}, not staged by the host")


def copy_stream(graph: Graph, change: CopyStream, setting: Setting) -> Rewritten:
    """Copies to the device wait for the one before them and no longer for the kernels before them; what follows them on
    their stream still waits for them. Those that block the host still do.

    A step that began with a copy begins with what follows it: copies may now run steps ahead.
    """
    del change
    _device_waits(graph, setting, "copies to it")
    nodes, why = graph.nodes, graph.edges["why"]
    crossing = np.array([label.startswith("HtoD") for label in graph.labels] + [False], np.bool_)
    copies = graph.of(Node.DEVICE) & crossing[nodes["label"]] & beside_kernels(graph)
    ordered = (why == Edge.STREAM) & copies[graph.edges["dst"]] & ~copies[graph.edges["src"]]
    if not ordered.any():
        raise UnreplayableError("the replayed steps hold no copy to the device on a stream that computes")
    between: list[tuple[int, int, int, int]] = []
    for rank in graph.ranks:
        own = np.flatnonzero(copies & (nodes["rank"] == rank))
        own = own[np.argsort(nodes["start"][own], kind="stable")]
        between += [(src, dst, 0, Edge.STREAM) for src, dst in pairwise(own.tolist())]
    found = graph.keep_edges(~ordered).add([], [*_around(graph, copies), *between])
    found = replace(found, marks=_past(graph, copies))
    return Rewritten(found, f"{int(copies.sum())} copies on a stream of their own, one after the other")


def _past(graph: Graph, copies: Mask) -> dict[int, Times]:
    """The marks, those on copies moved to what follows these on their stream."""
    within = (graph.edges["why"] == Edge.STREAM) & graph.of(Node.DEVICE)[graph.edges["dst"]]
    after = dict(zip(*(graph.edges[name][within].tolist() for name in ("src", "dst")), strict=True))

    def past(node: int) -> int:
        while copies[node] and node in after:
            node = after[node]
        return node

    return {rank: np.array([past(node) for node in own.tolist()], np.int64) for rank, own in graph.marks.items()}


def _lasted(graph: Graph) -> Times:
    """ns that each node took as measured, waiting included."""
    known = graph.nodes["start"] != NA
    return np.where(known, graph.nodes["end"] - graph.nodes["start"], 0)


def _pinned(graph: Graph, copies: Mask, dur: Times, setting: Setting) -> tuple[Times, str]:
    """Durations with these copies from pinned memory, and what that rests on.

    At the rate of the largest pinned copies in the graph. Without any, between the pageable one and that of the GPU's
    PCI Express, which are the bounds; the geometric mean is expected.
    """
    size = graph.nodes["bytes"]
    others = np.array([label == "HtoD" for label in graph.labels] + [False], np.bool_)
    others = graph.of(Node.DEVICE) & others[graph.nodes["label"]] & (size >= LARGE_COPY)
    if others.any():
        fast = size * float(graph.nodes["dur"][others].sum() / size[others].sum())
        pinned = np.minimum(fast, dur)
        rate = "at the rate of the run's pinned copies"
    else:
        link = gpu_pcie(setting.gpu)
        least = np.minimum(size / link.usable, dur) if link else dur
        pinned = {-1: least, 0: np.sqrt(least * dur), 1: dur}[setting.bias]
        rate = "between as long as measured and as fast as the link"
    moved = copies & (size >= LARGE_COPY)
    return np.where(moved, np.rint(pinned), dur).astype(np.int64), rate


def _around(graph: Graph, copies: Mask) -> list[tuple[int, int, int, int]]:
    """What came behind copies in stream order, or waited for an event behind one, still waits for the operation before
    them, once the copies are beside both."""
    src, dst, why = (graph.edges[name] for name in ("src", "dst", "why"))
    stream = why == Edge.STREAM
    before = dict(zip(dst[stream].tolist(), src[stream].tolist(), strict=True))
    passed = (stream | (why == Edge.EVENT)) & copies[src] & ~copies[dst]
    edges: list[tuple[int, int, int, int]] = []
    for source, node, kind in zip(src[passed].tolist(), dst[passed].tolist(), why[passed].tolist(), strict=True):
        behind: int | None = source
        while behind is not None and copies[behind]:
            behind = before.get(behind)
        if behind is not None:
            edges.append((behind, node, 0, kind))
    return edges


def captured_graphs(graph: Graph, change: CapturedGraphs, setting: Setting) -> Rewritten:
    """No host time between launches but what has a cause of its own, or is not the way to a launch: named ranges that
    launch nothing, the optimizer's own code, long stretches (definitions). Where it turns out badly, the optimizer is
    not captured at all.

    The capture breaks where a collective is issued or waited for, at calls that wait, and where another thread goes on,
    since autograd launches the backward pass's graph: what the host does before them stays; where it turns out well, it
    does not break there. Kernels of a graph follow each other faster than launched ones.
    """
    del change
    _device_waits(graph, setting, "launches")
    host = graph.of(Node.HOST)
    dur = graph.nodes["dur"]
    kept = sum((graph.nodes[cause] for cause in CAUSES), graph.nodes["unlaunching"])
    if setting.bias > 0:
        kept = np.maximum(kept, graph.nodes["optimizing"])
    ways = dur[host & (dur > 0)]
    kept = np.where(dur >= least_stretch(float(np.median(ways)) if len(ways) else 0.0), dur, kept)
    chain, first, begins = _in_order(graph), *np.zeros((2, len(graph)), np.bool_)
    if setting.bias >= 0:
        launches = edges_into(graph, graph.of(Node.DEVICE), Edge.LAUNCH)
        ends = graph.blocking() | graph.allocating() | graph.of(Node.ARRIVAL)
        breaks = host & _sources(graph, edges_into(graph, ends, Edge.PROGRAM, Edge.LAUNCH))
        begins, host = _begins(graph, chain, launches), host & _sources(graph, launches)
        # What issued a collective that is now issued elsewhere, or not at all, launches nothing: no graph ends there.
        chain = chain[(host | breaks | graph.of(Node.WAIT))[chain]]
        # What follows a break holds the rest of it: the records, waits and changes of threads behind a collective.
        first = _after(graph, ~host) | begins
    usual = _usual(graph, host & ~first)
    kept = np.where(first, np.maximum(kept, dur - usual[graph.nodes["rank"]]), kept)
    device, why = graph.of(Node.DEVICE), graph.edges["why"]
    between = (why == Edge.STREAM) & device[graph.edges["src"]] & device[graph.edges["dst"]]
    between &= graph.nodes["step"][graph.edges["src"]] == graph.nodes["step"][graph.edges["dst"]]
    gap = np.minimum(graph.edges["lag"], NODE_GAP_NS[setting.bias])
    kept = np.where(host, np.minimum(kept, dur), dur)
    captured = graph.with_nodes(dur=kept + _graph_launches(graph, chain, host, begins, dur - kept, usual, setting))
    return Rewritten(
        captured.with_edges(lag=np.where(between, gap, graph.edges["lag"])),
        "launches replayed without host time between them, but before collectives and calls that wait",
    )
