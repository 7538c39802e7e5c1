"""Nodes of CUDA graphs: which node a device event was, for the few events that say so, and what it waited for.

The CUPTI back end of torch 2.15 records the dependencies of a graph's nodes (pytorch PR 190850): in JSON as flows named
`ac2g` with ids from 2^40 on, from a predecessor's end to its successor's start within one replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpuscope.errors import InputError
from gpuscope.sources.kineto.chrome_json import Complete, Document, FlowEnd, FlowStart
from gpuscope.sources.kineto.decimal_time import to_ns
from gpuscope.sources.kineto.event_arguments import Loose, decode_arguments, integer
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

NODE_BITS = 0xFFFFFFFF
"""CUPTI's 64-bit id is graph << 32 | node; torch 2.15 writes the low half, older versions the whole."""
EVENT_NODE, HOST_NODE = "graph_event_node", "graph_host_node"
"""Categories of nodes that are no work on the device: an event recorded, and a function on the host."""
_FIRST_FLOW = 1 << 40
"""Lower ids lead from a launch to its work."""
_CLOCK_NS = 2
"""By which the sum of two rounded times may differ from one that is rounded once."""
_MOST = 1_000
"""Predecessors that are followed through one node that is no work: a graph with more is none that anybody records."""

Ids = npt.NDArray[np.int64]
Lane = tuple[int, int]
"""(device, stream)."""
Edge = tuple[int, int]
"""(node waited for, node that waits), by whatever numbers tell them apart."""
Dependency = tuple[int, int, int]
"""(device event that waits, the one it waits for, ns of host functions between them)."""


class _Node(msgspec.Struct, gc=False):
    """Arguments of a node; besides CUPTI's what `torch.cuda._graph_annotations.mark_kernels` was given: torch 2.13 and
    later write among them: a dictionary's own keys, a text as `str`, anything else as `annotation`."""

    node: Loose = msgspec.field(default=None, name="graph node id")
    module_fqn: Any = None
    """The module, as torchtitan gives it."""
    name: Any = None
    str: Any = None
    annotation: Any = None


def nodes_of(texts: Sequence[msgspec.Raw]) -> tuple[Ids, list[str]]:
    """CUPTI's id of each event's node as written, from the JSON of its arguments, shape (n,), `NA` where absent; and
    what the program called the part of the graph that it is in, empty where it said nothing."""
    nodes = decode_arguments(texts, _Node)
    return np.array([integer(one.node) for one in nodes], np.int64), [_part(one) for one in nodes]


def _part(node: _Node) -> str:
    return next((str(said) for said in (node.module_fqn, node.name, node.str, node.annotation) if said), "")


def low_half(ids: Ids) -> Ids:
    """The node alone of CUPTI's ids; `NA` stays."""
    return np.where(ids == NA, NA, ids & NODE_BITS)


@dataclass
class Flows:
    """Arrows between nodes as a file has them, and its nodes that are no work; times in ns as in the file."""

    begins: dict[int, tuple[Lane, int]] = field(default_factory=dict)
    """By the arrow's id: lane and time of its tail."""
    ends: dict[int, tuple[Lane, int]] = field(default_factory=dict)
    helpers: list[tuple[Lane, int, int, bool]] = field(default_factory=list)
    """Lane, start, end, and whether it is a function on the host."""


def flows_of(path: Path) -> Flows:
    """Read a file again for its arrows: they are a large part of a trace, and of use in few. What of it can't be read
    was told when it was read first."""
    found = Flows()
    try:
        for events in Document(path, flows=True).events():
            _take(found, [event for event in events if isinstance(event, FlowStart | FlowEnd) and event.cat == "ac2g"])
            _take_helpers(
                found,
                [event for event in events if isinstance(event, Complete) and event.cat in (EVENT_NODE, HOST_NODE)],
            )
    except InputError:
        return Flows()
    return found


def _take(found: Flows, events: Sequence[FlowStart | FlowEnd]) -> None:
    for event, at in zip(events, to_ns([event.ts for event in events]).tolist(), strict=True):
        number = integer(event.id)
        if number >= _FIRST_FLOW and at != NA:
            side = found.begins if isinstance(event, FlowStart) else found.ends
            side[number] = (_lane(event), at)


def _take_helpers(found: Flows, events: Sequence[Complete]) -> None:
    times = to_ns([event.ts for event in events] + [event.dur for event in events]).reshape(2, -1)
    for event, start, length in zip(events, *times.tolist(), strict=True):
        if start != NA and length != NA:
            found.helpers.append((_lane(event), start, start + length, event.cat == HOST_NODE))


def _lane(event: Complete | FlowStart | FlowEnd) -> Lane:
    return integer(event.pid), integer(event.tid)


def joined(flows: Flows, columns: Mapping[str, Ids], rows: Ids) -> list[Dependency]:
    """What the device events `rows` (of graphs; `columns` have all device events) waited for, by their rows.

    An arrow leads from what ends at its tail on its lane to what starts at its head.
    """
    nodes = [(lane, start, end) for lane, start, end, _ in flows.helpers]
    numbers = [-1 - place for place in range(len(nodes))]
    lanes = zip(columns["device"][rows].tolist(), columns["stream"][rows].tolist(), strict=True)
    nodes += zip(lanes, columns["start"][rows].tolist(), columns["end"][rows].tolist(), strict=True)
    numbers += rows.tolist()
    by_start: dict[tuple[Lane, int], int] = {}
    by_end: dict[tuple[Lane, int], int] = {}
    for number, (lane, start, end) in zip(numbers, nodes, strict=True):
        by_start[lane, start] = by_end[lane, end] = number
    edges = [
        (source, target)
        for arrow in flows.begins.keys() & flows.ends.keys()
        if (source := _at(by_end, *flows.begins[arrow])) is not None
        and (target := _at(by_start, *flows.ends[arrow])) is not None
    ]
    spent = {-1 - place: (end - start) * host for place, (_, start, end, host) in enumerate(flows.helpers)}
    return dependencies(edges, spent)


def _at(places: Mapping[tuple[Lane, int], int], lane: Lane, time: int) -> int | None:
    near = (places.get((lane, time + off)) for off in sorted(range(-_CLOCK_NS, _CLOCK_NS + 1), key=abs))
    return next((number for number in near if number is not None), None)


def dependencies(edges: Iterable[Edge], helpers: Mapping[int, int]) -> list[Dependency]:
    """What each node that is work waited for, through `helpers` (nodes that are none, with their ns) too; sorted.

    Helpers in a circle are passed over.
    """
    before: defaultdict[int, list[int]] = defaultdict(list)
    for source, target in sorted(set(edges)):
        before[target].append(source)
    through = dict(_through(before, helpers))
    found: dict[Edge, int] = {}
    for target, sources in before.items():
        for source, spent in _reached(sources, helpers, through) if target not in helpers else ():
            if source != target:
                found[target, source] = max(spent, found.get((target, source), 0))
    return sorted((target, source, spent) for (target, source), spent in found.items())


def _reached(
    sources: Sequence[int], helpers: Mapping[int, int], through: Mapping[int, Mapping[int, int]]
) -> Iterator[tuple[int, int]]:
    for source in sources:
        yield from through.get(source, {}).items() if source in helpers else [(source, 0)]


def _through(before: Mapping[int, Sequence[int]], helpers: Mapping[int, int]) -> Iterator[tuple[int, dict[int, int]]]:
    """Per helper, those before it first: the work before it, with the ns that helpers from there to its end took."""
    known: dict[int, dict[int, int]] = {}
    after: defaultdict[int, list[int]] = defaultdict(list)
    waiting = dict.fromkeys(helpers, 0)
    for helper in helpers:
        for source in before.get(helper, ()):
            if source in helpers:
                after[source].append(helper)
                waiting[helper] += 1
    ready = [helper for helper, count in waiting.items() if not count]
    while ready:
        helper = ready.pop()
        reached: dict[int, int] = {}
        for source, spent in _reached(before.get(helper, ()), helpers, known):
            if len(reached) < _MOST:
                reached[source] = max(spent + helpers[helper], reached.get(source, 0))
        known[helper] = reached
        yield helper, reached
        for later in after[helper]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
