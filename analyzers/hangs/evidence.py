"""What stacks, logs, RAS, processes' states and compile logs say of each rank of a job that stands still."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import get_args

from gpuscope import when_used
from gpuscope.catalogue import hang_sentences as words
from gpuscope.schema.memory_section import Doing, HangCause, HangSign, Reason
from gpuscope.sources.pytorch.log_signs import REMARKS
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Errors of the network in NCCL's log: who did not answer whom, and whether the link ever worked.
#
# A queue pair whose first message is never acknowledged (status 12, «transport retry counter exceeded») was set up with
# addresses between which nothing gets through; one that breaks after work is another matter: a link, a switch, a peer.

_PEER = when_used.pattern(r"from peer \[?([0-9a-fA-F:.]+?|[\w.-]+)\]?<\d+>")
_PROCESS = when_used.pattern(r"(?:\[[^\]]*\] )?([\w.-]+):\d+:\d+ \[")
_NO_ANSWER = when_used.pattern(
    r"(?:error|status) ?=? ?(?:12\b|IBV_WC_RETRY_EXC_ERR)|RETRY_EXC_ERR|transport retry counter exceeded|RETRY_EXC"
)


@dataclass(frozen=True)
class Network:
    """What the logs say of the network, and whether the job ever worked."""

    roce: bool = False
    gid_index: str = ""
    """NCCL_IB_GID_INDEX, where it is set."""
    hosts: Mapping[str, str] | None = None
    """Hosts by address."""
    host_of: Mapping[int, str] | None = None
    """By rank."""
    peers: Mapping[int, frozenset[int]] | None = None
    """Ranks on other hosts that a rank sends to or receives from."""
    ran: bool = False

    def peer(self, rank: int | None, text: str) -> str:
        """`10.0.0.2 (node1, rank 2)`; empty where the line names none."""
        match = _PEER.search(text)
        if match is None:
            return ""
        host = (self.hosts or {}).get(match[1], "")
        there = sorted(
            peer
            for peer in (self.peers or {}).get(-1 if rank is None else rank, ())
            if host and (self.host_of or {}).get(peer) == host
        )
        return words.peer(match[1], host, there)


def network_errors_read(trace: Trace, worked: bool) -> Network:
    """What the sources of a trace say; `worked` where logs show a step or a completed operation."""
    facts = [source.facts for source in trace.sources]
    variables = dict(pair for one in facts for pair in one.get("nccl_environment", ()))
    communicators = trace.rows("communicators")
    largest = max((row["size"] or 0 for row in communicators), default=0)
    peers: dict[int, set[int]] = {}
    for row in trace.rows("connections"):
        if row["transport"].startswith("NET/") and row["rank"] is not None and row["peer"] is not None:
            peers.setdefault(row["rank"], set()).add(row["peer"])
            peers.setdefault(row["peer"], set()).add(row["rank"])
    done = bool((trace["flight_records"]["done"] == 1).any())
    return Network(
        roce="RoCE" in {layer for one in facts for layer in one.get("ports", {}).values()},
        gid_index=variables.get("NCCL_IB_GID_INDEX", ""),
        hosts={address: host for one in facts for address, host in one.get("addresses", {}).items()},
        host_of={row["rank"]: row["host"] or "" for row in communicators if row["size"] == largest},
        peers={rank: frozenset(own) for rank, own in peers.items()},
        ran=worked or done or len(trace["measurements"]) > 0,
    )


def cause(network: Network, rank: int, text: str) -> HangCause:
    """A rank that logged an error of the network, and what to do about it."""
    why, remedy = told(network, rank, text)
    return {
        "rank": rank,
        "kind": "network",
        "certain": False,
        "why": why,
        "reason": "network",
        "reason_certain": False,
        "remedy": remedy,
    }


def told(network: Network, rank: int | None, text: str) -> tuple[str, str]:
    """What a line says, of a rank or of a process whose rank is unknown, and what to do about it."""
    no_answer = _NO_ANSWER.search(text) is not None
    at_start = no_answer and not network.ran
    why = words.logged(text)
    if no_answer and (peer := network.peer(rank, text)):
        process = _PROCESS.match(text)
        own = (network.host_of or {}).get(-1 if rank is None else rank, "") or (process[1] if process else "")
        why = f"{words.no_answer(own, peer, at_start=at_start)}; {why}"
    remedy = words.REMEDIES["network"]
    if at_start:
        remedy = words.unreachable(roce=network.roce, gid_index=network.gid_index)
    return why, remedy


# What a rank's main thread was doing when its stack was dumped, by the functions in it.

WAITING = frozenset({"collective", "autograd"})
"""What ranks are in that may wait for others: a backward pass waits for its gradients' all-reduces in C++."""
_FRAME = when_used.pattern(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+|\?\?\?))?\)$")
_START = r"(?:^|[/\\])"


@dataclass(frozen=True)
class Rule:
    """A kind by frames whose file and function match; an empty pattern matches all."""

    kind: Doing
    file: re.Pattern[str]
    name: re.Pattern[str]

    def fits(self, name: str, file: str) -> bool:
        """Whether a frame is one of these."""
        return self.file.search(file) is not None and self.name.search(name) is not None


def _rule(kind: Doing, file: str = "", name: str = "") -> Rule:
    return Rule(kind, when_used.pattern(_START + file if file else ""), when_used.pattern(name))


_COMPILE_FX = r"(?:^|\.)_*(?:compile_fx\w*|fx_codegen_and_compile|codegen_and_compile)$"
_TUNING = r"precompile|autotune_to_one_config|benchmark_all_configs|coordinate_descent|_make_launchers"
_RULES = (
    _rule("debugger", r"(?:pdb|bdb)\.py|(?:ipdb|debugpy|pydevd)/|IPython/(?:core/debugger|terminal/debugger)\.py"),
    _rule("rendezvous", r"torch/distributed/rendezvous\.py"),
    _rule(
        "rendezvous",
        r"torch/distributed/distributed_c10d\.py",
        r"init_process_group|new_group|new_subgroups|split_group|_store_based_barrier|_new_process_group_helper",
    ),
    _rule(
        "collective",
        r"torch/distributed/(?:distributed_c10d|_functional_collectives|c10d_logger)\.py",
        r"^(?!_distributed_excepthook$)",
    ),
    _rule("collective", "", r"^(?:c10d|gloo)::|^nccl[A-Z]\w+"),
    _rule("compiling", r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)\.py"),
    _rule(
        "compiling",
        r"torch/_inductor/(?:graph|scheduler|codecache|async_compile|cpp_builder|select_algorithm)\.py",
        r"^(?!.*__call__$)",
    ),
    _rule("compiling", r"torch/_inductor/compile_fx\.py", _COMPILE_FX),
    _rule("compiling", r"torch/_inductor/runtime/triton_heuristics\.py", _TUNING),
    _rule("compiling", r"triton/(?:compiler/\w+|backends/\w+/compiler|runtime/build)\.py"),
    _rule("compiling", r"triton/runtime/(?:autotuner|jit)\.py", r"_bench|do_bench|benchmark|_do_compile"),
    _rule("compiling", r"torch/utils/(?:cpp_extension|file_baton)\.py"),
    _rule("data_loader", r"(?:torch/utils/data|torchdata|webdataset|nvidia/dali|streaming/base)/"),
    _rule("data_loader", r"datasets/(?:arrow_dataset|iterable_dataset)\.py"),
    _rule("storage", r"torch/serialization\.py|torch/distributed/checkpoint/|safetensors/"),
    _rule("storage", r"(?:fsspec|s3fs|gcsfs|botocore)/|shutil\.py"),
    _rule("storage", r"megatron/core/dist_checkpointing/|accelerate/checkpointing\.py"),
    _rule("storage", "", r"(?:^|[._])(?:save|load)_(?:checkpoint|pretrained|state_dict|state)$"),
    _rule("device_wait", "", r"^(?:cu|cuda|hip)\w*Synchronize|_local_scalar_dense|^at::native::item"),
    _rule("device_wait", r"torch/cuda/(?:__init__|streams)\.py", r"synchronize"),
    _rule("autograd", r"torch/autograd/(?:__init__|graph)\.py"),
    _rule("lock", r"threading\.py", r"(?:^|\.)(?:wait|acquire|join|_wait_for_tstate_lock)$"),
    _rule("lock", r"(?:queue|multiprocessing/(?:connection|queues|synchronize|popen_\w+))\.py"),
    _rule("lock", r"concurrent/futures/_base\.py|filelock/"),
)
_PRIORITY = tuple(dict.fromkeys(rule.kind for rule in _RULES))
_READS_DEVICE = when_used.pattern(r"\.(?:item|cpu|tolist|numpy|nonzero|synchronize)\(|\.to\(['\"]cpu")
"""What a line calls that waits for the device: a C function, which has no frame of its own."""
_WAITS = when_used.pattern(r"\.(?:acquire|join)\(\)?")
_LIBRARY = when_used.pattern(
    _START
    + r"(?:torch|triton|multiprocessing|concurrent|(?:site|dist)-packages|lib/python\d[^/]*)/|^<|"
    + _START
    + r"instrumented_runtime/record/|"
    + _START
    + r"(?:threading|queue|subprocess|selectors|[pb]db|cmd|shutil|pickle|contextlib|runpy|socket|ssl)\.py$|"
    r"\.so(?:\.[\d.]+)?$"
)


@dataclass(frozen=True)
class Host:
    """What a main thread was doing, where in the user's code (empty where none is in the stack), and its frames."""

    doing: Doing
    place: str
    frames: tuple[str, ...]


def host(frames: Sequence[str], others_hold_gil: bool = False) -> Host:
    """The first kind, in order of the rules, that a frame shows; the stack as a whole otherwise."""
    parsed = [(match["name"], match["file"], match["line"] or "") for match in map(_parsed, frames) if match]
    kinds = {rule.kind for rule in _RULES for name, file, _ in parsed if rule.fits(name, file)}
    own = next((at for at, (_, file, _) in enumerate(parsed) if not _LIBRARY.search(file)), None)
    place = "" if own is None else f"{_short(parsed[own][1])}:{parsed[own][2]} in {parsed[own][0]}"
    kind: Doing = next((kind for kind in _PRIORITY if kind in kinds), "host_code")
    code = frames[0].partition("\t")[2] if frames and kind == "host_code" else ""
    if _READS_DEVICE.search(code) or _WAITS.search(code):
        kind = "device_wait" if _READS_DEVICE.search(code) else "lock"
    if others_hold_gil and kind in ("host_code", "lock"):
        kind = "gil"
    return Host(kind, place, tuple(frames))


def _parsed(frame: str) -> re.Match[str] | None:
    return _FRAME.match(frame.partition("\t")[0])


def _short(file: str) -> str:
    return re.split(r"[/\\]", file)[-1]


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
    found.network = network_errors_read(trace, found.went_on or worked)
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
            found.hosts[rank] = host(row["frames"].split("\n"), others_hold_gil=elsewhere)
