"""Sections of a document as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class SectionTables(Mapping[str, "pd.DataFrame"]):
    """The sections of `document` that are lists, by name; each becomes a DataFrame when it is asked for.

    A row's keys are the columns, nested keys dotted (`breakdown_ns.idle`). `rows` has every section that may be there
    and what a row of it holds; of these only the sections that `document` has are in the mapping.
    """

    def __init__(self, document: Mapping[str, Any], rows: Mapping[str, type]) -> None:
        self._document, self._rows = document, rows

    def __getitem__(self, section: str) -> pd.DataFrame:
        import pandas as pd

        if section not in self._rows or section not in self._document:
            raise KeyError(section)
        rows = self._document[section]
        frame = pd.json_normalize([{key: value for key, value in row.items() if key != "facts"} for row in rows])
        if any("facts" in row for row in rows):  # of every kind others: one column of dictionaries
            frame["facts"] = [row.get("facts") for row in rows]
        # An empty table still has its columns, so that it can be written and read.
        return frame if len(frame) else pd.DataFrame(columns=list(self._rows[section].__annotations__))

    def __iter__(self) -> Iterator[str]:
        return (section for section in self._rows if section in self._document)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"SectionTables({', '.join(self)})"
