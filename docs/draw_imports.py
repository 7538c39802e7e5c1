"""Draws which place of a package imports which, as an SVG: python docs/draw_imports.py CHECKOUT PACKAGE > drawing.svg

What imports nothing of the package stands at the bottom; edges that a longer way shows too are left out.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.import_graph import Graph, circle, file_graph, layers, modules, place_graph, reduced

WIDTH, ROW, BOX, LETTER = 1160, 84, 30, 6.6


def drawing(root: Path, package: str) -> str:
    """The SVG of a package's places in a checkout."""
    whole = place_graph(file_graph(modules(root)), package)
    graph, rows = reduced(whole), _ordered(layers(whole), whole)
    height = ROW * len(rows) + 30
    at = {
        name: (WIDTH * (place + 0.5) / len(row), height - ROW * (level + 0.5))
        for level, row in enumerate(rows)
        for place, name in enumerate(row)
    }
    lines = [_edge(at[name], at[target]) for name in sorted(graph) for target in sorted(graph[name])]
    boxes = [_box(name, *at[name]) for name in sorted(at)]
    around = " → ".join(circle(whole)) or "none"
    said = f"{package}: {len(at)} places, {sum(map(len, whole.values()))} imports between them, circle: {around}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="12" y="20" font-size="14">{escape(said)}</text>',
            *lines,
            *boxes,
            "</svg>",
        ]
    )


def _ordered(rows: list[list[str]], graph: Graph) -> list[list[str]]:
    """Each row with its places above those that they import, so that fewer lines cross."""
    place: dict[str, float] = {}
    ordered = []
    for row in rows:
        middle = {name: _mean([place[one] for one in graph.get(name, ()) if one in place]) for name in row}
        ordered.append(sorted(row, key=lambda name: (middle[name], name)))
        place |= {name: (number + 0.5) / len(row) for number, name in enumerate(ordered[-1])}
    return ordered


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.5


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="#9aa5b1" stroke-width="1"/>'


def _box(name: str, x: float, y: float) -> str:
    width = LETTER * len(name) + 14
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y - BOX / 2:.0f}" width="{width:.0f}" height="{BOX}" rx="4" fill="#eef4fb" '
        f'stroke="#4a78a8"/><text x="{x:.0f}" y="{y + 4:.0f}" font-size="12" text-anchor="middle">{escape(name)}</text>'
    )


if __name__ == "__main__":
    print(drawing(Path(sys.argv[1]), sys.argv[2]))
