"""Sections of a document as DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def table(owner: object, name: str, tables: SectionTables) -> pd.DataFrame:
    """The table that `owner.name` stands for. Raises `AttributeError`, with the name that was probably meant."""
    try:
        return tables[name]
    except KeyError:
        known = name in tables.rows
    why = ": this run has no such section" if known else did_you_mean(name, dir(owner))
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{why}", name=name, obj=owner)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'kernels'?`; empty where no known name is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, [one for one in known if not one.startswith("_")], 1)
    return f": did you mean {close[0]!r}?" if close else ""


class SectionTables(Mapping[str, "pd.DataFrame"]):
    """The sections of `document` that are lists, by name; each becomes a DataFrame when it is asked for.

    A row's keys are the columns, nested keys dotted (`breakdown_ns.idle`). `rows` has every section that may be there
    and what a row of it holds; of these only the sections that `document` has are in the mapping. `tables.kernels` is
    `tables["kernels"]`.
    """

    def __init__(self, document: Mapping[str, Any], rows: Mapping[str, type]) -> None:
        self._document, self._rows = document, rows

    @property
    def rows(self) -> Mapping[str, type]:
        """Every section that may be there, and what a row of it holds."""
        return self._rows

    def __getitem__(self, section: str) -> pd.DataFrame:
        import pandas as pd

        if section not in self._rows:
            raise KeyError(f"{section!r}{did_you_mean(section, self._rows)}")
        if section not in self._document:
            raise KeyError(f"{section!r}: this run has no such section")
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

    if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

        def __getattr__(self, name: str) -> pd.DataFrame:
            if name.startswith("_"):  # asked for by copying and pickling, before there is a document
                raise AttributeError(name)
            return table(self, name, self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def __repr__(self) -> str:
        return f"SectionTables({', '.join(self)})"
