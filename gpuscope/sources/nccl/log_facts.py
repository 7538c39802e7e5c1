"""What NCCL's log lines say: communicators, their channels and connections, the algorithm of each size."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import field
from decimal import Decimal, InvalidOperation

from gpuscope import when_used
from gpuscope.recorded_environment import allowed
from gpuscope.trace.kinds import collective_op
from gpuscope.trace.schema import NA, NS_PER_US
from gpuscope.when_used import dataclass

# NCCL's log lines separated from other text in a file, also where one landed in the middle of another.
#
# A process writes its table row in pieces while NCCL logs to the same stream, so a line can hold the beginning
# of a row, then a log line; the rest of the row follows later. Log lines are known by `host:pid:tid [dev] NCCL`.

_PREFIX = r":(\d{1,18}):(\d{1,18}) \[(-?\d{1,9})\] NCCL (INFO|WARN|TRACE|VERSION) ?"
_AT_START = when_used.pattern(r"(?:^|[\]\s])([A-Za-z0-9][\w.-]*)" + _PREFIX)
_USING_DEVICE = when_used.pattern(r"#\s+Rank\s+\d+.*\bPid\s+\d+ on\s+(\S+) device")


@dataclass(frozen=True)
class Line:
    """A log line of one thread; `device` is the number in brackets."""

    host: str
    pid: int
    tid: int
    device: int
    text: str
    warns: bool = False


def hosts(lines: Iterable[str]) -> list[str]:
    """The host names at the beginning of log lines and in nccl-tests' list of devices, the longest first."""
    found: set[str] = set()
    for line in lines:
        match = _AT_START.match(line) if "NCCL " in line else _USING_DEVICE.match(line)
        if match:
            found.add(match[1])
    return sorted(found, key=lambda name: (-len(name), name))


def separate(lines: Iterable[str], known: Iterable[str]) -> Iterator[Line | str]:
    """Log lines as `Line`, all other text as whole lines put together from their pieces."""
    names = "|".join(map(re.escape, known)) or r"[A-Za-z][\w.-]*"
    begins = re.compile(f"({names}){_PREFIX}")
    piece = ""
    for line in lines:
        if "NCCL" not in line:
            yield piece + line
            piece = ""
            continue
        matches = list(begins.finditer(line))
        if not matches:
            yield piece + line
            piece = ""
            continue
        piece += _before(line[: matches[0].start()])
        for match, following in zip(matches, [*matches[1:], None], strict=True):
            text = line[match.end() : following.start() if following else None].strip()
            yield Line(match[1], int(match[2]), int(match[3]), int(match[4]), text, match[5] == "WARN")
    if piece:
        yield piece


def _before(text: str) -> str:
    """What stands before a log line: part of a row, or only a launcher's time stamp and rank."""
    return "" if text.rstrip().endswith((":", "]", ">")) else text


# The tables that nccl-tests prints: which operation, over how many ranks, and each row's times.

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


ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
"""NCCL's numbers for them (src/include/nccl_common.h), as logs before 2.26 print them."""

_SET = when_used.pattern(r"\b(NCCL_[A-Z0-9_]+) set by environment to (\S{1,200})")
_VERSION = when_used.pattern(r"NCCL version (\S+)")
_INIT = when_used.pattern(
    r"comm (0x[0-9a-f]+) rank (\d{1,9}) n[rR]anks (\d{1,9}) cudaDev (\d{1,9})(?: nvmlDev \d+)? busId (\w+)"
    r"(?: commId (0x[0-9a-f]+))?.* - Init (START|COMPLETE)"
)
_NODES = when_used.pattern(r"comm (0x[0-9a-f]+) rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9})")
_CHANNELS = when_used.pattern(r"(\d{1,9}) coll channels,.*?(\d{1,9}) p2p channels")
_RING = when_used.pattern(r"Channel (\d{1,9})/(\d{1,9}) :(?: +\d+)+ *$")
_TREES = when_used.pattern(r"Trees(?: \[\d+\] \S+)+")
_VIA = when_used.pattern(
    r"Channel \d+(?:/\d+)? : (\d{1,9})\[\w+\] -> (\d{1,9})\[\w+\] ?(\[(?:send|receive)\])? via (\S.*)"
)
_COUNT = when_used.pattern(r"(\w+): opCount \S+ .*\[nranks=(\d{1,9})\]")
_GDR = when_used.pattern(r"GPU Direct RDMA (Disabled|Enabled) for HCA \d{1,9} '([^']{1,200})'")
_NETWORK = when_used.pattern(r"Using network (\S{1,100})")
_NO_RDMA = (
    ("libibverbs", when_used.pattern(r"Failed to open libibverbs")),
    ("no_device", when_used.pattern(r"NET/IB ?: No device found|NET/IB ?: Unable to open device")),
)
"""Why NCCL takes sockets, as its own lines say it."""
_ADDRESS = when_used.pattern(
    r"(?:Bootstrap ?: Using |NET/Socket ?: Using (?:\[\d+\])?)[\w.-]+:([\d.]+|\[?[0-9a-f:]+\]?)<\d+>"
)
_PORT = when_used.pattern(r"(\w{1,60}):(?:uverbs\d{1,9}:)?\d{1,9}/(RoCE|IB)\b")
_CHOICE = when_used.pattern(
    r"(?:(\w+): )?(\d{1,18}) Bytes -> Algo (\w+) proto (\w+)(?: time [\d.]+)?"
    r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\})?"
)


@dataclass
class Communicator:
    """One rank's view of a communicator; what all its ranks call it is `name`, where recorded."""

    host: str
    rank: int
    size: int
    name: str = ""
    device: int | None = None
    bus_id: str = ""
    nodes: int | None = None
    channels: int | None = None
    p2p_channels: int | None = None
    rings: int = 0
    trees: int = 0
    process: tuple[str, int] = ("", 0)


@dataclass(frozen=True)
class Choice:
    """An operation and size (`op` empty where unknown) and what NCCL chose for it."""

    op: str
    size: int
    algorithm: str
    protocol: str
    channels: int | None
    group_size: int | None = None
    """Ranks of the communicator, where the operation was logged before the choice."""


@dataclass
class Facts:
    """What has been read so far; `feed` takes one log line."""

    version: str = ""
    communicators: dict[tuple[str, int, str, int], Communicator] = field(default_factory=dict)
    """By host, process, pointer and rank: threads of one process share nothing of it."""
    connections: Counter[tuple[str, int, int, str, str]] = field(default_factory=Counter)
    """By communicator, sender, receiver, transport and the side that logged it."""
    choices: Counter[Choice] = field(default_factory=Counter)
    chosen_by: dict[Choice, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    size: int = 0
    op: str = ""
    """Of the last operation called, over `size` ranks."""
    lines: int = 0
    _current: dict[tuple[str, int, int], Communicator] = field(default_factory=dict)
    environment: set[tuple[str, str]] = field(default_factory=set)
    """Variables of NCCL and their values as it says they were set."""
    networks: set[str] = field(default_factory=set)
    """What carries messages between hosts: IB, Socket, or a plugin's name."""
    ports: dict[str, str] = field(default_factory=dict)
    """Network ports by name: RoCE or IB."""
    direct: dict[str, bool] = field(default_factory=dict)
    """Whether GPUDirect RDMA is enabled, by network port; one host that lacks it counts."""
    no_rdma: set[str] = field(default_factory=set)
    """Why there is no RDMA, where lines say it (`_NO_RDMA`)."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Hosts by the addresses that they listen on."""
    calls: int = 0
    """Operations that were logged when they were called."""
    _called: dict[tuple[str, int, int], tuple[str, int]] = field(default_factory=dict)

    def feed(self, line: Line) -> None:
        """Take one line."""
        self.lines += 1
        text = line.text
        if "Bytes -> Algo" in text:
            self._choice(line)
        elif "opCount" in text:
            if (match := _COUNT.match(text)) is not None:
                self.calls += 1
                self.op, self.size = collective_op(match[1]), int(match[2])
                self._called[line.host, line.pid, line.tid] = self.op, self.size
        elif text.startswith("Channel "):
            self._channel(line)
        elif " comm 0x" in text or text.startswith("comm 0x"):
            self._communicator(line)
        elif "coll channels" in text or text.startswith("Trees "):
            self._counts(line)
        elif (match := _VERSION.search(text)) is not None:
            self.version = match[1]
        elif (match := _SET.search(text)) is not None:
            # Integers are logged with a full stop behind them (`ncclLoadParam`), texts without.
            value = match[2].rstrip(".")
            if allowed(match[1]):
                self.environment.add((match[1], value if value.lstrip("-").isdecimal() else match[2]))
        else:
            if (match := _ADDRESS.search(text)) is not None:
                self.addresses[match[1]] = line.host
            self._network(text)

    def _network(self, text: str) -> None:
        self.no_rdma |= {code for code, pattern in _NO_RDMA if pattern.search(text)}
        if (match := _GDR.search(text)) is not None:
            self.direct[match[2]] = self.direct.get(match[2], True) and match[1] == "Enabled"
        elif (match := _NETWORK.search(text)) is not None:
            self.networks.add(match[1])
        elif "NET/IB" in text:
            self.ports |= {match[1]: match[2] for match in _PORT.finditer(text)}

    def rank_of(self, process: tuple[str, int]) -> int | None:
        """The rank of a process in its largest communicator; None where it has several there."""
        own = [comm for comm in self.communicators.values() if comm.process == process]
        largest = max((comm.size for comm in own), default=0)
        ranks = {comm.rank for comm in own if comm.size == largest}
        return ranks.pop() if len(ranks) == 1 else None

    def _choice(self, line: Line) -> None:
        match = _CHOICE.match(line.text)
        if match is None:
            return
        called, size = self._called.get((line.host, line.pid, line.tid), ("", 0))
        op = collective_op(match[1]) if match[1] else called
        channels = int(match[6]) - int(match[5]) + 1 if match[5] else None
        names = _name(match[3], ALGORITHMS), _name(match[4], PROTOCOLS)
        # What was called last is this operation only if it is of that kind.
        choice = Choice(op, int(match[2]), *names, channels, (size or None) if op == called else None)
        self.choices[choice] += 1
        self.chosen_by[choice].add((line.host, line.device))

    def _communicator(self, line: Line) -> None:
        if (match := _INIT.search(line.text)) is not None:
            comm = self._at(line, match[1], int(match[2]), int(match[3]))
            comm.device, comm.bus_id, comm.name = int(match[4]), match[5], match[6] or comm.name
        elif (match := _NODES.search(line.text)) is not None:
            self._at(line, match[1], int(match[2]), int(match[3])).nodes = int(match[4])

    def _at(self, line: Line, pointer: str, rank: int, size: int) -> Communicator:
        key = (line.host, line.pid, pointer, rank)
        made = Communicator(line.host, rank, size, process=(line.host, line.pid))
        comm = self.communicators.setdefault(key, made)
        self._current[line.host, line.pid, line.tid] = comm
        return comm

    def _counts(self, line: Line) -> None:
        comm = self._current.get((line.host, line.pid, line.tid))
        if comm is None:
            return
        if (match := _CHANNELS.search(line.text)) is not None:
            comm.channels, comm.p2p_channels = int(match[1]), int(match[2])
        elif _TREES.match(line.text):
            comm.trees = line.text.count("[")

    def _channel(self, line: Line) -> None:
        if (match := _RING.match(line.text)) is not None:
            comm = self._current.get((line.host, line.pid, line.tid))
            if comm is not None:
                comm.rings = max(comm.rings, int(match[2]))
        elif (match := _VIA.match(line.text)) is not None:
            sender, receiver = int(match[1]), int(match[2])
            side = match[3] or "[send]"
            comm = self._of_channel(line, receiver if side == "[receive]" else sender)
            self.connections[comm.name if comm else "", sender, receiver, match[4].strip(), side] += 1

    def _of_channel(self, line: Line, rank: int) -> Communicator | None:
        """The communicator that a connection belongs to: this thread's, else the process's only one of that rank."""
        own = self._current.get((line.host, line.pid, line.tid))
        if own is not None and own.rank == rank:
            return own
        fitting = [c for c in self.communicators.values() if c.process == (line.host, line.pid) and c.rank == rank]
        return fitting[-1] if fitting else None


def _name(logged: str, names: tuple[str, ...]) -> str:
    if logged.isdecimal():
        return names[int(logged)] if int(logged) < len(names) else logged
    plain = logged.lower()
    return {"collnetdirect": "collnet_direct", "collnetchain": "collnet_chain", "nvlstree": "nvls_tree"}.get(
        plain.replace("_", ""), plain
    )
