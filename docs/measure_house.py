"""Measures the code of a checkout: `python docs/measure_house.py [ROOT] [--no-start]`.

How large modules and functions are, how dense a line is, what a small analysis imports, and how many files one section
of the report touches. It sets no limits, but exits with 1 where modules import in a circle or upward.
"""

from __future__ import annotations

import ast
import io
import json
import resource
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.import_graph import FACADE, Graph, circle, file_graph, folders, modules, place_graph

HERE = Path(__file__).resolve().parents[1]
SAMPLE = Path("sample_traces/ddp_slow_rank")
LARGEST = 500
"""Lines of a module that nobody reads at one go."""
ALLOWED = {
    "gpuscope": {"gpuscope"},
    "analyzers": {"gpuscope", "analyzers"},
    "instrumented_runtime": {"gpuscope", "instrumented_runtime"},
    "dashboards": {"gpuscope", "analyzers", "dashboards"},
}
"""Which of the four packages each may import."""
_REPORT = {"Diagnosis", "Report"}
_NO_CODE = {
    tokenize.ENCODING,
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
}
_START = """
import json, os, sys
written = os.dup(1)
os.dup2(2, 1)  # what the analysis prints goes aside
from gpuscope.cli import main
try:
    main(["analyze", sys.argv[1], "--no-store"])
except SystemExit:
    pass
os.write(written, json.dumps([name for name in sys.modules if name.partition(".")[0] == "gpuscope"]).encode())
"""


@dataclass(frozen=True)
class Text:
    """What one module consists of. A line counts as one of code where a token begins; docstrings are none."""

    lines: int
    functions: tuple[int, ...]
    """Lines of each function."""
    code_lines: int
    tokens: int
    comments: int
    skips: int
    """Comments that exempt lines from formatting."""


def read(source: str) -> Text:
    """Measure the text of a module."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        row
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        for row in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    code = [token for token in tokens if token.type not in _NO_CODE and token.start[0] not in docstrings]
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return Text(
        lines=len(source.splitlines()),
        functions=tuple((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions),
        code_lines=len({token.start[0] for token in code}),
        tokens=len(code),
        comments=len(comments),
        skips=sum("# fmt: skip" in comment or "# fmt: off" in comment for comment in comments),
    )


def sections(root: Path) -> tuple[str, ...]:
    """Names of the report's optional sections, as the schema declares them."""
    path = root / "gpuscope" / "schema" / "document.py"
    if not path.exists():
        return ()
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    fields = (field for node in nodes if isinstance(node, ast.ClassDef) and node.name in _REPORT for field in node.body)
    declared = (field for field in fields if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name))
    return tuple(ast.unparse(field.target) for field in declared if "NotRequired" in ast.unparse(field.annotation))


def touched(texts: Iterable[str], name: str) -> int:
    """How many of these files name a section, by its key or by its sentences' module."""
    return sum(f'"{name}"' in text or f"{name}_text" in text for text in texts)


def upward(graph: Graph) -> list[str]:
    """Imports that no arrow between the four packages allows."""
    return [
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in sorted(targets)
        if name != FACADE and _package(target) not in ALLOWED[_package(name)]
    ]


def _package(module: str) -> str:
    part = module.removeprefix("gpuscope.").partition(".")[0]
    return part if part in ALLOWED else "gpuscope"


def circles(graph: Graph, known: Mapping[str, Path]) -> list[str]:
    """A circle between files, and one in each folder whose places import in a circle."""
    inner = {name: targets for name, targets in graph.items() if name != FACADE}
    found = [circle(inner), *(circle(place_graph(graph, folder)) for folder in folders(known))]
    return [" → ".join(way) for way in found if way]


def start(root: Path) -> tuple[int, float]:
    """Modules of ours that a small analysis imports, and the seconds of CPU that it takes: the least of three runs."""
    seconds, loaded = [], 0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", _START, str(root / SAMPLE)]
        done = subprocess.run(
            command,
            cwd=root,
            env={"PYTHONPATH": str(root), "GPUSCOPE_NO_CACHE": "1", "GPUSCOPE_CONFIG": "none"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        loaded = len(json.loads(done.stdout))
    return loaded, min(seconds)


def rows(root: Path, with_start: bool = True) -> Iterator[tuple[str, str]]:
    """The table: what is measured, and the figure."""
    known = modules(root)
    sources = {name: path.read_text(encoding="utf-8") for name, path in known.items()}
    texts = [read(source) for source in sources.values()]
    lines = [text.lines for text in texts]
    functions = [length for text in texts for length in text.functions]
    tests = [read(path.read_text(encoding="utf-8")) for path in (root / "tests").rglob("*.py")]
    yield "product modules", f"{len(texts):,}"
    yield "of them `__init__`", f"{sum(path.name == '__init__.py' for path in known.values()):,}"
    yield "lines", f"{sum(lines):,}"
    yield "lines a module: mean, median", f"{mean(lines):.0f}, {median(lines):.0f}"
    yield f"modules over {LARGEST} lines", f"{sum(length > LARGEST for length in lines):,}"
    yield "lines a function: median", f"{median(functions):.0f}"
    tokens = sum(text.tokens for text in texts)
    yield (
        "tokens a line, of all and of code",
        f"{tokens / sum(lines):.1f}, {tokens / sum(text.code_lines for text in texts):.1f}",
    )
    yield "comments, of lines", f"{100 * sum(text.comments for text in texts) / sum(lines):.1f} %"
    yield "`# fmt: skip`", f"{sum(text.skips for text in (*texts, *tests)):,}"
    if names := sections(root):
        yield (
            "files that one section of the report touches: median",
            f"{median(touched(sources.values(), name) for name in names):.0f}",
        )
    if with_start:
        loaded, seconds = start(root)
        yield "modules of ours that a small `analyze` imports", f"{loaded:,}"
        yield "CPU of it", f"{seconds:.2f} s"
    graph = file_graph(known)
    yield "circles", f"{len(circles(graph, known)):,}"
    yield "imports upward", f"{len(upward(graph)):,}"


def main() -> None:
    """Print the table as Markdown, and what is wrong."""
    given = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    root = given[0].resolve() if given else HERE
    print("| | |\n|---|---|")
    for what, figure in rows(root, "--no-start" not in sys.argv):
        print(f"| {what} | {figure} |")
    known = modules(root)
    graph = file_graph(known)
    wrong = [*circles(graph, known), *upward(graph)]
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
