"""gloo's collectives of a rank, as JSON lines, and as arguments of the trace's `gloo:` annotations.

The lines are of two types: `group` (name, description, ranks) and `collective` (the fields of
`collective_log.Collective` and the rank). In the trace each annotation gets the arguments that NCCL's
have: «Collective name», «In msg nelems», «Process Group Name», «Seq»…
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from gpuscope.instrumented_runtime.record.gloo import gloo_trace, last_calls
from gpuscope.instrumented_runtime.record.gloo.collective_log import LOG, Collective
from gpuscope.instrumented_runtime.record.run_folder import PARTS, RankFolder


class Collectives:
    """Writes the log as it fills, so that a killed rank leaves all but its last step."""

    name = "collectives"

    def __init__(self) -> None:
        self.seen: list[Collective] = []
        self._file: IO[str] | None = None
        self._groups: set[str] = set()

    def start(self, folder: RankFolder) -> None:
        """No file is created before the first collective."""
        import torch.distributed as dist

        self._folder = folder
        late = dist.is_available() and dist.is_initialized() and not gloo_trace.installed()
        if late and dist.get_backend() == "gloo":
            folder.problem(
                "collectives_unseen",
                "gloo's collectives are not logged: the session was opened after init_process_group",
                severity="info",
            )
        gloo_trace.install()
        LOG.keep(last_calls.page(folder.path / PARTS, folder.part.rank), None)

    def step(self, step: int) -> None:
        """Write what has completed."""
        del step
        self._write(LOG.drain())

    def stop(self) -> None:
        """Write the rest, including unfinished ones."""
        LOG.keep(None, None)
        self._write(LOG.drain() + LOG.pending())
        if self._file is not None:
            self._file.close()
            self._folder.add_file(self._path, self.name)

    def rewrite(self, trace: Path) -> None:
        """Add the logged arguments to a trace's gloo annotations."""
        self._write(LOG.drain())
        # The last one's end may not be logged yet; without it all others would be taken for their neighbours.
        logged = self.seen + LOG.undrained()
        if logged:
            text = trace.read_text(encoding="utf-8")
            trace.write_text(with_arguments(text, logged, self._folder.part.rank), encoding="utf-8")

    @property
    def _path(self) -> Path:
        return self._folder.file(f"collectives/rank{self._folder.part.rank}.jsonl")

    def _write(self, collectives: Sequence[Collective]) -> None:
        if not collectives:
            return
        self.seen += collectives
        if self._file is None:
            self._file = self._path.open("w", encoding="utf-8")
            self._folder.add_file(self._path, self.name)  # listed now, in case this rank is killed
        for entry in collectives:
            if entry.group.name not in self._groups:
                self._groups.add(entry.group.name)
                self._line(type="group", **_fields(entry.group))
            fields = _fields(entry) | {"group": entry.group.name, "bytes": entry.bytes}
            self._line(type="collective", rank=self._folder.part.rank, **fields)
        self._file.flush()

    def _line(self, **values: Any) -> None:
        assert self._file is not None
        self._file.write(json.dumps(values, separators=(",", ":")) + "\n")


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


# gloo's name of the operation that implements another one.
TITLES = {"reduce_scatter": "all_reduce"}

_ANNOTATION = re.compile(
    r'"name": "gloo:(?P<title>\w+)"[^{}]*?"ts": (?P<ts>[\d.]+),\s*"dur": (?P<dur>[\d.]+)\s*,\s*"args": \{'
    r"(?P<args>[^{}]*)\}"
)
_BASE = re.compile(r'"baseTimeNanoseconds": (\d+)')
_DIMS = re.compile(r'"Input Dims": (\[.*?\])(?:, "|\s*$)', re.DOTALL)


def with_arguments(text: str, collectives: Sequence[Collective], rank: int) -> str:
    """The trace's text with arguments in its gloo annotations, otherwise unchanged.

    gloo starts operations of one kind in order of issue, so those in the trace are consecutive in the log.
    Where they begin is found from the times; an annotation whose recorded size differs from the log's stays
    unchanged.
    """
    base = _BASE.search(text)
    offset_ns = int(base.group(1)) if base else 0
    titles: dict[str, list[re.Match[str]]] = {}
    for match in _ANNOTATION.finditer(text):
        titles.setdefault(match["title"], []).append(match)
    inserts: list[tuple[int, str]] = []
    for title, matches in titles.items():
        logged = [entry for entry in collectives if TITLES.get(entry.op, entry.op) == title]
        matches.sort(key=lambda match: _nanoseconds(match["ts"]))
        starts = [offset_ns + _nanoseconds(match["ts"]) for match in matches]
        ends = [start + _nanoseconds(match["dur"]) for start, match in zip(starts, matches, strict=True)]
        run = logged[_first_of_run(starts, ends, logged) :]
        for match in matches:
            entry = next((entry for entry in run[:8] if _same_size(match["args"], entry)), None)
            if entry is not None:
                run.remove(entry)
                inserts.append((match.start("args"), _arguments(entry, rank)))
    return _inserted(text, inserts)


def _nanoseconds(microseconds: str) -> int:
    """Parsed from the text: a float would lose the last digits of an epoch timestamp."""
    whole, _, fraction = microseconds.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _first_of_run(starts: Sequence[int], ends: Sequence[int], logged: Sequence[Collective]) -> int:
    """Index in `logged` at which the annotations fit best between issue and completion.

    Ends missing from the log, or whole collectives missing at its end, must not shift the others: judged by the mean
    over those that have a partner, at least half of them.
    """
    near = bisect.bisect_left([entry.issued_ns for entry in logged], starts[0])
    candidates = range(max(0, near - 16), min(len(logged), near + 16))

    def misfit(first: int) -> tuple[bool, float]:
        pairs = list(zip(starts, ends, logged[first:], strict=False))
        outside = sum(
            max(0, entry.issued_ns - start) + max(0, end - (entry.completed_ns or end)) for start, end, entry in pairs
        )
        return 2 * len(pairs) < len(starts), outside / len(pairs)

    return min(candidates, key=misfit, default=0)


def _same_size(args: str, entry: Collective) -> bool:
    """Whether the recorded input shapes, if any, hold as many elements as were logged."""
    found = _DIMS.search(args)
    if found is None or entry.is_p2p:
        return True
    elements = 0
    for dims in json.loads(found.group(1)):
        size = 1
        for length in dims if isinstance(dims, list) else [dims]:
            size *= length
        elements += size if dims else 0
    return elements in (0, entry.elements_in, entry.elements_out)


def _arguments(entry: Collective, rank: int) -> str:
    values: dict[str, Any] = {
        "Collective name": entry.op,
        "In msg nelems": entry.elements_in,
        "Out msg nelems": entry.elements_out,
        "dtype": entry.dtype,
        "Group size": len(entry.group.ranks),
        "Process Group Name": entry.group.name,
        "Process Group Description": entry.group.description,
        "Process Group Ranks": str(list(entry.group.ranks)),
        "Seq": entry.p2p_seq if entry.is_p2p else entry.seq,
        "Rank": rank,
        "Issued ns": entry.issued_ns,
    }
    if entry.is_p2p:
        values |= {"Src Rank": entry.src, "Dst Rank": entry.dst}
    return json.dumps(values)[1:-1] + ", "


def _inserted(text: str, inserts: list[tuple[int, str]]) -> str:
    pieces, last = [], 0
    for position, addition in sorted(inserts):
        pieces += [text[last:position], addition]
        last = position
    return "".join([*pieces, text[last:]])
