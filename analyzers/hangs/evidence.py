"""What stacks, logs, RAS, processes' states and compile logs say of each rank of a job that stands still."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field
from typing import get_args

from gpuscope.analyzers.hangs import doing, network_errors
from gpuscope.analyzers.hangs.doing import Host
from gpuscope.analyzers.hangs.network_errors import Network
from gpuscope.schema.hang_section import HangSign, Reason
from gpuscope.sources.pytorch.log_signs import REMARKS
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

GONE: tuple[Reason, ...] = (
    "killed",
    "out_of_memory_host",
    "out_of_memory",
    "crashed",
    "exited",
    "stopped",
    "gpu_error",
    "driver_error",
    "program_error",
)
"""Signs of a rank that no longer takes part, those first that explain the others."""


_NETWORK: Reason = "network"
_PROOF = frozenset({"timed_out", "dump_signal", "watchdog_stuck"})
"""Signs that prove that an operation or a watchdog did not get on in time."""
_CONSEQUENCES = frozenset({"killed", "crashed", "driver_error", "program_error"})
"""What also befalls a rank that waited until its time was up: torch aborts it, and the launcher ends the others."""


def _before(sign: HangSign | None, other: HangSign) -> bool:
    return sign is not None and sign["file"] == other["file"] and sign["line"] < other["line"]


@dataclass(frozen=True)
class Progress:
    """How far a rank had got in a group, by RAS or the watchdog; rank None: all that are not named."""

    rank: int | None
    told_by: str
    group: str
    launched: int | None
    completed: int | None
    state: str | None


@dataclass(frozen=True)
class Waited:
    """An operation that a rank waited for until its time was up; the group is empty where no line names it."""

    rank: int
    told_by: str
    group: str
    seq: int | None
    op: str
    numel_in: int | None
    numel_out: int | None


@dataclass(frozen=True)
class Compile:
    """A compilation that a rank's log has the begin of, and no end."""

    function: str
    place: str


@dataclass
class Evidence:
    """All of it, by rank."""

    hosts: dict[int, Host] = field(default_factory=dict)
    signs: list[HangSign] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    waited: list[Waited] = field(default_factory=list)
    last_lines: dict[int, HangSign] = field(default_factory=dict)
    """The last line that each rank's program wrote, of ranks that have a log."""
    went_on: bool = False
    """Whether a log shows a step."""
    job_size: int = 0
    """Ranks of the job by logs; 0 where none says it."""
    places: dict[tuple[int, str], str] = field(default_factory=dict)
    """By rank and sign, the program's line that a traceback names."""
    network: Network = field(default_factory=Network)
    compiling: dict[int, Compile] = field(default_factory=dict)
    compile_logs: set[int] = field(default_factory=set)

    def of(self, rank: int) -> Mapping[str, HangSign]:
        """The first sign of each kind of a rank."""
        found: dict[str, HangSign] = {}
        for sign in self.signs:
            if sign["rank"] == rank:
                found.setdefault(sign["sign"], sign)
        return found

    @property
    def ranks(self) -> set[int]:
        """Every rank that something is known of."""
        named = {sign["rank"] for sign in self.signs} | {one.rank for one in self.progress}
        named |= {one.rank for one in self.waited} | self.last_lines.keys()
        return {rank for rank in named if rank is not None} | set(self.hosts) | self.compile_logs

    @property
    def timed_out(self) -> bool:
        """Whether a log proves that an operation did not end in time, by itself or by what another rank told."""
        return bool(self.waited) or any(sign["sign"] in _PROOF for sign in self.signs)

    def stuck(self) -> dict[int, HangSign]:
        """Ranks whose watchdog made no progress, though no operation of theirs had run out of time before."""
        waiting = {one.rank for one in self.waited}
        found: dict[int, HangSign] = {}
        for sign in self.signs:
            if sign["sign"] == "watchdog_stuck" and sign["rank"] is not None and sign["rank"] not in waiting:
                known = found.get(sign["rank"])
                if known is None or ("stuck for" in sign["text"] and "stuck for" not in known["text"]):
                    found[sign["rank"]] = sign
        return found

    def gone(self, rank: int) -> Reason | None:
        """Why a rank no longer takes part, where a log, its process's state or RAS says so."""
        own = self.of(rank)
        for reason in GONE:
            if reason in own and not (reason in _CONSEQUENCES and _before(own.get("timed_out"), own[reason])):
                return reason
        states = {one.state for one in self.progress if one.rank == rank and one.told_by == "ras"}
        return "unresponsive" if states & {"dead", "unresponsive"} and "alive" not in states else None

    def unnamed_ends(self) -> list[tuple[HangSign, Reason]]:
        """Ends and errors of processes whose rank no line names."""
        found = ((sign, reason) for sign in self.signs for reason in (*GONE, _NETWORK) if sign["sign"] == reason)
        return [(sign, reason) for sign, reason in found if sign["rank"] is None]

    def answers(self, rank: int) -> bool:
        """Whether its process or RAS says that it is alive."""
        return "alive" in self.of(rank) or any(one.rank == rank and one.state == "alive" for one in self.progress)

    def behind(self, told_by: str) -> dict[int, tuple[Progress, int]]:
        """Ranks that had launched fewer operations of a group than another one, with the most that one had; by
        watchdogs, fewer than the first that ranks wait in: who has enqueued that one waits, however far others are."""
        by_group: dict[str, list[Progress]] = defaultdict(list)
        for one in self.progress:
            if one.launched is not None and one.told_by == told_by:
                by_group[one.group].append(one)
        found: dict[int, tuple[Progress, int]] = {}
        for own in by_group.values():
            most = max(one.launched or 0 for one in own)
            if told_by == "watchdog":
                waited = [
                    one.completed + 1
                    for one in own
                    if one.completed is not None and one.completed < (one.launched or 0)
                ]
                most = min(waited, default=0)
            for one in own:
                if one.rank is not None and (one.launched or 0) < most:
                    found[one.rank] = one, most
        return found


_OTHERS = frozenset({"alive", "mismatch", "lagging", "peer_closed", "network", "gil"})


def tells(trace: Trace) -> bool:
    """Whether there are signs of a hang or failure among the lines of logs."""
    names = trace.names.matching(lambda name: name not in REMARKS)
    return bool(names[trace["hang_signs"]["sign"]].any())


def read(trace: Trace) -> Evidence:
    """Everything but the Flight Recorder's."""
    found = Evidence()
    ranks = {row["pid"]: row["rank"] for row in trace.rows("ranks") if row["pid"] is not None}
    known = set(get_args(Reason)) | _OTHERS | _PROOF
    for row in trace.rows("hang_signs"):
        file = trace.sources[row["source"]].path.name
        rank = ranks.get(row["pid"]) if row["rank"] is None else row["rank"]
        sign: HangSign = {
            "rank": rank,
            "sign": row["sign"],
            "text": row["text"] or "",
            "file": file,
            "line": row["line"],
        }
        if row["sign"] in known:
            found.signs.append(sign)
            if rank is not None and row["place"]:
                found.places.setdefault((rank, row["sign"]), row["place"])
        # Of a rank that has a file for each of its outputs, an empty one says nothing.
        elif row["sign"] == "last_line" and rank is not None and (sign["text"] or rank not in found.last_lines):
            found.last_lines[rank] = sign
        found.went_on |= row["sign"] == "progress"
    found.job_size = max((source.facts.get("job_size", 0) for source in trace.sources), default=0)
    for row in trace.rows("rank_progress"):
        if row["op"] is not None:
            found.waited.append(
                Waited(
                    row["rank"],
                    row["told_by"],
                    row["group"] or "",
                    row["waited"],
                    row["op"],
                    row["numel_in"],
                    row["numel_out"],
                )
            )
            continue
        found.progress.append(
            Progress(row["rank"], row["told_by"], row["group"] or "", row["launched"], row["completed"], row["state"])
        )
    worked = any((one.completed or 0) > 0 for one in found.progress)
    found.network = network_errors.read(trace, found.went_on or worked)
    for row in trace.rows("compilations"):
        found.compile_logs.add(row["rank"])
        if row["open"]:
            place = f"{row['file']}:{row['line']}" if row["file"] and row["line"] else row["file"] or ""
            found.compiling[row["rank"]] = Compile(row["function"] or "", place)
    _stacks(trace, ranks, found)
    return found


def _stacks(trace: Trace, ranks: Mapping[int, int], found: Evidence) -> None:
    """The main thread of each rank's last dump, and whether another one held the interpreter's lock."""
    rows = list(trace.rows("host_stacks"))
    holders = {row["source"] for row in rows if row["gil"] == 1 and not row["main"]}
    spied = {row["source"] for row in rows if row["gil"] == 0}
    for row in sorted((row for row in rows if row["main"]), key=lambda row: row["taken"]):
        rank = ranks.get(row["pid"]) if row["rank"] is None else row["rank"]
        if rank is not None:
            elsewhere = row["source"] in holders & spied
            found.hosts[rank] = doing.host(row["frames"].split("\n"), others_hold_gil=elsewhere)
