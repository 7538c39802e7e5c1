"""Throughput, utilisation, memory, energy and waits per step and rank, one JSON line each; and their summary."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gpuscope.instrumented_runtime.record.collective_log import LOG
from gpuscope.instrumented_runtime.record.digest_digest import peak_host_bytes
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import waits

# Exposed communication of a step, where it is known without a trace (docs/definitions.md: in flight, and the training
# thread computes nothing).


def is_measurable(config: TrainConfig, device_type: str) -> bool:
    """Whether all communication of a step is seen without a trace.

    It is where DDP's reducer tells it, and on the CPU where the trainer itself waits (pipelines, all-to-alls, the norm
    of gradients over ranks). Sharded data, tensor parallelism and the ring wait inside PyTorch: a part of the whole
    would be another number than the trace's.
    """
    return waits(config) <= ({"in reducer", "in trainer"} if device_type == "cpu" else {"in reducer"})


class ExposedCommunication:
    """Waits of the training thread that the trainer itself makes (on the CPU), and what DDP's reducer reports as not
    hidden by backward: all there is where it `is_measurable`."""

    def __init__(self) -> None:
        self._waited_ns = 0
        self._known = False
        self._seen: dict[int, int] = {}

    @contextmanager
    def waiting(self, tensor: Tensor) -> Iterator[None]:
        """The training thread is blocked on communication of `tensor` inside, unless it is a GPU's."""
        if tensor.device.type != "cpu":
            yield
            return
        start = time.time_ns()
        try:
            yield
        finally:
            self._known = True
            self._waited_ns += max(0, _ended(start) - start)

    def take(self, parts: list[Any]) -> int | None:
        """Nanoseconds since the last call; None if unknown."""
        ddp = [self._of_reducer(part) for part in parts if isinstance(part, DistributedDataParallel)]
        reduced = [ns for ns in ddp if ns is not None]
        if not self._known and not reduced:
            return None
        waited, self._waited_ns = self._waited_ns, 0
        return waited + sum(reduced)

    def _of_reducer(self, ddp: DistributedDataParallel) -> int | None:
        """That of the last backward, if DDP timed it: it times the first ones, then one in a hundred (on a CPU all)."""
        # DDP sums up its timers as the next forward begins, which would count for the next step. On a GPU that has to
        # do: asking now would wait for the device.
        if getattr(ddp, "device_type", "") == "cpu":
            ddp.logger.set_runtime_stats_and_log()  # type: ignore[union-attr]
        data = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        start, total = data.get("backward_comm_time_start"), data.get("backward_comm_time")
        if not start or not total or start == self._seen.get(id(ddp)):
            return None
        self._seen[id(ddp)] = start
        return max(0, int(total) - int(data["backward_compute_comm_overlap_time"]))


def _ended(start: int) -> int:
    """When the collective that was issued last ended, if that was after `start`, else now (ns since the epoch).

    A thread without a core goes on later than the collective ends, and that is no communication.
    """
    last = LOG.last()
    if last is None or last.issued_ns < start or last.is_p2p or last.completed_ns is None:
        return time.time_ns()
    return last.completed_ns


EXPOSED = ExposedCommunication()
"""A process-wide instance: training is on one thread, and the waits are deep inside a schedule or an autograd node."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One line of `measures/rank{r}.jsonl`. Times are ns; None is unknown."""

    step: int
    rank: int
    restart: int  # restart count, from torchrun
    first: bool  # first step after a (re)start: it also allocates, connects and compiles
    end_ns: int  # ns since the epoch
    step_ns: int  # from this step's begin to the next one's, without its checkpoint
    tokens: int  # of all ranks
    tokens_per_s: float
    mfu: float | None  # model FLOPs / step time / peak FLOPs of the devices
    data_wait_ns: int  # the training thread waiting for the loader
    exposed_communication_ns: int | None  # communication that backward did not hide
    gc_ns: int
    checkpoint_ns: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_host_bytes: int | None
    allocator_retries: int | None  # since the process began
    ooms: int | None  # since the process began
    joules: float | None  # of this rank's device
    flops_per_w: float | None  # model FLOP/s of this rank per watt
    goodput: float  # useful step time over all restarts / wall time since the job's first start
    loss: float | None
    gradient_norm: float | None  # over all ranks, before clipping
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of a step: its tokens over all ranks, their FLOPs, and the devices' peak FLOP/s."""

    tokens: int
    flops_per_token: int
    ranks: int
    peak_flops: float | None

    @property
    def rank_flops(self) -> float:
        """Model FLOPs of a step per rank."""
        return self.tokens * self.flops_per_token / self.ranks


@dataclass(slots=True)
class Job:
    """What goodput accumulates over all restarts of a job; kept in the checkpoints."""

    started_ns: int
    useful_ns: int = 0


class StepMeter:
    """Measures steps from `begin` to `end`; writes each to the file of `write_to`, and keeps the records."""

    def __init__(
        self, workload: Workload, rank: int, device: torch.device, *, gc_every: int = 0, loss_every: int = 1
    ) -> None:
        self.workload, self.rank, self.device = workload, rank, device
        self.restart, self.loss_every = 0, loss_every
        self.job = Job(time.time_ns())
        self.collector = GarbageCollector(gc_every)
        self.records: list[dict[str, Any]] = []
        self._energy = EnergyMeter()
        self._file: IO[str] | None = None
        self._spent: dict[str, int] = {}
        self._begun_ns = 0

    def write_to(self, path: Path, restart: int) -> None:
        """Write each record as a line from now on; flushed, so that a killed rank loses at most one."""
        self.restart = restart
        self._file = path.open("w", encoding="utf-8")

    def begin(self) -> None:
        """A step begins."""
        self._begun_ns = time.perf_counter_ns()
        self._spent.clear()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time inside to `name` of this step: data, checkpoint."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0) + time.perf_counter_ns() - start

    def end(
        self,
        step: int,
        loss: Tensor | None,
        gradient_norm: Tensor | None,
        learning_rate: float | None,
        exposed_ns: int | None,
    ) -> StepRecord:
        """End the step, including its checkpoint."""
        now = time.perf_counter_ns()
        checkpoint_ns = self._spent.get("checkpoint", 0)
        step_ns = max(1, now - self._begun_ns - checkpoint_ns)
        self.job.useful_ns += step_ns
        wall_ns = max(1, time.time_ns() - self.job.started_ns)
        joules = self._energy.read()
        memory = _memory(self.device)
        work = self.workload
        record = StepRecord(
            step=step,
            rank=self.rank,
            restart=self.restart,
            first=not self.records,
            end_ns=time.time_ns(),
            step_ns=step_ns,
            tokens=work.tokens,
            tokens_per_s=work.tokens / step_ns * 1e9,
            mfu=work.rank_flops / step_ns * 1e9 / work.peak_flops if work.peak_flops else None,
            data_wait_ns=self._spent.get("data", 0),
            exposed_communication_ns=exposed_ns,
            gc_ns=self.collector.take(),
            checkpoint_ns=checkpoint_ns,
            **memory,
            joules=joules,
            flops_per_w=work.rank_flops / joules if joules else None,
            goodput=min(1.0, self.job.useful_ns / wall_ns),
            loss=self._value(step, loss),
            gradient_norm=self._value(step, gradient_norm),
            learning_rate=learning_rate,
        )
        self._keep(record)
        return record

    def _value(self, step: int, tensor: Tensor | None) -> float | None:
        # Reading it from a GPU waits for the step to end, so not in every step.
        due = self.device.type == "cpu" or (step + 1) % self.loss_every == 0
        return tensor.item() if tensor is not None and due else None

    def _keep(self, record: StepRecord) -> None:
        line = asdict(record)
        self.records.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def close(self) -> dict[str, Any]:
        """Close the file; the summary of all steps."""
        if self._file is not None:
            self._file.close()
            self._file = None
        return summarize(self.records, self.workload.ranks)


class GarbageCollector:
    """Times collections; with `every` > 0 it also takes them over, so that they come between steps and
    at the same step on all ranks: one rank's collection is every other rank's wait."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.collected_ns = 0
        self._started_ns = 0

    def start(self) -> None:
        """Start timing, and take over collections if configured."""
        gc.callbacks.append(self._on_collection)
        if self.every:
            gc.collect()
            gc.freeze()  # objects that survive set-up are not scanned again
            gc.disable()

    def stop(self) -> None:
        """Restore Python's own collector."""
        gc.callbacks.remove(self._on_collection)
        if self.every:
            gc.enable()
            gc.unfreeze()

    def after_step(self, step: int) -> None:
        """Collect, if due. The session records the range, as for any other collection."""
        if self.every and (step + 1) % self.every == 0:
            gc.collect(1)

    def take(self) -> int:
        """Nanoseconds spent in collections since the last call."""
        taken, self.collected_ns = self.collected_ns, 0
        return taken

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:  # noqa: ARG002
        if phase == "start":
            self._started_ns = time.perf_counter_ns()
        else:
            self.collected_ns += time.perf_counter_ns() - self._started_ns


def _memory(device: torch.device) -> dict[str, int | None]:
    """Bytes and counts for a `StepRecord`, those of a GPU since the last reading: the allocator's peaks are reset."""
    stats: dict[str, Any] = {}
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        torch.cuda.reset_peak_memory_stats(device)
    return {
        "peak_allocated_bytes": stats.get("allocated_bytes.all.peak"),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak"),
        "peak_host_bytes": peak_host_bytes(),
        "allocator_retries": stats.get("num_alloc_retries"),
        "ooms": stats.get("num_ooms"),
    }


class EnergyMeter:
    """Joules the device used between readings, if NVML reports energy."""

    def __init__(self) -> None:
        from gpuscope.instrumented_runtime.record.nvml_samples import current_device

        self._device: tuple[Any, Any] | None = current_device()
        self._last_mj = self._total_mj()

    def read(self) -> float | None:
        """Joules since the last reading; None if not counted."""
        now, last = self._total_mj(), self._last_mj
        self._last_mj = now
        return None if now is None or last is None else (now - last) / 1000

    def _total_mj(self) -> int | None:
        if self._device is None:
            return None
        nvml, handle = self._device
        try:
            return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except nvml.NVMLError:
            return None


def percentile(sorted_values: Sequence[int], fraction: float) -> int:
    """The smallest value that at least `fraction` of the values do not exceed (nearest rank).

    >>> percentile([10, 20, 30, 40], 0.5)
    20
    """
    return sorted_values[max(0, math.ceil(fraction * len(sorted_values)) - 1)]


def summarize(records: Sequence[dict[str, Any]], ranks: int = 1) -> dict[str, Any]:
    """Step-time percentiles in ns, and the sums and means of the other measures.

    The first step after a (re)start (compiling, allocating, connecting) is left out if there are others. Joules per
    token are of a job whose `ranks` all draw as much as this one.
    """
    if not records:
        return {"steps": 0}
    steady = [record for record in records if not record["first"]] or list(records)
    times = sorted(record["step_ns"] for record in steady)
    total = sum(times)
    return {
        "steps": len(records),
        "step_ns": {name: percentile(times, share) for name, share in _PERCENTILES.items()},
        "tokens_per_s": sum(record["tokens"] for record in steady) / total * 1e9,
        "mfu": _mean(steady, "mfu"),
        "data_wait_frac": sum(record["data_wait_ns"] for record in steady) / total,
        "exposed_communication_frac": _share(steady, "exposed_communication_ns", total),
        "gc_ns": sum(record["gc_ns"] for record in records),
        "checkpoint_ns": sum(record["checkpoint_ns"] for record in records),
        "peak_allocated_bytes": _largest(records, "peak_allocated_bytes"),
        "peak_reserved_bytes": _largest(records, "peak_reserved_bytes"),
        "peak_host_bytes": _largest(records, "peak_host_bytes"),
        "allocator_retries": _largest(records, "allocator_retries"),
        "ooms": _largest(records, "ooms"),
        "joules": _sum(records, "joules"),
        "joules_per_token": _per_token(steady, ranks),
        "goodput": records[-1]["goodput"],
        "last_loss": next((r["loss"] for r in reversed(records) if r["loss"] is not None), None),
    }


_PERCENTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def _known(records: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return [record[key] for record in records if record[key] is not None]


def _mean(records: Sequence[dict[str, Any]], key: str) -> float | None:
    values = _known(records, key)
    return sum(values) / len(values) if values else None


def _sum(records: Sequence[dict[str, Any]], key: str) -> float | None:
    values = _known(records, key)
    return sum(values) if values else None


def _per_token(records: Sequence[dict[str, Any]], ranks: int) -> float | None:
    known = [record for record in records if record["joules"] is not None]
    tokens = sum(record["tokens"] for record in known)
    return ranks * sum(record["joules"] for record in known) / tokens if tokens else None


def _largest(records: Sequence[dict[str, Any]], key: str) -> int | None:
    return max(_known(records, key), default=None)


def _share(records: Sequence[dict[str, Any]], key: str, total: int) -> float | None:
    values = _known(records, key)
    return sum(values) / total if values else None
