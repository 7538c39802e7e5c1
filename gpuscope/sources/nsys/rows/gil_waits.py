"""Which waits for a lock were waits for Python's GIL, by the call chains that nsys records of them.

CPython takes the GIL in `take_gil`, which waits on a condition variable in turns of 5 ms (`Python/ceval_gil.c`). It is
a static function without a symbol in most builds, so its callers tell it: `PyEval_RestoreThread` (after a system call
or a C extension), `PyGILState_Ensure` (a callback of a C++ thread), and the evaluation loop itself, which gives the GIL
up for another thread. Other waits of CPython (`threading.Lock`, `queue`) go through `PyThread_acquire_lock*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gpuscope import when_used
from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.formats.string_ids import StringTable
from gpuscope.sources.nsys.rows.event_tables import NVTX, OSRT, Events
from gpuscope.trace.columns.distinct import distinct_values, mapped
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Mask, Times, is_constant
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA

_CHAINS = "OSRT_CALLCHAINS"
_TAKES_GIL = when_used.pattern(
    r"^(take_gil|PyEval_RestoreThread|PyEval_AcquireThread|PyEval_AcquireLock|PyGILState_Ensure"
    r"|_PyEval_EvalFrameDefault|_PyEval_EvalFrame)(\.|@|$)"
)
_BENEATH = when_used.pattern(r"(^|/)(libc|libpthread|ld-linux)[-.\w]*\.so|(^|/)nsight|(^|/)lib(ToolsInjection|cupti)")
_GIL_RANGE = when_used.pattern(r"\bwait\w*\b.*\bGIL\b", re.IGNORECASE)


def name_gil_waits(tables: Tables, events: Events, names: NamePool) -> None:
    """Give the waits for the GIL that name: operating-system calls by their call chain, ranges by their own."""
    waiting = names.matching(_is_gil_range)[events[NVTX]["name"]]
    if waiting.any():
        events[NVTX]["name"] = np.where(waiting, names.code(kinds.WAITS_FOR_GIL), events[NVTX]["name"])
    chain = events[OSRT].pop("callchainId")
    if _CHAINS not in tables.names() or is_constant(chain):
        return
    waits = names.matching(kinds.is_lock_or_sleep_call)[events[OSRT]["name"]] & (chain != NA)
    if waits.any():
        waits &= np.isin(chain, _taking(tables, names, np.unique(chain[waits]).astype(np.int64)))
        events[OSRT]["name"] = np.where(waits, names.code(kinds.WAITS_FOR_GIL), events[OSRT]["name"])


def _taking(tables: Tables, names: NamePool, chains: Times) -> Times:
    """Those of some call chains of which the first function with a name, outside of the C library, takes the GIL, and
    lies in the same file as all before it."""
    frames = tables.integers(_CHAINS, ("id", "symbol", "module", "stackDepth"))
    own = np.flatnonzero(np.isin(frames["id"], chains))
    own = own[np.lexsort((frames["stackDepth"][own], frames["id"][own]))]
    chain, symbol, file = (frames[column][own] for column in ("id", "symbol", "module"))
    strings = StringTable(tables, names, [symbol, file])
    outside = np.flatnonzero(~_are(strings, file, _is_beneath))
    _, place = np.unique(chain[outside], return_index=True)
    began = file[outside][place]
    named = outside[_are(strings, symbol[outside], _has_name)]
    found, place = np.unique(chain[named], return_index=True)
    caller = named[place]
    began = began[places(np.unique(chain[outside]), found)]
    takes: Times = found[_are(strings, symbol[caller], _takes_gil) & (began == file[caller])]
    return takes


def _are(strings: StringTable, ids: Times, test: Callable[[str], bool]) -> Mask:
    """Which string ids have texts that pass a test; each text is asked once."""
    used = distinct_values(ids).astype(np.int64)
    passed: Mask = np.array([test(strings.text(one)) for one in used.tolist()], np.bool_)
    return np.asarray(mapped(ids, used, passed))


def _is_gil_range(name: str) -> bool:
    return bool(_GIL_RANGE.search(name))


def _takes_gil(name: str) -> bool:
    return bool(_TAKES_GIL.match(name))


def _is_beneath(file: str) -> bool:
    """Whether a file is of the C library or of the profiler, which stand between a wait and its caller."""
    return bool(_BENEATH.search(file))


def _has_name(name: str) -> bool:
    return bool(name) and not name.startswith(("0x", "["))
