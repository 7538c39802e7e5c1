"""docs/history.md says what the run store holds and what a comparison says, both ways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from gpuscope.report.schema.diff_document import Diff
from gpuscope.store.tables import TABLES, VIEWS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "history.md").read_text(encoding="utf-8")


def rows(text: str) -> set[str]:
    cells = re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def keys(kind: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of a TypedDict; a run and a collective are described once, under `before`."""
    if is_typeddict(kind):
        for key, value in get_type_hints(kind).items():
            inner = f"{path}.{key}" if path else key
            yield inner
            if key != "after":
                yield from keys(value, inner)
    elif get_origin(kind) is list:
        yield from keys(get_args(kind)[0], f"{path}[]")
    else:
        for member in get_args(kind):
            yield from keys(member, path)


def test_every_key_of_a_comparison_is_documented_and_no_other() -> None:
    section = PAGE.partition("\n## The comparison as JSON\n")[2].partition("\n## ")[0]
    assert rows(section) == set(keys(Diff))


def test_every_table_column_and_view_is_documented_and_no_other() -> None:
    section = PAGE.partition("\n## Tables of the store\n")[2].partition("\n## ")[0]
    intro, *tables = section.split("\n### ")
    documented = {part.partition("\n")[0].strip("`"): rows(part) for part in tables}
    assert documented == {table.name: {column.name for column in table.columns} for table in TABLES}
    assert all(f"`{view}`" in intro for view in VIEWS)
