"""The layers of docs/architecture.md: what may import what, and what must not be imported to analyse."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "gpuscope": {"gpuscope"},
    "analyzers": {"gpuscope", "analyzers"},
    "instrumented_runtime": {"gpuscope", "instrumented_runtime"},
    "dashboards": {"gpuscope", "analyzers", "dashboards"},
}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path, top_level_only: bool) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(_executed(tree)) if top_level_only else list(ast.walk(tree))
    for node in nodes:
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


@pytest.mark.parametrize("package", ALLOWED)
def test_no_import_upward(package: str) -> None:
    ours = set(ALLOWED)
    upward = [
        f"{name} imports {target}"
        for name, path in modules(package)
        for target in imports(path, top_level_only=False)
        if (top := target.split(".")[0]) in ours and top not in ALLOWED[package]
    ]
    assert not upward


def test_no_circle_between_files() -> None:
    known = {name: path for package in ALLOWED for name, path in modules(package)}
    graph = {
        name: {target for target in imports(path, top_level_only=True) if target in known and target != name}
        for name, path in known.items()
    }
    # A package's __init__ that gathers its own files is their door, not their user.
    for name, path in known.items():
        if path.name == "__init__.py":
            graph[name] = {target for target in graph[name] if not target.startswith(f"{name}.")}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_analysing_imports_neither_torch_nor_dash_nor_pyarrow(samples: Path) -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'dash', 'plotly', 'pyarrow', 'nvtx', 'sqlite_utils'):\n"
        "            raise ImportError(f'{name} must not be needed to analyse')\n"
        "sys.meta_path.insert(0, Block())\n"
        "import gpuscope\n"
        "analysis = gpuscope.analyze(sys.argv[1])\n"
        "print(analysis.report['verdict']['cause'], len(analysis.tables['ranks']))\n"
    )
    path = samples / "ddp_slow_loader"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["input", "2"], done.stderr


def test_keeping_an_analysis_imports_sqlite_utils_alone(samples: Path, tmp_path: Path) -> None:
    """The run store costs no pandas either, which sqlite-utils would import to know one more type."""
    code = (
        "import sys\n"
        "from gpuscope.cli import main\n"
        "try:\n    main(['analyze', *sys.argv[1:], '--json'])\nexcept SystemExit:\n    pass\n"
        "told = {'sqlite_utils', 'pandas', 'torch', 'dash', 'plotly', 'pyarrow', 'nvtx'} & set(sys.modules)\n"
        "print(*sorted(told), file=sys.stderr)\n"
    )
    store = tmp_path / "runs.db"
    env = {key: value for key, value in os.environ.items() if key != "GPUSCOPE_NO_STORE"}
    command = [sys.executable, "-c", code, str(samples / "ddp_healthy"), "--store", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert (done.stderr.split(), store.exists()) == (["sqlite_utils"], True)


def test_help_imports_nothing_heavy() -> None:
    """`gpuscope --help` must be quick: no numpy, no pandas, no rich."""
    code = (
        "import sys\n"
        "from gpuscope.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pandas', 'torch', 'dash', 'plotly', 'rich', 'msgspec', 'jinja2', 'sqlite_utils'}\n"
        "heavy &= set(sys.modules)\n"
        "print('heavy:', *sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy:"
