"""What stacks, logs, RAS, processes' states and compile logs say of each rank of a job that stands still."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field
from typing import get_args

from gpuscope.analyzers.hangs import doing
from gpuscope.analyzers.hangs.doing import Host
from gpuscope.schema.hang_section import HangSign, Reason
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
)
"""Signs of a rank that no longer takes part, those first that explain the others."""


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
        return {rank for rank in named if rank is not None} | set(self.hosts) | self.compile_logs

    def gone(self, rank: int) -> Reason | None:
        """Why a rank no longer takes part, where a log, its process's state or RAS says so."""
        own = self.of(rank)
        if (told := next((reason for reason in GONE if reason in own), None)) is not None:
            return told
        states = {one.state for one in self.progress if one.rank == rank and one.told_by == "ras"}
        return "unresponsive" if states & {"dead", "unresponsive"} and "alive" not in states else None

    def answers(self, rank: int) -> bool:
        """Whether its process or RAS says that it is alive."""
        return "alive" in self.of(rank) or any(one.rank == rank and one.state == "alive" for one in self.progress)

    def behind(self, told_by: str) -> dict[int, tuple[Progress, int]]:
        """Ranks that had launched fewer operations of a group than another one, with the most that one had."""
        by_group: dict[str, list[Progress]] = defaultdict(list)
        for one in self.progress:
            if one.launched is not None and one.told_by == told_by:
                by_group[one.group].append(one)
        found: dict[int, tuple[Progress, int]] = {}
        for own in by_group.values():
            most = max(one.launched or 0 for one in own)
            for one in own:
                if one.rank is not None and (one.launched or 0) < most:
                    found[one.rank] = one, most
        return found


def read(trace: Trace) -> Evidence:
    """Everything but the Flight Recorder's."""
    found = Evidence()
    ranks = {row["pid"]: row["rank"] for row in trace.rows("ranks") if row["pid"] is not None}
    known = set(get_args(Reason)) | {"alive", "mismatch", "timed_out", "lagging", "peer_closed", "network"}
    for row in trace.rows("hang_signs"):
        if row["sign"] in known:
            file = trace.sources[row["source"]].path.name
            rank = ranks.get(row["pid"]) if row["rank"] is None else row["rank"]
            sign: HangSign = {"rank": rank, "sign": row["sign"], "text": row["text"], "file": file, "line": row["line"]}
            found.signs.append(sign)
    for row in trace.rows("rank_progress"):
        found.progress.append(
            Progress(row["rank"], row["told_by"], row["group"], row["launched"], row["completed"], row["state"])
        )
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
