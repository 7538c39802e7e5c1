"""What a Kineto file shows of records that were dropped: gaps in its ids, and its own warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope import when_used
from gpuscope.sources.kineto.event_arguments import as_list
from gpuscope.trace.columns.distinct import distinct_values

_TRIMMED = 0.01
"""Part of the ids left out at each end: a thread that idled since before the recording has ids far from the rest."""
_BLOCK = 512
"""Ids that torch gives to a thread at a time (`RecordQueue`'s `EventBlock`): 1 to 512, 513 to 1,024…"""
_LOGS = ("WARNING", "ERROR")
"""Keys under which libkineto's `ChromeTraceLogger::finalizeTrace` keeps what it logged."""
_LOST = when_used.pattern(r"\b(?:dropped|lost)\b", re.IGNORECASE)
_RECORDS = when_used.pattern(r"\b(?:events?|records?|samples?|buffers?|activit(?:y|ies))\b", re.IGNORECASE)
_COUNT = when_used.pattern(
    r"\b(?:dropped|lost)(?:\s+[a-z]+){0,3}[\s:]+(\d+)\b|\b(\d+)(?:\s+[a-z]+){0,4}\s+(?:dropped|lost)\b", re.IGNORECASE
)
"""`CuptiActivityApi` logs «Dropped N activity records», by `cuptiActivityGetNumDroppedRecords`."""


def operator_ids(blocks: Sequence[npt.NDArray[np.int64]]) -> dict[str, int]:
    """Columns of `recording` for the External ids of operators; empty where there are none.

    The framework numbers operators one by one within a thread's block of ids, so that a whole recording holds nearly
    all ids of the blocks that it touches; a block without any belongs to a thread whose events are no operators.
    """
    ids = distinct_values(np.concatenate(blocks)) if blocks else np.empty(0, np.int64)
    cut = int(len(ids) * _TRIMMED)
    kept = ids[cut : len(ids) - cut]
    if not len(kept):
        return {}
    touched = distinct_values((kept - 1) // _BLOCK)
    foreign = int(touched[-1]) - int(touched[0]) + 1 - len(touched)
    return {"operator_ids": len(kept), "operator_id_span": int(kept[-1]) - int(kept[0]) + 1 - foreign * _BLOCK}


def dropped(header: Mapping[str, Any]) -> int:
    """Records that libkineto says it dropped, as the log lines in the file's header have it; 0 where it says none."""
    lines = [line for key in _LOGS for line in as_list(header.get(key)) if isinstance(line, str)]
    return dropped_in(lines)


def dropped_in(lines: Sequence[str]) -> int:
    """How many records the lines of a profiler's log say were dropped or lost; one where a line gives no number."""
    return sum(_lost_in(line) for line in lines if _LOST.search(line) and _RECORDS.search(line))


def _lost_in(line: str) -> int:
    match = _COUNT.search(line)
    return int(match[1] or match[2]) if match else 1
