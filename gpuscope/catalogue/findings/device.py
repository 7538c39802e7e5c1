"""What keeps device and host from working side by side: streams, cores, clocks, messages by way of the host."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units

CLOCK_HOLDERS = {
    "power_cap": "its power cap",
    "thermal": "its temperature",
    "power_brake": "the power supply",
    "set_clocks": "clocks that somebody has set",
}
"""What holds a GPU's clocks down: column of the recording, and in words."""


@dataclass(frozen=True)
class SharedStream(Finding):
    """A stream carries both compute and communication, so the two can never overlap there. Its cost is part of the
    communication finding beside it: the two are not added up.
    """

    code = "shared_stream"
    recognised = "exposed collectives on a stream on which kernels compute as well."
    helps = """let the framework use its own communication stream (`async_op=True`, overlapping wrappers), or take the
    collective off the critical path."""
    misleads = "a collective whose result the very next kernel needs: on its own stream it would wait as long."

    streams: list[int]
    share: float

    def message(self) -> str:
        return (
            f"Stream {', '.join(map(str, self.streams))} carries both compute and communication, so these can't "
            f"overlap: {units.share(self.share)} of the time is communication exposed there"
        )


@dataclass(frozen=True)
class WaitsForCore(Finding):
    """The training thread (or the one that launches kernels) was ready to run and had no core. Its cost lies within
    compute, or within the causes of the CPU: it is not added to them.
    """

    code = "waits_for_core"
    recognised = """`schedstat` of the thread in each recorded step, which `gpuscope record` and `gpuscope train` note
    in the trace (Linux). Other recorders leave nothing like it."""
    helps = """more cores per rank (`--cpus-per-task`, a container's CPU limit), fewer threads (`OMP_NUM_THREADS`,
    `torch.set_num_threads`, loader workers), other jobs off the host."""
    misleads = """a share of a core that a container's limit takes away by throttling, which is not counted as
    waiting."""

    share: float
    threads: int = 0
    """In which a rank's operators run; 0 where not recorded."""
    cores: int = 0
    """On which its process may run."""

    def message(self) -> str:
        own = f"operators run in {self.threads} threads on {units.plural(self.cores, 'core')}"
        others = "other threads (communication, loader workers, other processes) held them"
        return (
            f"Training threads were ready to run but had no core for {units.share(self.share)} of the time: "
            f"{own if self.threads > self.cores > 0 else others}"
        )


@dataclass(frozen=True)
class WaitsForGil(Finding):
    """The launching thread waited for Python's GIL, which another thread of its process held, while the device was
    idle. Its cost lies within the causes of idle time: it is not added to them.
    """

    code = "waits_for_gil"
    recognised = """waits for a lock whose call chain leads into CPython's functions that take the GIL (nsys with
    `-t osrt`, which records call chains of waits from 80 µs on), or ranges that say so. torch.profiler leaves nothing
    like it."""
    helps = """work of other Python threads in processes of their own (loader workers, not loader threads), or in
    functions that give the GIL up; `sys.setswitchinterval` below its 5 ms."""
    misleads = "waits shorter than nsys's threshold, which are not recorded."

    share: float
    others: list[str]
    """Names of the other threads that waited for it too: they share it."""

    def message(self) -> str:
        who = f": it is shared with {', '.join(self.others)}" if self.others else ""
        return (
            "The launching thread waited for Python's GIL while the device was idle, for "
            f"{units.share(self.share)} of the time{who}"
        )


@dataclass(frozen=True)
class ClocksHeld(Finding):
    """A GPU's clock is held down by its power cap, its temperature or the power supply in a tenth of the samples or
    more. It has no cost of its own: what it costs is in every kernel. Where the rank is late for it, the finding
    `straggler` says so with the clocks of its peers.
    """

    code = "clocks_held"
    severity = "low"
    recognised = """NVML's reasons for throttling, sampled in the judged steps (`gpuscope record --nvml-interval
    100`). Clocks that somebody has set are no finding; a late rank that has them is reported."""
    helps = """cooling, the same power limit on all GPUs (`nvidia-smi -q -d POWER,CLOCK,PERFORMANCE`), another host
    for a rank whose GPU alone is held down."""
    misleads = """a power cap that all GPUs reach is how full GPUs run: compare ranks, and clocks, before changing
    anything."""

    rank: int
    """The one that is held down most; `ranks` are all."""
    ranks: list[int]
    holder: str
    held: float
    """Share of that rank's samples."""
    mhz: float | None
    watts: float | None

    def message(self) -> str:
        clock = f", {self.mhz:,.0f} MHz on average" if self.mhz is not None else ""
        power = f" at {self.watts:,.0f} W" if self.watts is not None else ""
        more = f"; ranks {', '.join(map(str, self.ranks))} are held down so" if len(self.ranks) > 1 else ""
        return (
            f"The clock of rank {self.rank}'s GPU is held down by {CLOCK_HOLDERS[self.holder]} in "
            f"{units.share(self.held)} of the samples{clock}{power}{more}"
        )


@dataclass(frozen=True)
class HostStagedExchange(Finding):
    """Data is copied from the device, sent by MPI or a socket, and copied to the device: what GPUDirect and NVLink
    would carry directly goes twice through host memory. Its cost is the copies; it is part of the findings on copies
    and blocking calls.
    """

    code = "host_staged_exchange"
    severity = "medium"
    recognised = """a copy from the device, a message and a copy to the device between two kernels, at least twice in
    what is judged, and little else in between (what the host computes there needs the data)."""
    helps = "device pointers in a CUDA-aware MPI; NCCL."
    misleads = "messages that carry other data than the copies."

    call: str
    exchanges: int
    """Per step."""
    share: float
    copied: float
    """Share of the exchanges' time that is spent in their copies."""

    def message(self) -> str:
        return (
            f"Data leaves the device, goes through {self.call} and comes back: "
            f"{units.plural(self.exchanges, 'exchange')} per step take {units.share(self.share)} of the time, "
            f"{units.share(self.copied)} of it in the copies"
        )


@dataclass(frozen=True)
class MemoryAtPeak(Finding):
    """The device's memory is at 80 % of its peak bandwidth or more while kernels run: they are bound by memory, not
    by computing.
    """

    code = "memory_at_peak"
    severity = "low"
    recognised = """counters `DRAM…` and `HBM…` of the GPU in percent of its peak (nsys's `--gpu-metrics-devices`, PM
    sampling of torch 2.15), averaged over the time in which kernels run that are no communication; reading and
    writing together."""
    helps = """fewer passes over memory: fused kernels (`torch.compile`, fused optimizer and attention), narrower
    types."""
    misleads = "copies beside the kernels; PM sampling locks the GPU's clocks."

    rank: int
    """The one whose memory is closest to its peak."""
    used: float

    def message(self) -> str:
        return (
            f"While kernels run, the device's memory is at {units.share(self.used)} of its peak bandwidth "
            f"(rank {self.rank}): they are bound by memory bandwidth, not by computing"
        )
