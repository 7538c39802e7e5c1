"""What NCCL's logs and measurements show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from gpuscope.catalogue.finding import Finding
from gpuscope.schema.nccl_sections import CrossoverEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

NAMED = 3


_WHY_SOCKETS = {"libibverbs": "libibverbs could not be opened", "no_device": "no InfiniBand device was found"}


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

    inside: list[str]
    """`rank→peer transport` of pairs on one host that communicate over the network."""
    sockets: list[str]
    """The same of pairs on different hosts over sockets."""
    through_memory: int = 0
    """Pairs on one host that communicate through its memory."""
    joined: list[str] = field(default_factory=list)
    """GPUs of these that NVLink joins."""
    hosts: int = 0
    """Hosts of a job whose log names sockets as the network, and no connection."""
    no_rdma: list[str] = field(default_factory=list)
    """Why there is no RDMA, as far as the log says it: `libibverbs`, `no_device`, or a variable that forbids it."""

    def headline(self) -> str:
        if not (self.sockets or self.hosts) or self.inside:
            return self.message()
        return f"Between hosts NCCL uses TCP sockets, not InfiniBand or RoCE{self._why()}"

    def shows(self) -> str:
        pairs = f"{units.plural(len(self.sockets), 'pair')} of ranks ({_some(self.sockets)})" if self.sockets else ""
        return pairs or f"NCCL's log names Socket as the network of {self.hosts} hosts"

    def next_step(self) -> str:
        if self.inside or not (self.sockets or self.hosts):
            return (
                "unset what keeps GPUs of one host apart (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE); share /dev/shm and IPC"
            )
        if forbidden := [name for name in self.no_rdma if "=" in name]:
            return f"unset {' and '.join(name.partition('=')[0] for name in forbidden)}"
        if "libibverbs" in self.no_rdma:
            return (
                "install rdma-core (libibverbs) in the image, pass /dev/infiniband into the container, then NCCL_IB_HCA"
            )
        if "no_device" in self.no_rdma:
            return "pass /dev/infiniband into the container; ibstat must show an active port that NCCL_IB_HCA leaves in"
        return (
            "if the hosts have InfiniBand or RoCE: rdma-core in the image, /dev/infiniband passed in, NCCL_IB_HCA; "
            "in a cloud its plugin (aws-ofi-nccl and the like)"
        )

    def _why(self) -> str:
        said = [_WHY_SOCKETS.get(one, f"{one} is set") for one in self.no_rdma]
        return f": {', '.join(said)}" if said else ""

    def message(self) -> str:
        said = []
        if self.hosts:
            said.append(
                f"NCCL's log names sockets as the network between {self.hosts} hosts, without RDMA{self._why()}"
            )
        if self.inside:
            said.append(
                f"{units.plural(len(self.inside), 'pair')} of ranks on one host communicate over the network "
                f"({_some(self.inside)}), not over NVLink, PCIe or shared memory"
            )
        if self.sockets:
            said.append(
                f"{units.plural(len(self.sockets), 'pair')} of ranks on different hosts communicate over sockets "
                f"({_some(self.sockets)}), without RDMA{self._why()}"
            )
        if self.through_memory:
            pairs = f"{self.through_memory} pairs of ranks on one host"
            said.append(f"{pairs} communicate through host memory (SHM){self._instead()}")
        return "; ".join(said)

    def _instead(self) -> str:
        if self.joined:
            return f" though NVLink joins these GPUs ({', '.join(self.joined)})"
        return (
            ", not directly over PCIe: across CPU sockets that is NCCL's choice; else peer access is off (an IOMMU, "
            "ACS, a container or virtual machine)"
        )


WARNINGS: tuple[tuple[str, str], ...] = (
    (
        r"neither AF_INET|no socket interface found|Bootstrap ?: no|connect to .* (?:failed|refused|timed out)"
        r"|Connect to .*failed|Connection refused|socketStartConnect|socketPollConnect|No route to host"
        r"|Network is unreachable",
        "let the hosts reach each other: one version of NCCL everywhere, NCCL_SOCKET_IFNAME for an interface that all "
        "share, no firewall between them",
    ),
    (
        r"[Mm]ismatched? NCCL version|version mismatch|Message truncated",
        "run one version of NCCL and one command everywhere",
    ),
    (r"shared memory|shm_open|/dev/shm|No space left", "give the container more shared memory (--shm-size)"),
    (r"ibv_reg_mr|ibv_create|memlock|Cannot allocate memory", "ulimit -l unlimited on all hosts, and in the container"),
    (r"Duplicate GPU", "give each rank a GPU of its own (CUDA_VISIBLE_DEVICES, torch.cuda.set_device)"),
    (r"out of memory", "free the device's memory: another process holds it"),
    (r"Cuda failure|CUDA (?:driver|runtime)", "nvidia-smi on that host: driver, and devices that the process may use"),
    (r"error 12|status=12|RETRY_EXC", "let the cards reach each other: NCCL_IB_GID_INDEX (RoCE), NCCL_IB_HCA, cables"),
    (r"network .* not found|[Pp]lugin", "put the network's plugin on LD_LIBRARY_PATH, or unset NCCL_NET"),
)
"""What a warning of NCCL is about (a pattern), and what to do; the first that fits."""
ANY_WARNING = "NCCL_DEBUG=INFO shows the lines before it"


def warning_remedy(texts: Sequence[str]) -> str:
    """What to do about warnings of NCCL: that of the first kind that is known."""
    found = (remedy for text in texts for pattern, remedy in WARNINGS if re.search(pattern, text))
    return next(found, ANY_WARNING)


@dataclass(frozen=True)
class NcclTestsFailed(Finding):
    """nccl-tests failed: what it printed is no measurement."""

    code = "nccl_tests_failed"
    severity = "high"
    recognised = """«Test NCCL failure», «Test CUDA failure» or «Test failure» in its output. Its «Avg bus bandwidth» is
    then not shown: it is 0, or the mean of what it came to."""
    helps = "what NCCL warns of before it: the warning names host and file."

    where: list[str]
    """Hosts that failed."""
    failure: str
    """Its first line on it."""
    warnings: list[str]
    """What NCCL warned of."""
    rows: int
    """Rows that it had measured before."""

    def message(self) -> str:
        warned = f"; NCCL warns: {'; '.join(self.warnings[:NAMED])}" if self.warnings else ""
        return f"{self.headline()}: {self.failure}{warned}"

    def headline(self) -> str:
        on = f" on {', '.join(self.where[:NAMED])}" if self.where else ""
        before = f"after {units.plural(self.rows, 'row')}" if self.rows else "before it measured anything"
        return f"nccl-tests failed{on}, {before}"

    def shows(self) -> str:
        return f"NCCL warns: {self.warnings[0]}" if self.warnings else self.failure

    def next_step(self) -> str:
        return warning_remedy([*self.warnings, self.failure])


@dataclass(frozen=True)
class NcclWarning(Finding):
    """NCCL wrote warnings."""

    code = "nccl_warning"
    severity = "medium"
    recognised = "lines with «NCCL WARN» in its log or a job's, where nothing else tells that the job hung or failed."
    helps = "what the line says; `NCCL_DEBUG=INFO` shows those before it."
    misleads = "warnings that NCCL gets over, such as one interface of several that is down."

    warnings: list[str]
    """Each once, with the host where it is known."""
    count: int

    def message(self) -> str:
        more = len(self.warnings) - NAMED
        said = "; ".join(self.warnings[:NAMED]) + (f"; and {more} more" if more > 0 else "")
        return f"{self.headline()}: {said}"

    def headline(self) -> str:
        return f"NCCL warns in {units.plural(self.count, 'line')}"

    def shows(self) -> str:
        return self.warnings[0]

    def next_step(self) -> str:
        return warning_remedy(self.warnings)


@dataclass(frozen=True)
class NcclCrossover(Finding):
    """At some size the measured times themselves show that another choice of NCCL's is faster. No model is asked."""

    code = "nccl_crossover"
    recognised = """a smaller message that takes longer than a larger one of the same operation and group; or a
    message that takes longer than the same bytes in messages of the next smaller size, so that bus bandwidth drops.
    Times are medians: of nccl-tests, the Inspector and profiler plugins, and of a trace's own transfers. A difference
    counts if it exceeds three standard errors (a size that was timed eight times or more) or 10 %, and also the
    disorder that sizes with one and the same choice show in that run. Two sizes that NCCL carried out alike are never
    a crossover."""
    helps = """the choice of the faster size for exactly these sizes, by a tuner file (`gpuscope export
    --nccl-tuner`); `gpuscope tune --nccl` where NCCL's choices are not recorded. Not `NCCL_ALGO` or `NCCL_PROTO`,
    which hold for all sizes."""
    misleads = """a single reading of a noisy machine; the model's `time` in a log of subsystem TUNING is no
    measurement and is not used."""

    op: str
    ranks: int
    of: list[str]
    """Group and run, where they are known."""
    tool: str
    crossovers: list[CrossoverEntry]
    """Those that cost most first."""

    def message(self) -> str:
        said = "; ".join(_crossover(one) for one in self.crossovers[:NAMED])
        more = f"; and {len(self.crossovers) - NAMED} more sizes" if len(self.crossovers) > NAMED else ""
        of = f" ({' of '.join(self.of)})" if self.of else ""
        return f"{self.op} over {self.ranks} ranks{of}, measured by {self.tool}: {said}{more}"


@dataclass(frozen=True)
class SlowerRun(Finding):
    """Of several measured runs (files of nccl-tests, communicators of the Inspector), one is slower than another at
    some sizes.
    """

    code = "slower_run"
    recognised = "the same operation, size and number of ranks in both, compared as for `nccl_crossover`."
    helps = "the settings of the faster run. If its log was written with the subsystem ENV, it names them."
    misleads = "runs on different machines, or beside other jobs."

    op: str
    ranks: int
    pairs: list[tuple[str, str, list[CrossoverEntry]]]
    """(slower run, faster run, sizes at which it is)."""

    def message(self) -> str:
        said = "; ".join(_slower(slow, fast, entries) for slow, fast, entries in self.pairs)
        return f"{self.op} over {self.ranks} ranks: {said}"


@dataclass(frozen=True)
class LowBusbw(Finding):
    """The largest messages reach less than half of their link's rate."""

    code = "low_busbw"
    severity = "medium"
    recognised = """bus bandwidth from 256 MiB on against a peak that a topology file gives (not one assumed from the
    GPU's model alone), measured by a tool or matched over all ranks. Where NCCL's channels could not carry more, the
    message says so."""
    helps = """`forced_setting`, `slow_transport`, `degraded_link` and `no_gpu_direct` first; then nvbandwidth or
    `ib_write_bw` for the bare link."""
    misleads = "a topology file of another host."

    op: str
    ranks: int
    tool: str
    bytes: int
    busbw_gbps: float | None
    share: float
    peak_gbps: float | None
    link: str | None
    channels: int | None
    channels_carry_gbps: float | None
    """What so many channels carry at most, where that is less than the link."""

    def message(self) -> str:
        channels = ""
        if self.channels is not None and self.channels_carry_gbps is not None:
            carry = units.bandwidth(self.channels_carry_gbps)
            channels = f"; {units.plural(self.channels, 'channel')} carry at most about {carry}"
        return (
            f"{self.op} over {self.ranks} ranks ({self.tool}) reaches {units.bandwidth(self.busbw_gbps)} at "
            f"{units.memory(self.bytes)}, {units.share(self.share)} of {units.bandwidth(self.peak_gbps)} "
            f"({self.link}){channels}"
        )


@dataclass(frozen=True)
class MeasuredWhileLogging(Finding):
    """nccl-tests was timed while NCCL logged every call (subsystems COLL, TUNING or ALL)."""

    code = "measured_while_logging"
    severity = "low"
    recognised = "lines of calls in the file that holds the table."
    helps = "timing with `NCCL_DEBUG=WARN`, and the choices in a run of their own."

    calls: int

    def message(self) -> str:
        return (
            f"NCCL logged {units.count(self.calls)} calls while nccl-tests timed them: times of small messages are "
            "upper bounds, and fixed costs fitted to them too high"
        )


@dataclass(frozen=True)
class ForcedSetting(Finding):
    """A variable of NCCL is set to something that its default would beat here."""

    code = "forced_setting"
    recognised = """«set by environment» in NCCL's log, judged by what the log shows of the job: hosts, transports,
    GPUs. Variables that can't matter there (InfiniBand within one host, NVLS before Hopper) are no finding."""
    helps = "to unset it; NCCL's own choice is the default, so nothing is set in its place."
    misleads = "a variable that was set for a good reason, which the log does not know."

    settings: list[tuple[str, str, str]]
    """(variable, value, what that does)."""

    def message(self) -> str:
        return "; ".join(f"{name}={value}: {does}" for name, value, does in self.settings)


@dataclass(frozen=True)
class NoGpuDirect(Finding):
    """Network cards can't read and write GPU memory themselves."""

    code = "no_gpu_direct"
    recognised = (
        """«GPU Direct RDMA Disabled» in NCCL's log. Of severity low within one host, where it costs nothing."""
    )
    helps = "the kernel module `nvidia_peermem`, or dma-buf (the open GPU driver and a kernel from 5.12 on)."
    misleads = "a card that no communicator uses."

    ports: list[str]
    hosts: int | None

    def message(self) -> str:
        where = "all messages between hosts go through host memory"
        if self.hosts == 1:
            where = "no loss within this one host, but between hosts every message would go through host memory"
        return f"GPUDirect RDMA is disabled for {', '.join(self.ports)}: {where}"


@dataclass(frozen=True)
class FewerChannels(Finding):
    """Some ranks have fewer channels than others in communicators of the same size."""

    code = "fewer_channels"
    severity = "medium"
    recognised = """«N coll channels» in NCCL's logs, compared with communicators of as many ranks over as many hosts.
    Where a topology was read too, it names the pair of GPUs with missing NVLinks."""
    helps = """compare `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and the PCIe link state of the ranks' hosts with a
    good one: NCCL makes fewer channels where a link is degraded. Else look for `NCCL_MAX_CTAS` or
    `NCCL_MAX_NCHANNELS` in one host's environment."""
    misleads = "communicators of different purpose with channels set on purpose; hosts of different make."

    ranks: int
    """With fewer channels, of all whose channels are known."""
    of: int
    channels: int
    most: int
    size: int
    """Of the communicators."""
    missing_links: list[str]
    """What the topology shows of pairs of GPUs with missing NVLinks."""

    def message(self) -> str:
        why = "A degraded NVLink or PCIe link can cause this; a topology file of these hosts would name it"
        if self.missing_links:
            why = f"The topology shows why: {'; '.join(self.missing_links[:NAMED])}"
        return f"{self.shows()}. {why}"

    def shows(self) -> str:
        return (
            f"{self.ranks} of {self.of} ranks have fewer channels than others in communicators of the same size: "
            f"{self.channels} instead of {self.most} (size {self.size})"
        )


@dataclass(frozen=True)
class DegradedLink(Finding):
    """A GPU has fewer NVLinks, fewer PCIe lanes or a lower PCIe rate than the others of its host. The pair of GPUs
    whose NVLinks are missing is named, with its ranks where NCCL's log has them.
    """

    code = "degraded_link"
    severity = "medium"
    recognised = """the topology that NCCL or `nvidia-smi` wrote, GPU by GPU of one host: where one has fewer NVLinks
    in all, its pairs that have fewer than pairs of the others."""
    helps = "reseat or replace; a driver reset brings NVLinks back that failed training."
    misleads = """hosts whose GPUs are not connected alike by design. A hybrid cube mesh gives every GPU as many
    links, so a whole one is no finding; of a broken one, pairs that have one link by design may be named too."""

    degraded: list[str]

    def message(self) -> str:
        more = f"; and {len(self.degraded) - NAMED} more" if len(self.degraded) > NAMED else ""
        return "; ".join(self.degraded[:NAMED]) + more


@dataclass(frozen=True)
class WrongResults(Finding):
    """nccl-tests found wrong values."""

    code = "wrong_results"
    severity = "high"
    recognised = "the column `#wrong` of its tables."
    helps = """stop using the host; `NCCL_PROTO=LL128` forced where the platform does not support it corrupts data
    too."""

    rows: int
    elements: int
    """In the worst row, and its operation and size."""
    op: str
    bytes: int

    def message(self) -> str:
        return (
            f"nccl-tests found wrong values in {units.plural(self.rows, 'row')}: {self.elements} elements of "
            f"{self.op} at {units.memory(self.bytes)}"
        )


def _some(pairs: Sequence[str]) -> str:
    more = f" and {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
    return ", ".join(pairs[:NAMED]) + more


def _crossover(one: CrossoverEntry) -> str:
    size, like = units.memory(one["bytes"]), units.memory(one["like_bytes"])
    slow, bound = units.duration(one["dur_ns"]), units.duration(one["at_most_ns"])
    now = f" by {_choice(one['algorithm'], one['protocol'])}" if one["algorithm"] else ""
    then = f" by {_choice(one['faster_algorithm'], one['faster_protocol'])}" if one["faster_algorithm"] else ""
    if one["kind"] == "larger_is_faster":
        return f"{size} take {slow}{now}, {like} only {bound}{then}"
    return f"{size} take {slow}{now}, as many bytes in messages of {like} only {bound}{then}"


def _choice(algorithm: str | None, protocol: str | None) -> str:
    return "/".join(word for word in (algorithm, protocol) if word)


def _slower(slow: str, fast: str, entries: Sequence[CrossoverEntry]) -> str:
    sizes = sorted(entry["bytes"] for entry in entries)
    most = max(entries, key=lambda entry: entry["dur_ns"] / entry["at_most_ns"])
    over = most["dur_ns"] / most["at_most_ns"] - 1
    where = units.memory(sizes[0])
    if len(sizes) > 1:
        where = f"{len(sizes)} sizes between {where} and {units.memory(sizes[-1])}"
    times = f"{units.duration(most['dur_ns'])}, {units.duration(most['at_most_ns'])}"
    most_of_all = f"{units.share(over)} ({units.memory(most['bytes'])}: {times})"
    return f"{slow} takes longer than {fast} at {where}, by up to {most_of_all}"
