"""Names in an nsys export: kept once in StringIds and referred to by id, or inline."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gpuscope import when_used
from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.formats.range_texts import RangeTexts, cut
from gpuscope.trace.columns.distinct import distinct_values, mapped
from gpuscope.trace.columns.name_pool import NO_NAME, Codes, NamePool
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.schema import NA

_OPERATOR = when_used.pattern(r"\w+::|\w+Backward\d*$|autograd::engine::evaluate_function")


class StringTable:
    """StringIds: only the strings that some event refers to are ever made."""

    def __init__(self, tables: Tables, names: NamePool, needed: Iterable[Array]) -> None:
        ids = tables.integers("StringIds", ("id",))["id"]
        rows = np.isin(ids, np.concatenate([distinct_values(column).astype(np.int64) for column in needed]))
        self._names = names
        self._ids = ids[rows]
        texts = list(tables.texts("StringIds", "value", rows))
        there = np.array([text is not None for text in texts], np.bool_)
        self._ids = self._ids[there]
        self._texts = [text for text in texts if text is not None]
        order = np.argsort(self._ids, kind="stable")
        self._ids = self._ids[order]
        self._texts = [self._texts[i] for i in order.tolist()]

    def codes(self, ids: Times, encode: Callable[[str], int] | None = None) -> Codes:
        """The name codes of string ids, shape (n,); `NO_NAME` for an id that is absent or not there.

        `encode` turns a text into a code; by default it is interned as it stands.
        """
        encode = encode or self._names.code
        known = ids != NA
        if not known.all():
            result = np.full(len(ids), NO_NAME, np.int32)
            result[known] = self.codes(ids[known], encode)
            return result
        used = distinct_values(ids).astype(np.int64)
        codes = np.full(len(used), NO_NAME, np.int32)
        if len(self._ids) and len(used):
            place = np.minimum(np.searchsorted(self._ids, used), len(self._ids) - 1)
            found = self._ids[place] == used
            codes[found] = [encode(self._texts[i]) for i in place[found].tolist()]
        return mapped(ids, used, codes)

    def text(self, string_id: int) -> str:
        """The text of a string id, "" where it is not there."""
        place = int(np.searchsorted(self._ids, string_id))
        return self._texts[place] if place < len(self._ids) and self._ids[place] == string_id else ""


class RangeNames:
    """Codes of NVTX texts after the cut (`range_texts`)."""

    def __init__(self, names: NamePool) -> None:
        self._names = names
        self._operators: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of the name in a text."""
        name = cut(text)
        return self._code(name, len(name) < len(text))

    def codes(self, texts: RangeTexts) -> Codes:
        """The code of each text, `NO_NAME` where there is none; shape (n,)."""
        own = [self._code(name, shortened) for name, shortened in zip(texts.names, texts.cut, strict=True)]
        return np.array([*own, NO_NAME], np.int32)[texts.place]  # the place −1 is the last

    def _code(self, name: str, shortened: bool) -> int:
        code = self._names.code(name)
        if shortened:
            self._operators[name] = code
        return code

    @property
    def operators(self) -> list[int]:
        """The codes that are operators of PyTorch."""
        return sorted(code for name, code in self._operators.items() if _OPERATOR.match(name))
