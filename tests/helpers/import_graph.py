"""Which file imports which, read from the source; `python tests/helpers/import_graph.py` prints a table of it.

A *place* of a folder is a file or a folder in it. An edge runs between two places where a file under one imports a
file under the other, imports inside functions included.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = {
    "gpuscope": "gpuscope",
    **{name: f"gpuscope.{name}" for name in ("analyzers", "instrumented_runtime", "dashboards")},
}
"""The folders of the repository, and what Python calls them."""
FACADE = "gpuscope"
"""`import gpuscope` offers names from everywhere; nothing inside imports it."""

Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of a checkout by its dotted name."""
    found: dict[str, Path] = {}
    for folder, package in TOP.items():
        # The links gpuscope/analyzers … are followed under their own names only.
        for path in sorted(path for path in (root / folder).rglob("*.py") if "shim" not in path.parts):
            parts = path.relative_to(root / folder).with_suffix("").parts
            inner = parts[:-1] if parts[-1] == "__init__" else parts
            if not (folder == "gpuscope" and inner and inner[0] in TOP):
                found[".".join((package, *inner))] = path
    return found


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Dotted names that a file imports; `a.b.c` for `from a.b import c`, whatever `c` is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _executed(tree) if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: not the bodies of functions, not `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _executed(node)


def file_graph(known: Mapping[str, Path], *, top_level_only: bool = False) -> Graph:
    """Module → modules it imports. A package that is named only on the way to a file in it is not one of them."""
    graph: Graph = {}
    for name, path in known.items():
        named = {target for target in imports(path, top_level_only=top_level_only) if target in known}
        graph[name] = {
            target for target in named if target != name and not any(other.startswith(f"{target}.") for other in named)
        }
    return graph


def place_graph(graph: Graph, folder: str) -> Graph:
    """The same between the places of one folder."""
    places: Graph = defaultdict(set)
    for name, targets in graph.items():
        own = _place(name, folder)
        if own is not None:
            places[own] |= {place for target in targets if (place := _place(target, folder)) not in (None, own)}
    return dict(places)


def _place(module: str, folder: str) -> str | None:
    return module.removeprefix(f"{folder}.").partition(".")[0] if module.startswith(f"{folder}.") else None


def layers(graph: Graph) -> list[list[str]]:
    """The places by how far they stand above those that import nothing, the lowest first; without circles."""
    heights: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in heights:
            heights[name] = 0  # where a circle closes
            heights[name] = max((height(target) + 1 for target in graph.get(name, ())), default=0)
        return heights[name]

    for name in sorted(graph):
        height(name)
    return [[name for name in sorted(heights) if heights[name] == level] for level in range(max(heights.values()) + 1)]


def reduced(graph: Graph) -> Graph:
    """Without the edges that a longer way shows too."""

    def below(name: str, seen: set[str]) -> set[str]:
        for target in graph.get(name, set()) - seen:
            seen.add(target)
            below(target, seen)
        return seen

    ways = {name: below(name, set()) for name in graph}
    return {
        name: {one for one in targets if not any(one in ways[other] for other in targets - {one})}
        for name, targets in graph.items()
    }


def circle(graph: Graph) -> tuple[str, ...]:
    """One circle of the graph; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> tuple[str, ...]:
        if name in trail:
            return (*trail[trail.index(name) :], name)
        if name not in done:
            for target in sorted(graph.get(name, ())):
                if found := visit(target, (*trail, name)):
                    return found
            done.add(name)
        return ()

    return next((found for name in graph if (found := visit(name, ()))), ())


def folders(known: Iterable[str]) -> list[str]:
    """Every package that holds a module."""
    return sorted({name.rpartition(".")[0] for name in known} - {""})


def main() -> None:
    """Print places and edges of every folder with more than a few places."""
    graph = file_graph(modules())
    print(f"{'folder':52} {'places':>6} {'edges':>6}  circle")
    for folder in folders(graph):
        places = place_graph(graph, folder)
        if len(places) > 3:
            edges = sum(map(len, places.values()))
            print(f"{folder:52} {len(places):6} {edges:6}  {' → '.join(circle(places)) or 'none'}")


if __name__ == "__main__":
    main()
