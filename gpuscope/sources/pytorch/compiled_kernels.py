"""Which line of the user's code a kernel that Inductor generated comes from.

Inductor writes above each kernel the nodes of the graph that it fused (`# Source node to ATen node mapping`, from
`torch/_inductor/codegen/wrapper.py`), and the graph has above each node the user's line (`# File: train.py:3 in f`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from gpuscope import when_used

_KERNEL = when_used.pattern(r"^(\w+) = async_compile\.\w+\(")
_NODES = when_used.pattern(r"^#\s+(?:\S+) => (.+)$")
_FUSED = when_used.pattern(r"^#\s+%(\w+) : ")
_FILE = when_used.pattern(r"^\s*#\s*File: (?P<file>.+?):(?P<line>\d+) in (?P<name>[^,]+), code:")
_NODE = when_used.pattern(r"^\s*(\w+)(?:: \"[^\"]*\")? = ")


class _Mapping(msgspec.Struct):
    nodes: dict[str, list[str]] = msgspec.field(default_factory=dict, name="cppCodeToPost")


def places_by_mapping(mapping: str, graph: str) -> Iterator[tuple[str, str]]:
    """The same by the artifact that tells the nodes of each kernel, which torch writes where it tracks provenance."""
    try:
        told = msgspec.json.decode(mapping, type=_Mapping).nodes
    except msgspec.DecodeError:
        return
    lines_of = dict(_node_lines(graph))
    for kernel, nodes in told.items():
        places = Counter(lines_of[node] for node in nodes if node in lines_of)
        if places:
            yield kernel.partition(":")[0], places.most_common(1)[0][0]


def places_by_code(code: str, graph: str) -> Iterator[tuple[str, str]]:
    """Each kernel of Inductor's output code with the line that most of its nodes come from (`train.py(3): f`)."""
    lines_of = dict(_node_lines(graph))
    nodes: list[str] = []
    for line in code.splitlines():
        if found := _NODES.match(line):
            nodes += [node.strip() for node in found[1].split(",")]
        elif found := _FUSED.match(line):
            nodes.append(found[1])
        elif found := _KERNEL.match(line):
            places = Counter(lines_of[node] for node in nodes if node in lines_of)
            if places:
                yield found[1], places.most_common(1)[0][0]
            nodes = []


def _node_lines(graph: str) -> Iterator[tuple[str, str]]:
    place = ""
    for line in graph.splitlines():
        if found := _FILE.match(line):
            place = f"{found['file']}({found['line']}): {found['name']}"
        elif place and (found := _NODE.match(line)):
            yield found[1], place
