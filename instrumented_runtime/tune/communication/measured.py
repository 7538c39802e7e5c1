"""What a search measured, and what of it a job can be given: rows for NCCL's tuner, or variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuscope.errors import UsageError
from gpuscope.hardware.tuner_rows import ANY, HEAD, LARGEST, OPERATIONS, size_ranges, tuner_line


@dataclass(frozen=True)
class Tried:
    """One candidate at one size."""

    op: str
    ranks: int
    nbytes: int
    calls: int
    """How often the job's trace has it."""
    candidate: str
    settings: Mapping[str, str]
    pieces: int
    time_ns: int
    """The median of the rounds."""
    rounds_ns: tuple[int, ...]
    """One call in each round."""
    gain_frac: float
    certain: bool
    """Whether it beats the default beyond what rounds differ by."""
    algorithm: str | None
    protocol: str | None
    channels: int | None


@dataclass(frozen=True)
class Searched:
    """Every candidate's times, and those that could not run, with why."""

    backend: str
    torch_version: str
    rounds: int
    iterations: int
    rows: tuple[Tried, ...]
    failed: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """The proof: all rounds' times."""
        return asdict(self)

    def best(self) -> list[Tried]:
        """Per operation, ranks and size the fastest certain gain; where there is none, the default."""
        found: dict[tuple[str, int, int], Tried] = {}
        for row in self.rows:
            key = row.op, row.ranks, row.nbytes
            now = found.get(key)
            if now is None or (row.certain and (not now.certain or row.time_ns < now.time_ns)):
                found[key] = row
        return list(found.values())

    def variables(self) -> Mapping[str, str]:
        """Those of the one candidate that takes least for all calls of the job, whose slowest rounds together are
        faster than the default's fastest; empty where there is none. Only of what variables alone can set, for all
        operations alike."""
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        rows: dict[str, list[Tried]] = defaultdict(list)
        for row in self.rows:
            rows[row.candidate].append(row)
            for place, ns in enumerate((min(row.rounds_ns), row.time_ns, max(row.rounds_ns))):
                sums[row.candidate][place] += ns * row.calls
        first = self.rows[0].candidate if self.rows else ""  # the default
        whole = [
            name
            for name, own in rows.items()
            if len(own) == len(rows[first])
            and all(row.settings and row.pieces == 1 for row in own)
            and sums[name][2] < sums[first][0]
        ]
        return rows[min(whole, key=lambda name: sums[name][1])][0].settings if whole else {}


def tuner_text(found: Searched) -> str:
    """The rows for NCCL's tuner plugin: at each size the certain gain, else what NCCL chose; LL128 becomes Simple.

    Raises `UsageError` where NCCL's log did not tell choices or channels.
    """
    best = [row for row in found.best() if row.op in OPERATIONS]
    if any(row.algorithm is None or row.channels is None for row in best):
        raise UsageError("NCCL's log does not say which algorithm, protocol and channels it chose by itself")
    lines: list[str] = []
    for op, ranks in sorted({(row.op, row.ranks) for row in best}):
        own = sorted((row for row in best if (row.op, row.ranks) == (op, ranks)), key=lambda row: row.nbytes)
        chosen = {
            row.nbytes: (str(row.algorithm), "simple" if row.protocol == "ll128" else str(row.protocol), row.channels)
            for row in own
        }
        lines += [tuner_line(op, low, high, *choice, 1, ranks) for low, high, choice in size_ranges(chosen)]
    most = max(row.channels or 1 for row in best)
    lines += [tuner_line(op, 0, LARGEST, "ring", "simple", most, ANY, ANY) for op in OPERATIONS]
    return "\n".join([*HEAD, *lines]) + "\n"
