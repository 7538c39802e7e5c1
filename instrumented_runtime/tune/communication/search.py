"""Searches settings of the communication library by trying them: sizes and groups of a job, every candidate in turn.

A library reads its variables once, so each candidate is a set of processes of its own. The rounds are interleaved (all
candidates, then all again), so that what drifts meanwhile meets all of them, and a gain counts only if the candidate's
slowest round is faster than the default's fastest.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.instrumented_runtime.bench.collectives_bench import average_ns, measure
from gpuscope.instrumented_runtime.bench.options import CollectiveOptions
from gpuscope.instrumented_runtime.bench.processes import run_processes, under_torchrun
from gpuscope.instrumented_runtime.bench.tested_collectives import Prepared
from gpuscope.instrumented_runtime.tune.communication.measured import Searched, Tried
from gpuscope.instrumented_runtime.tune.communication.targets import Target
from gpuscope.sources.nccl.log_facts import Facts
from gpuscope.sources.nccl.log_lines import Line, hosts, separate

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
