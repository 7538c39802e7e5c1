"""Searches settings of the communication library by trying them: sizes and groups of a trace, every candidate in turn.

A library reads its variables once, so each candidate is a set of processes of its own. The rounds are interleaved (all
candidates, then all again), so that what drifts meanwhile meets all of them, and a gain counts only if the candidate's
slowest round is faster than the default's fastest.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.hardware.tuner_rows import ANY, HEAD, LARGEST, OPERATIONS, size_ranges, tuner_line
from gpuscope.instrumented_runtime.bench.collectives_bench import CollectiveOptions, average_ns, measure
from gpuscope.instrumented_runtime.bench.processes import default_backend, run_processes, under_torchrun
from gpuscope.instrumented_runtime.bench.tested_collectives import Prepared
from gpuscope.instrumented_runtime.bench.tuning_candidates import DEFAULT, candidates
from gpuscope.schema.bench_documents import BenchTune, TuningRow
from gpuscope.sources.nccl.log_facts import Facts
from gpuscope.sources.nccl.log_lines import Line, hosts, separate

LEAST_GAIN_FRAC = 0.02
"""Of the default's time: less is not worth a setting."""


@dataclass(frozen=True)
class Target:
    """What to tune: an operation over so many ranks, and its sizes in bytes of the whole array."""

    op: str
    ranks: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TuningOptions:
    """How to measure each candidate: `rounds` times so many calls."""

    rounds: int = 3
    iterations: int = 20
    warmup: int = 5
    backend: str | None = None

    def __post_init__(self) -> None:
        if self.rounds < 2:
            raise UsageError("--rounds must be at least 2: a gain is judged by how rounds differ")


def tune(targets: Sequence[Target], options: TuningOptions, begun: Callable[[str], None] = lambda _: None) -> BenchTune:
    """Measure every candidate of every target; `begun` is told each one as it begins.

    Raises `UsageError` under a launcher, whose processes have one environment, and where nothing is to be tuned.
    """
    if under_torchrun():
        raise UsageError(
            "each candidate needs processes of its own, so tune starts them itself, on one host",
            hint="without torchrun: --nproc N; between hosts: nccl-tests, once per candidate, and gpuscope analyze",
        )
    if not targets:
        raise UsageError("nothing to tune", hint="name --op and --size, or a trace with the sizes of its collectives")
    backend = options.backend or default_backend()
    rows: list[TuningRow] = []
    failed: dict[str, str] = {}
    for target in targets:
        times = _all_rounds(target, backend, options, failed, begun)
        known = _default_choices(target, backend) if backend == "nccl" else {}
        rows += _rows(target, backend, times, known)
    return BenchTune(backend, torch.__version__, options.rounds, options.iterations, tuple(rows), failed)


Times = dict[tuple[str, int], list[int]]
"""ns per round by candidate and size."""


def _all_rounds(
    target: Target, backend: str, options: TuningOptions, failed: dict[str, str], begun: Callable[[str], None]
) -> Times:
    times: Times = {}
    asked = CollectiveOptions((target.op,), target.sizes, options.iterations, options.warmup, check=True)
    for number in range(options.rounds):
        for candidate in candidates(target.op, backend):
            if candidate.name in failed:
                continue
            begun(f"{target.op}, {target.ranks} ranks, {candidate.name}, round {number + 1} of {options.rounds}")
            try:
                with _environment(candidate.settings):
                    found = run_processes(
                        _measured, target.ranks, backend, replace(asked, check=number == 0), candidate.pieces
                    )
            except GpuscopeError as error:
                if candidate == DEFAULT:
                    raise
                failed[candidate.name] = error.message
                continue
            for size, (ns, wrong) in zip(target.sizes, found or (), strict=False):
                if wrong:
                    failed[candidate.name] = f"{wrong} elements of {target.op} came out wrong"
                times.setdefault((candidate.name, size), []).append(ns)
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


def _default_choices(target: Target, backend: str) -> dict[int, tuple[str, str, int | None]]:
    """What NCCL chooses by itself per size, from its log of one call each."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-tune-") as folder:
        logged = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": f"{folder}/%h.%p.log"}
        with _environment(logged):
            asked = CollectiveOptions((target.op,), target.sizes, iterations=1, warmup=0, check=False)
            run_processes(_measured, target.ranks, backend, asked, 1)
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
) -> Iterator[TuningRow]:
    for size in target.sizes:
        default = times[DEFAULT.name, size]
        for candidate in candidates(target.op, backend):
            own = times.get((candidate.name, size))
            if own is None:
                continue
            now = known.get(size, (None, None, None))
            algorithm, protocol = candidate.choice or now[:2]
            gain = 1 - median(own) / median(default)
            certain = max(own) < min(default) and gain >= LEAST_GAIN_FRAC
            yield TuningRow(
                target.op, target.ranks, size, candidate.name, dict(candidate.settings), round(median(own)),
                tuple(own), gain, certain, algorithm, protocol, now[2],
            )  # fmt: skip


def tuner_text(report: BenchTune) -> str:
    """The rows for NCCL's tuner plugin: at each size the certain gain, else what NCCL chose; LL128 becomes Simple.

    Raises `UsageError` on another backend, or where NCCL's log did not tell choices or channels.
    """
    if report.backend != "nccl":
        raise UsageError(f"NCCL's tuner has no use for settings of {report.backend}", hint="leave --nccl-tuner out")
    best = [row for row in report.best() if row.op in OPERATIONS]
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
