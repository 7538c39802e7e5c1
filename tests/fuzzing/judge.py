"""What happened to an input: read, read with problems, refused, or something that must not happen.

Bad are: an exception that is not an error message of gpuscope's (a traceback for a user), an analysis that failed, a
message that does not name the file, more CPU time or memory than the input's size explains, a program run from a
pickle, and a result that differs from the undamaged input's without a word about it.
"""

from __future__ import annotations

import json
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import gpuscope
from gpuscope.errors import GpuscopeError
from gpuscope.report.read_report import dumps
from gpuscope.trace.trace import Trace

CPU_SECONDS = 10.0
WALL_SECONDS = 60
MEMORY_MIB = 300
"""More than the process ever held before."""


@dataclass(frozen=True)
class Outcome:
    """`kind` is read, told, refused, or bad; `why` says more."""

    kind: str
    why: str = ""

    @property
    def is_bad(self) -> bool:
        return self.kind == "bad"


class HangError(BaseException):
    """The time is over; no ordinary handler catches it."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def over(_: int, __: FrameType | None) -> None:
        raise HangError

    previous = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def judged(act: Callable[[], Outcome]) -> Outcome:
    """The outcome of an action, its cost included."""
    cpu, peak = time.process_time(), _peak_mib()
    try:
        with _limited(WALL_SECONDS):
            found = act()
    except HangError:
        return Outcome("bad", f"not done after {WALL_SECONDS} s")
    except MemoryError:
        return Outcome("bad", "memory")
    except GpuscopeError as error:
        found = Outcome("refused", error.message)
    except Exception as error:  # of whatever kind: that is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("bad", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")
    spent, grown = time.process_time() - cpu, _peak_mib() - peak
    if spent > CPU_SECONDS:
        return Outcome("bad", f"{spent:.0f} s of CPU")
    if grown > MEMORY_MIB:
        return Outcome("bad", f"{grown:.0f} MiB of memory")
    return found


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass(frozen=True)
class Signature:
    """What is compared with the undamaged input's."""

    rows: dict[str, int]
    breakdown: str
    problems: frozenset[tuple[str, int]]
    abstained: bool

    @property
    def worked(self) -> int:
        """Rows that hold work, measurements or memory."""
        return sum(self.rows.values())


WORK = (
    "device_events",
    "host_events",
    "operations",
    "measurements",
    "choices",
    "communicators",
    "topology",
    "flight_records",
    "segments",
    "allocator_events",
)


def analysed(path: Path, *, partial: bool = False, advice: bool = False) -> Signature:
    """The whole way from file to JSON. Raises what that raises, `AssertionError` where an analysis failed."""
    trace = None if path.suffix == ".gsr" else gpuscope.open_trace(path, partial=partial)
    report = gpuscope.analyze(path, partial=partial, advice=advice).report
    # Causes of a part can be given other numbers: the report's own check of its sums then leaves those lanes out.
    checked = ("self_check",) if path.suffix == ".gsr" else ()
    failed = [entry for entry in report["analyzers"] if entry["status"] == "failed" and entry["name"] not in checked]
    assert not failed, f"analysis failed: {failed[0]}"
    json.loads(dumps(report))
    return _signature(trace, report)


def _signature(trace: Trace | None, report: Any) -> Signature:
    rows = {name: len(trace[name]) for name in WORK if len(trace[name])} if trace else {"ranks": len(report["ranks"])}
    parts = json.dumps([entry["recorded_breakdown_ns"] for entry in report["ranks"]])
    told = frozenset((problem["code"], problem["count"]) for problem in report["problems"])
    return Signature(rows, parts, told, bool(report["verdict"]["abstained"]))


def compared(found: Signature, whole: Signature, is_edit: bool) -> Outcome:
    """Whether what is missing or different was told."""
    new = found.problems - whole.problems
    if new:
        return Outcome("told", ", ".join(sorted(code for code, _ in new)))
    if whole.worked and not found.worked and not (found.abstained and not whole.abstained):
        return Outcome("bad", "nothing is left of it, without a word")
    if is_edit or found.abstained:
        return Outcome("read")
    if found.breakdown != whole.breakdown or found.rows != whole.rows:
        return Outcome("bad", f"another result without a word: {found.rows}, not {whole.rows}")
    return Outcome("read")


def judge(path: Path, whole: Signature, *, is_edit: bool, partial: bool, advice: bool, mark: Path) -> Outcome:
    """The outcome of one file."""

    def act() -> Outcome:
        return compared(analysed(path, partial=partial, advice=advice), whole, is_edit)

    found = judged(act)
    if mark.exists():
        mark.unlink()
        return Outcome("bad", "a program in a pickle was run")
    if found.kind == "refused" and path.name not in found.why:
        return Outcome("bad", f"the message does not name the file: {found.why}")
    return found
