"""The tables that nccl-tests prints: which operation, over how many ranks, and each row's times."""

from __future__ import annotations

from dataclasses import field
from decimal import Decimal, InvalidOperation

from gpuscope import when_used
from gpuscope.trace.naming.kinds import collective_op
from gpuscope.trace.schema import NA, NS_PER_US
from gpuscope.when_used import dataclass

VARIANTS = ("out-of-place", "in-place")
_DEVICE = when_used.pattern(
    r"#\s+Rank\s+(\d{1,9}).*\bPid\s+(\d{1,18}) on\s+(\S+) device\s+(\d{1,9})\s+\[([^\]]*)\]\s*(.*)"
)
_TEST = when_used.pattern(r"# Collective test starting: (\w+)")
_ITERATIONS = when_used.pattern(r"(?<!warmup )(?<!agg )\biters: (\d{1,18})")
_WARMUP = when_used.pattern(r"\bwarmup iters: (\d{1,18})")
_AVERAGE = when_used.pattern(r"# Avg bus bandwidth\s*:\s*(\d+(?:\.\d+)?)")
_ROW = when_used.pattern(r"\s*\d{1,18}\s+\d+\s+\S+\s+\S+\s")
_LIMIT = 1 << 62


@dataclass(frozen=True)
class Device:
    """One rank as the list «Using devices» names it."""

    rank: int
    host: str
    pid: int
    device: int
    bus_id: str
    name: str


@dataclass(frozen=True)
class Row:
    """One timing: bytes, ns, bus bandwidth in B/s as printed, wrong elements."""

    op: str
    ranks: int
    size: int
    dur: int
    busbw: int
    variant: str
    wrong: int
    iterations: int
    warmup: int


@dataclass
class Tables:
    """What has been read so far; `feed` takes one whole line of text."""

    op: str = ""
    rows: list[Row] = field(default_factory=list)
    devices: dict[int, Device] = field(default_factory=dict)
    averages: list[float] = field(default_factory=list)
    unreadable: int = 0
    ranks: int = 0
    iterations: int = NA
    warmup: int = NA
    prefix: int = 0
    """Columns before the first time; 0 outside of a table."""

    def feed(self, line: str) -> None:
        """Take one line."""
        if not line.lstrip().startswith("#"):
            if self.prefix and _ROW.match(line):
                self._row(line.split())
            return
        if (match := _DEVICE.match(line)) is not None:
            device = Device(int(match[1]), match[3], int(match[2]), int(match[4]), match[5], match[6].strip())
            self.devices[device.rank] = device
            self.ranks = max(self.ranks, device.rank + 1)
        elif (match := _TEST.match(line)) is not None:
            self.op = collective_op(match[1])
        elif "nThread" in line:
            self._begin(line)
        elif "busbw" in line and "size" in line:
            titles = line.lstrip("# ").split()
            self.prefix = titles.index("time") if "time" in titles else 0
        elif (match := _AVERAGE.match(line)) is not None:
            self.averages.append(float(match[1]))

    def _begin(self, line: str) -> None:
        match, warmup = _ITERATIONS.search(line), _WARMUP.search(line)
        self.ranks, self.prefix, self.iterations = 0, 0, int(match[1]) if match else NA
        self.warmup = int(warmup[1]) if warmup else NA

    def _row(self, words: list[str]) -> None:
        values = words[self.prefix :]
        if len(values) % 4 or not values:
            self.unreadable += 1
            return
        for variant, start in zip(VARIANTS, range(0, len(values), 4), strict=False):
            time, _, busbw, wrong = values[start : start + 4]
            try:
                dur, rate = round(Decimal(time) * NS_PER_US), round(Decimal(busbw) * 10**9)
            except (InvalidOperation, ValueError, OverflowError):
                self.unreadable += 1
                continue
            if not (0 <= dur < _LIMIT and 0 <= rate < _LIMIT):
                self.unreadable += 1
                continue
            # «N/A» where not checked; old versions print an error.
            count = int(wrong) if wrong.isdecimal() and len(wrong) < 19 else NA
            self.rows.append(
                Row(self.op, self.ranks, int(words[0]), dur, rate, variant, count, self.iterations, self.warmup)
            )
