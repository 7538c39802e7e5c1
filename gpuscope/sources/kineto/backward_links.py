"""The forward operator of each of autograd's nodes, by the sequence number that torch.profiler writes on both.

An operator's number is that of the node it is about to make (`torch/csrc/autograd/record_function_ops`,
`at::sequence_number::peek`), so operators that make none have the number of the next one that does: of several it is
the last to begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.schema import Category

NODE = "autograd::engine::evaluate_function"
"""How an operator of autograd's engine is named."""

Rows = npt.NDArray[np.int64]


def backward_links(
    chunks: Sequence[tuple[str, int, dict[str, Any]]], names: NamePool, sequences: Sequence[Rows]
) -> tuple[Rows, Rows]:
    """Rows in host_events of autograd's nodes, and of the operators that made them, shape (n,) each.

    `chunks` are the tables' columns as read; `sequences` the rows and numbers of operators, shape (m, 2) each. Empty
    where neither lines nor modules were recorded, to which the links would lead.
    """
    numbered = np.concatenate([*sequences, np.empty((0, 2), np.int64)])
    host = [columns for table, _, columns in chunks if table == "host_events"]
    if not len(numbered) or not any((columns["category"] == Category.PYTHON).any() for columns in host):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    start = np.concatenate([columns["start"] for columns in host])
    name = np.concatenate([columns["name"] for columns in host])
    numbered = numbered[np.lexsort((start[numbered[:, 0]], numbered[:, 1]))]
    row, number = numbered.T
    is_node = names.matching(_is_node)[name[row]]
    last = np.where(is_node, -1, np.arange(len(row)))
    before = np.maximum.accumulate(last)  # the operator of any number that began last before each node
    nodes = np.flatnonzero(is_node & (before >= 0))
    linked = nodes[number[before[nodes]] == number[nodes]]
    return row[linked], row[before[linked]]


def _is_node(name: str) -> bool:
    return name.startswith(NODE)
