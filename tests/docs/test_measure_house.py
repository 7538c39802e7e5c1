"""`docs/measure_house.py` on small trees whose figures are counted by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def measure() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("measure_house")
    finally:
        sys.path.remove(str(DOCS))
        sys.modules.pop("measure_house", None)


def tree(root: Path, **files: str) -> Path:
    """A checkout with these modules, named with `__` for `/`."""
    for name, text in {"gpuscope": "", "analyzers": "", "instrumented_runtime": "", "dashboards": "", **files}.items():
        path = root / (f"{name.replace('__', '/')}.py" if name in files else f"{name}/__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "tests").mkdir()
    return root


def test_a_module_is_counted(measure: ModuleType) -> None:
    text = '"""Doc\nstring."""\n\n# why\nA = 1\n\n\ndef f():  # says\n    """Doc."""\n    return A\n'
    found = measure.read(text)
    assert (found.lines, found.functions, found.comments) == (10, (3,), 2)
    assert (found.code_lines, found.tokens) == (3, 3 + 5 + 2)  # `A = 1`, `def f ( ) :`, `return A`


@pytest.mark.parametrize("comment", ["# fmt: skip", "# noqa: E501  # fmt: skip"])
def test_an_exempted_line_is_counted_and_a_text_of_one_is_not(measure: ModuleType, comment: str) -> None:
    assert measure.read(f"A = 1  {comment}\n").skips == 1
    assert measure.read(f"A = '{comment}'\n").skips == 0


def test_imports_upward_and_circles_are_found(measure: ModuleType, tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        gpuscope__a="from gpuscope.b import B\n",
        gpuscope__b="def f():\n    from gpuscope.a import A\n",
        gpuscope__c="import gpuscope.analyzers.d\n",
        analyzers__d="",
    )
    graph = measure.file_graph(known := measure.modules(root))
    assert measure.upward(graph) == ["gpuscope.c imports gpuscope.analyzers.d"]
    assert "gpuscope.a → gpuscope.b → gpuscope.a" in measure.circles(graph, known)


def test_a_tree_in_order_has_neither(measure: ModuleType, tmp_path: Path) -> None:
    root = tree(tmp_path, gpuscope__a="A = 1\n", analyzers__d="from gpuscope.a import A\n\n\ndef f():\n    return A\n")
    found = dict(measure.rows(root, with_start=False))
    assert (found["product modules"], found["circles"], found["imports upward"]) == ("6", "0", "0")
    assert found["lines a function: median"] == "2"


def test_files_that_name_a_section(measure: ModuleType) -> None:
    assert measure.touched(['report["serving"]', "import serving_text", "serving", '"servings"'], "serving") == 2
