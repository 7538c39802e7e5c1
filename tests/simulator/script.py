"""Writes a rank's program as PyTorch would run it: operators that launch kernels, copies, collectives, stalls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simulator.instructions import (
    Allocate,
    Begin,
    Collective,
    End,
    Graph,
    Host,
    Instruction,
    Kind,
    Launch,
    Reason,
    Record,
    StreamWait,
    Synchronize,
    Turn,
    Work,
)
from simulator.job import Job

MAIN_THREAD, AUTOGRAD_THREAD = 0, 1
COMPUTE_STREAM, COMMUNICATION_STREAM, COPY_STREAM = 7, 20, 24
LONG_NS = 1_000_000
"""From here on the host's own work without a launch is long: far more than 20 of its launch intervals."""
HIDDEN = 4_096
FLOPS_PER_NS = 500_000
"""What a matrix product reaches."""
PINNED_RATE, PAGEABLE_RATE = 48.0, 6.0
"""Bytes per ns of copies between host and device."""
C10D_NAMES = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce", "allreduce", "AllReduce_Sum_f32_RING_LL"),
    "all_gather": ("c10d::_allgather_base_", "nccl:_all_gather_base", "_allgather_base", "AllGather_RING_LL"),
    "reduce_scatter": (
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "_reduce_scatter_base",
        "ReduceScatter_Sum_f32_RING_LL",
    ),
    "send": ("c10d::send", "nccl:send", "send", "SendRecv"),
    "recv": ("c10d::recv_", "nccl:recv", "recv", "SendRecv"),
}


class Script:
    """The program of one rank, and what it needs to go on writing it."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.step = -1
        self.out: list[Instruction] = []
        self._nodes: list[Work] = []
        self._used: set[str] = set()
        self._sequence: dict[str, int] = {}
        self._written = 0
        self._unread = 0

    def add(self, *instructions: Instruction) -> None:
        self.out += instructions

    @contextmanager
    def range(self, name: str, category: str = "cpu_op", **args: Any) -> Iterator[None]:
        # Within a graph nothing of the host's side of an operator is left.
        captured = self.job.graphs and category == "cpu_op" and not name.startswith(("c10d::", "record_param"))
        if not captured:
            self.add(Begin(name, category, args))
        yield
        if not captured:
            self.add(End())

    def turn(self, tid: int) -> None:
        self.flush()
        self.add(Turn(tid), Host(round(15_000 * self._host("turn", tid))))

    def op(self, names: tuple[str, ...], *works: Work, shapes: Mapping[str, Any] | None = None) -> None:
        """An operator, with those it calls, that launches kernels."""
        if self.job.graphs:
            self._nodes += works
            return
        self._written += 1
        whole = round(self.job.op_ns * self._host("op", self._written))
        with self.range(names[0]):
            self.add(Host(whole * 2 // 5))
            for name in names[1:]:
                self.add(Begin(name, args=shapes or {}))
            self.add(Host(whole // 5))
            for work in works:
                self.add(self._launch(work))
            for _ in names[1:]:
                self.add(End())
            self.add(Host(whole - whole * 2 // 5 - whole // 5))

    def _launch(self, work: Work) -> Launch:
        first = work.name not in self._used
        self._used.add(work.name)
        factor = self._host("call", self._written, work.name)
        return Launch(
            work,
            dur=round(self.job.call_ns * factor),
            latency=round(self.job.latency_ns * factor),
            load=self.job.first_use_ns if first else 0,
        )

    def _host(self, *key: object) -> float:
        slow = self.job.host_slow.get(self.rank, 1.0) * (self.job.warmup_factor if self.step == 0 else 1.0)
        return slow * self.job.noise(self.job.host_jitter, self.rank, self.step, *key)

    def begin_step(self, step: int) -> None:
        self.step, self._written = step, 0

    def flush(self) -> None:
        """Launch what was captured."""
        if self._nodes:
            self.add(Host(round(20_000 * self._host("graph"))))
            self.add(Graph(tuple(self._nodes), dur=10_000 + 40 * len(self._nodes)))
            self._nodes = []

    def kernel(self, name: str, dur: int, *key: object, batch: bool = True) -> Work:
        """A kernel of the model; `batch`: it takes longer on a longer batch."""
        factor = self.job.device_slow.get(self.rank, 1.0) * self.job.noise(
            self.job.kernel_jitter, self.rank, self.step, *key
        )
        if batch:
            factor *= self.job.scale(self.rank, self.step)
        return Work(name, round(dur * factor), COMPUTE_STREAM, args={"grid": [264, 1, 1], "block": [256, 1, 1]})

    def collective(
        self,
        op: str,
        size: int,
        group: str = "0",
        ranks: tuple[int, ...] | None = None,
        stream: int = COMMUNICATION_STREAM,
        peer: int | None = None,
        gradient: bool = False,
    ) -> str:
        """Issue it behind what is on the compute stream; returns the event of its end."""
        self.flush()
        stream = COMPUTE_STREAM if self.job.one_stream else stream
        ranks = self.job.group if ranks is None else ranks
        seq = self._sequence[group] = self._sequence.get(group, 0) + 1
        call, annotation, name, kernel = C10D_NAMES[op]
        told = _told(op, name, size, group, ranks, seq, self.rank)
        if peer is not None:
            ends = (self.rank, peer) if op == "send" else (peer, self.rank)
            told |= {"Src Rank": ends[0], "Dst Rank": ends[1]}
        done = f"{group}.{seq}.done"
        with self.range(call), self.range("record_param_comms", **told):
            self.add(Host(round(12_000 * self._host("comm", group, seq))))
            self.add(Record(f"{group}.{seq}.ready", COMPUTE_STREAM), StreamWait(f"{group}.{seq}.ready", stream))
            with self.range(annotation, "user_annotation"):
                self.add(Host(round(8_000 * self._host("nccl", group, seq))))
                kind = "send_recv" if op in ("send", "recv") else op
                args = {"kernel": f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", **told}
                wire = self.job.wire if gradient else 1.0
                self.add(Collective(kind, round(size * wire), group, ranks, seq, stream, args=args))
            self.add(Record(done, stream), Host(round(6_000 * self._host("after", group, seq))))
        return done

    def wait_for(self, event: str, stream: int = COMPUTE_STREAM) -> None:
        """The compute stream goes on behind the event."""
        self.flush()
        self.add(StreamWait(event, stream))

    def item(self) -> None:
        """`.item()`: four bytes to the host, and a wait for them."""
        self.flush()
        work = Work("Memcpy DtoH (Device -> Pinned)", 1_500, COMPUTE_STREAM, Kind.MEMORY, "gpu_memcpy", {"bytes": 4})
        with self.range("aten::item"), self.range("aten::_local_scalar_dense"):
            waits = () if self.job.read_late else self._wait(COMPUTE_STREAM)
            self.add(Host(3_000), Launch(work, "cudaMemcpyAsync", 5_000), *waits)
        if self.job.read_late:
            self._unread += 1
            self.add(Record(f"read {self.step}", COMPUTE_STREAM))
        else:
            self.use(self.job.item_own_ns)

    def read(self) -> None:
        """What the step did not read yet."""
        if self._unread:
            self.add(Synchronize(f"read {self.step}"))
            self.use(self._unread * self.job.item_own_ns)
            self._unread = 0

    def use(self, own: int) -> None:
        """The host's own work, in no range that says what it is."""
        self.add(Host(own, Reason.LONG if own >= LONG_NS else Reason.OWN))

    def synchronize(self) -> None:
        """torch.cuda.synchronize()."""
        self.flush()
        self.add(*self._wait(None), Host(3_000))

    def _wait(self, target: int | None) -> tuple[Instruction, ...]:
        return (Synchronize(target),) if self.job.blocking else ()

    def copy_batch(self, number: int) -> None:
        """A part of the batch to the device."""
        job = self.job
        pageable = job.copy == "pageable"
        dur = max(1_500, round(job.copy_bytes / (PAGEABLE_RATE if pageable else PINNED_RATE * job.link)))
        stream = COPY_STREAM if job.copy == "beside" else COMPUTE_STREAM
        name = f"Memcpy HtoD ({'Pageable' if pageable else 'Pinned'} -> Device)"
        work = Work(name, dur, stream, Kind.MEMORY, "gpu_memcpy", {"bytes": job.copy_bytes})
        self.flush()
        with self.range("aten::to"), self.range("aten::_to_copy"), self.range("aten::copy_"):
            self.add(Host(round(8_000 * self._host("copy", number))))
            self.add(Launch(work, "cudaMemcpyAsync", 6_000, blocks=pageable))
            if job.copy in ("pageable", "pinned_sync"):
                self.add(Synchronize(stream))
        if stream != COMPUTE_STREAM:
            self.add(Record(f"batch {number}", stream), StreamWait(f"batch {number}", COMPUTE_STREAM))

    def allocate(self) -> None:
        """A block that the caching allocator did not have: one freed, one taken."""
        self.flush()
        job = self.job
        with self.range("aten::empty_strided"):
            self.add(Allocate("cudaFree", job.allocation_ns, drains=True), Allocate("cudaMalloc", job.allocation_ns))

    def held(self, name: str, dur: int, reason: Reason, category: str = "user_annotation") -> None:
        """The thread is held up within a range of that name."""
        self.flush()
        self.add(Begin(name, category), Host(dur, reason), End())

    @property
    def tokens(self) -> int:
        rows = self.job.gemm_ns * FLOPS_PER_NS / (2 * HIDDEN * HIDDEN) * self.job.scale(self.rank, self.step)
        return max(1, round(rows / 64)) * 64


def _told(op: str, name: str, size: int, group: str, ranks: tuple[int, ...], seq: int, rank: int) -> dict[str, Any]:
    elements, n = size // 4, len(ranks)
    return {
        "Collective name": name,
        "dtype": "Float",
        "In msg nelems": elements // n if op == "all_gather" else elements,
        "Out msg nelems": elements // n if op == "reduce_scatter" else elements,
        "Group size": n,
        "Process Group Name": group,
        "Process Group Description": "default_pg" if group == "0" else f"mesh_{group.rstrip('0123456789')}",
        "Process Group Ranks": str(list(ranks)),
        "In split size": "[]",
        "Out split size": "[]",
        "Seq": seq,
        "Rank": ranks.index(rank),
    }
