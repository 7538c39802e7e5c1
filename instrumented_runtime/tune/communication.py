"""`gpuscope tune --nccl`: the search as one more source of changes to try in the job, within its own share of time."""

from __future__ import annotations

import ctypes.util
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed as dist

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.hardware.boards import ANY, HEAD, LARGEST, OPERATIONS, size_ranges, tuner_line
from gpuscope.instrumented_runtime.bench.collectives_bench import Prepared, average_ns, measure
from gpuscope.instrumented_runtime.bench.processes import default_backend, run_processes, under_torchrun
from gpuscope.instrumented_runtime.bench.topology_links import OPERATIONS as TOPOLOGY_LINKS_OPERATIONS
from gpuscope.instrumented_runtime.bench.topology_links import CollectiveOptions
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.tune.candidates import Advice
from gpuscope.instrumented_runtime.tune.candidates import Candidate as candidates_Candidate
from gpuscope.schema.plan_document import ByHand
from gpuscope.sources.nccl.log_facts import Facts, Line, hosts, separate
from gpuscope.sources.opening import open_trace
from gpuscope.trace.trace import Row
from gpuscope.words import units

# What a trace's collectives give to tune: operations, numbers of ranks and sizes, the costliest first.

MOST_SIZES = 8
"""Sizes of one operation and group that are tried: those that take most time."""


@dataclass(frozen=True)
class Target:
    """What to tune: an operation over so many ranks, its sizes in bytes of the whole array, and how often the trace has
    each."""

    op: str
    ranks: int
    sizes: tuple[int, ...]
    calls: tuple[int, ...]


def of_trace(paths: Sequence[str]) -> list[Target]:
    """A target per operation and number of ranks; none where the trace holds no collective of known size."""
    spent: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in open_trace(*paths).rows("collectives"):
        if row["op"] in TOPOLOGY_LINKS_OPERATIONS and row["bytes"] and (row["group_size"] or 0) > 1:
            spent[row["op"], row["group_size"]][row["bytes"]].append(_taken(row))
    costliest = sorted(spent.items(), key=lambda item: -sum(map(sum, item[1].values())))
    return [_target(op, ranks, sizes) for (op, ranks), sizes in costliest]


def _target(op: str, ranks: int, taken: dict[int, list[int]]) -> Target:
    sizes = sorted(sorted(taken, key=lambda size: -sum(taken[size]))[:MOST_SIZES])
    return Target(op, ranks, tuple(sizes), tuple(len(taken[size]) for size in sizes))


def _taken(row: Row) -> int:
    return row["end"] - row["start"] if row["end"] is not None and row["start"] is not None else 0


# What a search measured, and what of it a job can be given: rows for NCCL's tuner, or variables.


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


# Searches settings of the communication library by trying them: sizes and groups of a job, every candidate in turn.
#
# A library reads its variables once, so each candidate is a set of processes of its own. The rounds are interleaved
# (all
# candidates, then all again), so that what drifts meanwhile meets all of them, and a gain counts only if the
# candidate's
# slowest round is faster than the default's fastest.

LEAST_GAIN_FRAC = 0.02
"""Of the default's time: less is not worth a setting."""
LEAST_ROUNDS = 2
"""A gain is judged by how rounds differ."""
Clock = Callable[[], float]
Begun = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to measure each candidate: `rounds` times so many calls, on NCCL or gloo."""

    backend: str
    rounds: int = 3
    iterations: int = 20
    warmup: int = 5


@dataclass(frozen=True)
class Planned:
    """What fits into the time that there is: targets, the rounds of each candidate, and how long that takes."""

    targets: tuple[Target, ...]
    rounds: int
    seconds: float
    sets: int
    """Sets of processes to start."""
    left_out: int = 0
    """Targets that don't fit, those that cost the job least."""


def first_calls(target: Target, options: Options, limit_s: float) -> float:
    """Seconds that a set of processes takes to start and to carry out each size once.

    Raises `UsageError` under a launcher, whose processes have one environment, `GpuscopeError` where they can't run.
    """
    if under_torchrun():
        raise UsageError("each candidate needs processes of its own", hint="tune outside the launcher, on one host")
    began = time.monotonic()
    asked = CollectiveOptions((target.op,), target.sizes, iterations=1, warmup=0, check=False)
    run_processes(_measured, target.ranks, options.backend, asked, 1, limit_s=limit_s)
    return time.monotonic() - began


def planned(targets: Sequence[Target], options: Options, once_s: float, left_s: float) -> Planned:
    """As many of the costliest targets as fit, with fewer rounds before fewer targets; none where not even one does,
    with the time that this one takes.

    Sizes × calls × candidates × rounds: a set of processes is taken to last as long as the first one did, which had one
    call per size, and a call no longer than its share of that.
    """
    sets = 0
    for count in range(len(targets), 0, -1):
        for rounds in range(options.rounds, LEAST_ROUNDS - 1, -1):
            sets = rounds * sum(len(candidates(one.op, options.backend)) for one in targets[:count])
            sets += count if options.backend == "nccl" else 0  # its log of what it chooses by itself
            if sets * once_s <= left_s:
                return Planned(tuple(targets[:count]), rounds, sets * once_s, sets, len(targets) - count)
    return Planned((), LEAST_ROUNDS, sets * once_s, sets, len(targets))


def search(plan: Planned, options: Options, deadline: float, begun: Begun, clock: Clock = time.monotonic) -> Searched:
    """Measure every candidate of every target, until `deadline` of the clock at the latest; `begun` is told each one as
    it begins. A target whose rounds were cut short is left out."""
    rows: list[Tried] = []
    failed: dict[str, str] = {}
    options = replace(options, rounds=plan.rounds)
    for target in plan.targets:
        times = _all_rounds(target, options, failed, begun, lambda: deadline - clock())
        if len(times.get((DEFAULT.name, target.sizes[0]), ())) < LEAST_ROUNDS:
            break
        left_s = deadline - clock()
        known = _default_choices(target, options.backend, left_s) if options.backend == "nccl" and left_s > 0 else {}
        rows += _rows(target, options.backend, times, known)
    return Searched(options.backend, torch.__version__, options.rounds, options.iterations, tuple(rows), failed)


Times = dict[tuple[str, int], list[int]]
"""ns per round by candidate and size."""


def _all_rounds(
    target: Target, options: Options, failed: dict[str, str], begun: Begun, left_s: Callable[[], float]
) -> Times:
    """Only whole rounds: what a last one has of some candidates is dropped."""
    times: Times = {}
    asked = CollectiveOptions((target.op,), target.sizes, options.iterations, options.warmup, check=True)
    for number in range(options.rounds):
        of_round: Times = {}
        for candidate in candidates(target.op, options.backend):
            if candidate.name in failed:
                continue
            if left_s() <= 0:
                return _of_all_rounds(times, failed)
            begun(f"{target.op}, {target.ranks} ranks, {candidate.name}, round {number + 1} of {options.rounds}")
            try:
                with _environment(candidate.settings):
                    found = run_processes(
                        _measured,
                        target.ranks,
                        options.backend,
                        replace(asked, check=number == 0),
                        candidate.pieces,
                        limit_s=left_s(),
                    )
            except GpuscopeError as error:
                if left_s() <= 0:
                    return _of_all_rounds(times, failed)
                if candidate == DEFAULT:
                    raise
                failed[candidate.name] = error.message
                continue
            for size, (ns, wrong) in zip(target.sizes, found or (), strict=False):
                if wrong:
                    failed[candidate.name] = f"{wrong} elements of {target.op} came out wrong"
                of_round.setdefault((candidate.name, size), []).append(ns)
        for key, own in of_round.items():
            times.setdefault(key, []).extend(own)
    return _of_all_rounds(times, failed)


def _of_all_rounds(times: Times, failed: Mapping[str, str]) -> Times:
    return {key: own for key, own in times.items() if key[0] not in failed}


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _measured(options: CollectiveOptions, pieces: int) -> list[tuple[int, int]]:
    """ns and wrong elements per size, on each rank of a process group."""
    if pieces == 1:
        return [(row.time_ns, row.wrong or 0) for row in measure(options).rows]
    return [_cut(size, options, pieces) for size in options.sizes]


def _cut(size: int, options: CollectiveOptions, pieces: int) -> tuple[int, int]:
    """An all-reduce as several messages in flight at once."""
    data = torch.ones(max(pieces, size // 4))
    parts = data.chunk(pieces)

    def call() -> None:
        for work in [dist.all_reduce(part, async_op=True) for part in parts]:
            work.wait()

    call()
    wrong = int((data != dist.get_world_size()).sum().item())
    data.zero_()  # as elsewhere: sums of zeros stay finite over any number of iterations
    prepared = Prepared(call, lambda _: None, lambda: 0)
    ns = torch.tensor([float(average_ns(prepared, options, data.device))])
    dist.all_reduce(ns)
    return round(ns.item() / dist.get_world_size()), wrong


def _default_choices(target: Target, backend: str, limit_s: float) -> dict[int, tuple[str, str, int | None]]:
    """What NCCL chooses by itself per size, from its log of one call each."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-tune-") as folder:
        logged = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": f"{folder}/%h.%p.log"}
        with _environment(logged):
            asked = CollectiveOptions((target.op,), target.sizes, iterations=1, warmup=0, check=False)
            run_processes(_measured, target.ranks, backend, asked, 1, limit_s=limit_s)
        facts = Facts()
        for path in sorted(Path(folder).iterdir()):
            lines = path.read_text(errors="replace").splitlines()
            for line in separate(lines, hosts(lines)):
                if isinstance(line, Line):
                    facts.feed(line)
    channels = max((comm.channels or 0 for comm in facts.communicators.values()), default=0)
    return {
        choice.size: (choice.algorithm, choice.protocol, choice.channels or channels or None)
        for choice in facts.choices
        if choice.op in ("", target.op)
    }


def _rows(
    target: Target, backend: str, times: Times, known: Mapping[int, tuple[str, str, int | None]]
) -> Iterator[Tried]:
    for size, calls in zip(target.sizes, target.calls, strict=True):
        default = times[DEFAULT.name, size]
        for candidate in candidates(target.op, backend):
            own = times.get((candidate.name, size))
            if own is None:
                continue
            now = known.get(size, (None, None, None))
            algorithm, protocol = candidate.choice or now[:2]
            gain = 1 - median(own) / median(default)
            certain = max(own) < min(default) and gain >= LEAST_GAIN_FRAC
            yield Tried(
                target.op,
                target.ranks,
                size,
                calls,
                candidate.name,
                dict(candidate.settings),
                candidate.pieces,
                round(median(own)),
                tuple(own),
                gain,
                certain,
                algorithm,
                protocol,
                candidate.channels or now[2],
            )


NCCL_CHOICES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "all_reduce": (("Ring", "LL"), ("Ring", "Simple"), ("Tree", "LL"), ("Tree", "Simple")),
    "all_gather": (("Ring", "LL"), ("Ring", "Simple")),
    "reduce_scatter": (("Ring", "LL"), ("Ring", "Simple")),
    "broadcast": (("Ring", "LL"), ("Ring", "Simple")),
}
"""Algorithm and protocol by operation. Never LL128, which corrupts data where the platform does not support it (where
it does, NCCL's default has it), nor NVLS, which fails where it is missing and is taken unasked where it is not."""
CHANNELS = (4, 16, 32)
"""Channels of NCCL's own choice; more of them take more of the GPU from the kernels beside them."""
PIECES = (2, 4)
"""Into how many messages in flight gloo's all-reduce is cut."""


@dataclass(frozen=True)
class Candidate:
    """A name, the variables of its processes, into how many messages each operation is cut, and NCCL's channels."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    pieces: int = 1
    channels: int | None = None

    @property
    def choice(self) -> tuple[str, str] | None:
        """NCCL's algorithm and protocol as its tuner plugin names them; None where it chooses itself."""
        forced = self.settings.get("NCCL_ALGO"), self.settings.get("NCCL_PROTO")
        return None if None in forced else (str(forced[0]).lower(), str(forced[1]).lower())


DEFAULT = Candidate("default")


def candidates(op: str, backend: str) -> tuple[Candidate, ...]:
    """The default first. On gloo: the loopback interface, which reaches all processes of one host, and an all-reduce in
    several messages; on NCCL its algorithms and protocols, for this operation alone, and numbers of channels."""
    if backend == "nccl":
        return (DEFAULT, *(_nccl(*choice) for choice in NCCL_CHOICES.get(op, ())), *(_channels(n) for n in CHANNELS))
    cut = tuple(Candidate(f"{pieces} messages", {}, pieces) for pieces in PIECES) if op == "all_reduce" else ()
    return (DEFAULT, Candidate("loopback", {"GLOO_SOCKET_IFNAME": "lo"}), *cut)


def _nccl(algorithm: str, protocol: str) -> Candidate:
    settings = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
    return Candidate(f"{algorithm}/{protocol}".lower(), settings)


def _channels(number: int) -> Candidate:
    settings = {"NCCL_MIN_NCHANNELS": str(number), "NCCL_MAX_NCHANNELS": str(number)}
    return Candidate(f"{number} channels", settings, channels=number)


CODE = "communication_search"
PLUGIN = "NCCL_TUNER_PLUGIN"
ROWS = "NCCL_TUNER_CONFIG_FILE"
MOST_S = 600.0
"""What it takes at most, also of a budget that counts runs."""
EXAMPLE = "nccl-tuner-example"
"""As the makefile of NVIDIA/nccl plugins/tuner/example names its library."""


@dataclass
class CommunicationSearch:
    """Searches once, at the first report with a trace; `told` gets what it does, the estimate first."""

    folder: Path
    """Of the session: the rows for NCCL's tuner and the proof are left there."""
    left_s: Callable[[], float]
    """What the search may take."""
    told: Callable[[str], None] = lambda _: None
    options: Options = field(default_factory=lambda: Options(default_backend()))
    done: bool = False

    def __call__(self, report: Mapping[str, Any]) -> Advice:
        """What of the settings tried is faster for this job: one change, or what its user has to make."""
        if self.done:
            return Advice([], [])
        self.done = True
        paths = sorted({str(entry["path"]) for entry in report["trace"]["sources"]})
        try:
            found = self._search(paths)
        except GpuscopeError as error:
            self.told(f"the communication's settings were not searched: {error.message}")
            return Advice([], [])
        return Advice([], []) if found is None else self._advice(found)

    def _search(self, paths: Sequence[str]) -> Searched | None:
        targets = of_trace(paths)
        if not targets:
            self.told("the communication's settings were not searched: no collective of known size in the trace")
            return None
        left_s = min(self.left_s(), MOST_S)
        deadline = time.monotonic() + left_s
        once = first_calls(targets[0], self.options, left_s)
        plan = planned(targets, self.options, once, deadline - time.monotonic())
        self.told(estimate(plan, left_s))
        if not plan.targets:
            return None
        found = search(plan, self.options, deadline, self.told)
        proof = json.dumps(found.as_json(), indent=2) + "\n"
        (self.folder / "communication.json").write_text(proof, encoding="utf-8")
        return found

    def _advice(self, found: Searched) -> Advice:
        gains = [row for row in found.best() if row.certain]
        by_hand: list[ByHand] = []
        if found.backend == "nccl" and gains:
            rows, plugin = self.folder / "nccl_tuner.csv", tuner_plugin()
            rows.write_text(tuner_text(found), encoding="utf-8")
            if plugin is not None:
                both = Change(f"env.{ROWS}", str(rows)), Change(f"env.{PLUGIN}", plugin)
                return Advice([_candidate(f"{ROWS}={rows}", both)], [])
            why = f"no tuner plugin is here: build NCCL's example (plugins/tuner/example) and name it in {PLUGIN}"
            by_hand.append(_by_hand(f"{ROWS}={rows}", why))
        if any(row.pieces > 1 for row in gains):
            listed = ", ".join(units.memory(row.nbytes) for row in gains if row.pieces > 1)
            by_hand.append(_by_hand(f"all-reduces of {listed} in several messages", "the script has to change"))
        settings = found.variables()
        setting = " ".join(f"{name}={value}" for name, value in settings.items())
        changes = tuple(Change(f"env.{name}", value) for name, value in settings.items())
        return Advice([_candidate(setting, changes)] if changes else [], by_hand)


def estimate(plan: Planned, left_s: float) -> str:
    """How long it will take, before it begins; or why it does not begin in `left_s`."""
    if not plan.targets:
        needed, has = units.long_duration(plan.seconds * 1e9), units.long_duration(left_s * 1e9)
        return f"the communication's settings were not searched: that takes {needed}, and the budget leaves it {has}"
    sizes = sum(len(target.sizes) for target in plan.targets)
    left_out = f"; {units.plural(plan.left_out, 'operation')} left out" if plan.left_out else ""
    return (
        f"searching the communication's settings: {units.plural(sizes, 'size')}, {units.plural(plan.rounds, 'round')}, "
        f"{plan.sets} sets of processes: about {units.long_duration(plan.seconds * 1e9)}{left_out}"
    )


def tuner_plugin() -> str | None:
    """NCCL's tuner plugin that a job here can load: the one that is set, else NCCL's example where it is installed."""
    return os.environ.get(PLUGIN) or ctypes.util.find_library(EXAMPLE)


def _candidate(setting: str, changes: tuple[Change, ...]) -> candidates_Candidate:
    return candidates_Candidate(CODE, "Set what was faster on this job's own messages", setting, changes)


def _by_hand(setting: str, why: str) -> ByHand:
    return {"code": CODE, "action": "Set what was faster on this job's own messages", "setting": setting, "why": why}
