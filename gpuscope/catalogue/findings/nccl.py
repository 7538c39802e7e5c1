"""What NCCL's logs and measurements show."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.catalogue.finding import Finding


@dataclass(frozen=True)
class SlowTransport(Finding):
    """Ranks communicate over a slower transport than they could."""

    code = "slow_transport"
    recognised = """the connections of an `NCCL_DEBUG=INFO` log: `NET/…` between ranks on one host (high),
    `NET/Socket` between hosts (medium), `SHM` between GPUs that NVLink joins (high) or that could copy over PCIe
    (medium; not GeForce cards, which have no peer access from the 40 series on)."""
    helps = """inside a host: `NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE` and `NCCL_P2P_LEVEL` unset, containers that share
    `/dev/shm` and the PID and IPC namespaces, ACS off. Between hosts: the IB or vendor's plugin, `NCCL_IB_HCA`,
    `NCCL_SOCKET_IFNAME` for the bootstrap only."""
    misleads = "ranks made to look like several hosts (`NCCL_HOSTID`); a network that has no RDMA."


@dataclass(frozen=True)
class NcclCrossover(Finding):
    """At some size the measured times themselves show that another choice of NCCL's is faster. No model is asked."""

    code = "nccl_crossover"
    recognised = """a smaller message that takes longer than a larger one of the same operation and group; or a
    message that takes longer than the same bytes in messages of the next smaller size, so that bus bandwidth drops.
    Times are medians: of nccl-tests, the Inspector and profiler plugins, and of a trace's own transfers. A difference
    counts from three standard errors on where a size was timed eight times or more, else from 10 %, or from what
    times of one and the same choice are out of order by in that run if that is more. Two sizes that NCCL carried out
    alike are never a crossover."""
    helps = """the choice of the faster size for exactly these sizes, by a tuner file (`gpuscope export
    --nccl-tuner`); `gpuscope bench tune` where NCCL's choices are not recorded. Not `NCCL_ALGO` or `NCCL_PROTO`,
    which hold for all sizes."""
    misleads = """a single reading of a noisy machine; the model's `time` in a log of subsystem TUNING is no
    measurement and is not used."""


@dataclass(frozen=True)
class SlowerRun(Finding):
    """Of several measured runs (files of nccl-tests, communicators of the Inspector), one is slower than another at
    some sizes.
    """

    code = "slower_run"
    recognised = "the same operation, size and number of ranks in both, compared as for `nccl_crossover`."
    helps = "the settings of the faster run. If its log was written with the subsystem ENV, it names them."
    misleads = "runs on different machines, or beside other jobs."


@dataclass(frozen=True)
class LowBusbw(Finding):
    """The largest messages reach less than half of their link's rate."""

    code = "low_busbw"
    recognised = """bus bandwidth from 256 MiB on against a peak that a topology file gives (not one assumed from the
    GPU's model alone), measured by a tool or matched over all ranks. Where NCCL's channels could not carry more, the
    message says so."""
    helps = """`forced_setting`, `slow_transport`, `degraded_link` and `no_gpu_direct` first; then nvbandwidth or
    `ib_write_bw` for the bare link."""
    misleads = "a topology file of another host."


@dataclass(frozen=True)
class MeasuredWhileLogging(Finding):
    """nccl-tests was timed while NCCL logged every call (subsystems COLL, TUNING or ALL)."""

    code = "measured_while_logging"
    recognised = "lines of calls in the file that holds the table."
    helps = "timing with `NCCL_DEBUG=WARN`, and the choices in a run of their own."


@dataclass(frozen=True)
class ForcedSetting(Finding):
    """A variable of NCCL is set to something that its default would beat here."""

    code = "forced_setting"
    recognised = """«set by environment» in NCCL's log, judged by what the log shows of the job: hosts, transports,
    GPUs. Variables that can't matter there (InfiniBand within one host, NVLS before Hopper) are no finding."""
    helps = "to unset it; NCCL's own choice is the default, so nothing is set in its place."
    misleads = "a variable that was set for a good reason, which the log does not know."


@dataclass(frozen=True)
class NoGpuDirect(Finding):
    """Network cards can't read and write GPU memory themselves."""

    code = "no_gpu_direct"
    recognised = (
        """«GPU Direct RDMA Disabled» in NCCL's log. Of severity low within one host, where it costs nothing."""
    )
    helps = "the kernel module `nvidia_peermem`, or dma-buf (the open GPU driver and a kernel from 5.12 on)."
    misleads = "a card that no communicator uses."


@dataclass(frozen=True)
class FewerChannels(Finding):
    """Some ranks have fewer channels than others in communicators of the same size."""

    code = "fewer_channels"
    recognised = """«N coll channels» in NCCL's logs, compared with communicators of as many ranks over as many hosts.
    Where a topology was read too, it names the pair of GPUs with missing NVLinks."""
    helps = """compare `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and the PCIe link state of the ranks' hosts with a
    good one: NCCL makes fewer channels where a link is degraded. Else look for `NCCL_MAX_CTAS` or
    `NCCL_MAX_NCHANNELS` in one host's environment."""
    misleads = "communicators of different purpose with channels set on purpose; hosts of different make."


@dataclass(frozen=True)
class DegradedLink(Finding):
    """A GPU has fewer NVLinks, fewer PCIe lanes or a lower PCIe rate than the others of its host. The pair of GPUs
    whose NVLinks are missing is named, with its ranks where NCCL's log has them.
    """

    code = "degraded_link"
    recognised = """the topology that NCCL or `nvidia-smi` wrote, GPU by GPU of one host: where one has fewer NVLinks
    in all, its pairs that have fewer than pairs of the others."""
    helps = "reseat or replace; a driver reset brings NVLinks back that failed training."
    misleads = """hosts whose GPUs are not connected alike by design. A hybrid cube mesh gives every GPU as many
    links, so a whole one is no finding; of a broken one, pairs that have one link by design may be named too."""


@dataclass(frozen=True)
class WrongResults(Finding):
    """nccl-tests found wrong values."""

    code = "wrong_results"
    recognised = "the column `#wrong` of its tables."
    helps = """stop using the host; `NCCL_PROTO=LL128` forced where the platform does not support it corrupts data
    too."""
