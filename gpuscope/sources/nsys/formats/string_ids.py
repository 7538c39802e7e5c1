"""Names in an nsys export: kept once in StringIds and referred to by id, or inline."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME, Codes, NamePool
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA

_RARER = re.compile(r", (?:sizes|input_op_ids) = ")
_OPERATOR = re.compile(r"\w+::|\w+Backward\d*$|autograd::engine::evaluate_function")


class StringTable:
    """StringIds: only the strings that some event refers to are ever made."""

    def __init__(self, tables: Tables, names: NamePool, needed: list[Times]) -> None:
        ids = tables.integers("StringIds", ("id",))["id"]
        rows = np.isin(ids, np.concatenate([distinct_values(column) for column in needed]))
        self._names = names
        self._ids = ids[rows]
        texts = list(tables.texts("StringIds", "value", rows))
        if len(texts) != len(self._ids):  # without the column `value`
            texts = [None] * len(self._ids)
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
        result = np.full(len(ids), NO_NAME, np.int32)
        known = ids != NA
        used, inverse = distinct(ids if known.all() else ids[known])
        if len(self._ids) and len(used):
            place = np.minimum(np.searchsorted(self._ids, used), len(self._ids) - 1)
            found = self._ids[place] == used
            codes = np.full(len(used), NO_NAME, np.int32)
            codes[found] = [encode(self._texts[i]) for i in place[found].tolist()]
            result[known] = codes[inverse]
        return result

    def text(self, string_id: int) -> str:
        """The text of a string id, "" where it is not there."""
        place = int(np.searchsorted(self._ids, string_id))
        return self._texts[place] if place < len(self._ids) and self._ids[place] == string_id else ""


class RangeNames:
    """Codes of NVTX texts, where what emit_nvtx adds to an operator's name is cut off.

    `torch.autograd.profiler.emit_nvtx` writes `aten::mm, seq = 7, op_id = 31, sizes = [[2, 3], [3, 4]]`
    (PyTorch `torch/csrc/profiler/util.cpp`, getNvtxStr): without the cut every call has a name of its own.
    """

    def __init__(self, names: NamePool) -> None:
        self._names = names
        self._operators: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of the name in a text."""
        # Called once per range: the two usual additions are cut without a regular expression.
        name = text.partition(", seq = ")[0].partition(", op_id = ")[0]
        if len(name) == len(text):
            name = _RARER.split(text, maxsplit=1)[0] if ", " in text else text
            if len(name) == len(text):
                return self._names.code(text)
        code = self._operators.get(name)
        if code is None:
            code = self._operators[name] = self._names.code(name)
        return code

    @property
    def operators(self) -> list[int]:
        """The codes that are operators of PyTorch."""
        return sorted(code for name, code in self._operators.items() if _OPERATOR.match(name))
