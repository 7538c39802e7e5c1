"""Groups, links and switches: where messages go, and what limits them there."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units

HOSTS_NAMED = 4


@dataclass(frozen=True)
class ExpertImbalance(Finding):
    """All-to-alls of one group bring some ranks more than others: experts with more tokens. Its cost is what even
    routing would save of the busiest rank's experts and of the transfers; it lies within the waiting of other ranks and
    is not added to it.
    """

    code = "expert_imbalance"
    recognised = """the sizes that each rank receives, where they are recorded (the splits of uneven all-to-alls), pass
    by pass: a rank that receives at least 1.2 times the mean of its group, mean over the judged passes. Routers balance
    to within 10–20 %. What a token costs is a line through time over load of all ranks and steps of a layer."""
    helps = """the router's balance (auxiliary loss, bias, capacity factor), other placement or replication of the
    experts with most tokens. A faster network does not."""
    misleads = """a short recording of a router that is even over more steps; a slow rank that also receives most in
    every step: then its pace counts as tokens."""

    group: str
    busiest: list[int]
    most: float
    """What the busiest rank receives, times the mean."""
    mean_bytes: int
    """Per step."""
    cost_ns: int
    """Per step."""

    def message(self) -> str:
        one = len(self.busiest) == 1
        return (
            f"All-to-alls of group {units.clean(self.group)} are uneven: {units.rank_words(self.busiest)} "
            f"{'receives' if one else 'receive'} up to {self.most:.1f} times the mean of "
            f"{units.memory(self.mean_bytes)} per step: more tokens for their experts, not a slower link; even "
            f"routing would save up to {units.duration(self.cost_ns)} of it"
        )


@dataclass(frozen=True)
class GroupAcrossHosts(Finding):
    """A group that communicates within every layer (tensor, sequence, context or expert parallel) spans hosts,
    although one host has room for it. Its cost is part of the communication finding beside it.
    """

    code = "group_across_hosts"
    recognised = """process groups whose description says what they are for (Megatron's, DeviceMesh's), the host name
    in each rank's trace, and the group's exposed communication."""
    helps = "order the mesh so that tensor parallel is innermost; pipeline and data parallel across hosts."
    misleads = "containers that each call themselves a host; hosts joined by NVLink (a rack of NVL72)."

    kind: str
    """Kind of parallelism: tp, sp, cp or ep."""
    groups: int
    size: int
    hosts: list[str]
    share: float

    def message(self) -> str:
        hosts = f"{', '.join(self.hosts[:HOSTS_NAMED])}{'…' if len(self.hosts) > HOSTS_NAMED else ''}"
        return (
            f"{units.plural(self.groups, f'{self.kind} group')} of {self.size} ranks cross hosts ({hosts}), though one "
            f"host could hold each; its exposed communication takes {units.share(self.share)} of the time"
        )


@dataclass(frozen=True)
class NetworkCongestion(Finding):
    """Counters of a network port or switch that stay at 0 on a network that flows counted something."""

    code = "network_congestion"
    severity = "medium"
    recognised = """nsys's `--nic-metrics` and `--ib-switch-metrics-devices`: counters of pauses, congestion notices
    (CNP, ECN), waits for credit, discards, retransmissions; events of `--ib-switch-congestion-devices`, by the
    switch's egress port."""
    helps = """the traffic class of the switches' lossless queue, adaptive routing, more queue pairs on RoCE; other
    jobs on the same links moved."""
    misleads = "other jobs' traffic through the same port."

    counted: list[tuple[str, str, int]]
    """(port or switch, counter, events in all)."""

    def message(self) -> str:
        return "; ".join(f"{place}, {counter}: {total:,} in all" for place, counter, total in self.counted)


@dataclass(frozen=True)
class LinkAtPeak(Finding):
    """NVLink or PCIe carries 80 % of its peak or more while communication is exposed: the link itself is the limit."""

    code = "link_at_peak"
    severity = "medium"
    recognised = """nsys's `--gpu-metrics-devices`: throughput of NVLink and PCIe, averaged over the time in which
    communication is exposed on some rank of the file."""
    helps = """fewer bytes ([wire_bytes](advice.md#suggestions-by-code), bigger messages do not), more overlap,
    another placement."""
    misleads = """copies over the same link at the same time."""

    used: list[tuple[str, str, float]]
    """(device or port, counter, share of its peak while communication is exposed)."""

    def message(self) -> str:
        said = "; ".join(f"{place}, {counter}: {units.share(share)}" for place, counter, share in self.used)
        return f"While communication is exposed, {said} of the peak"


@dataclass(frozen=True)
class SlowPcie(Finding):
    """A GPU's PCIe link runs on fewer lanes than the card has. Its cost is what all lanes would save of the copies that
    hold up the device; what crosses the link hidden behind compute costs nothing.
    """

    code = "slow_pcie"
    recognised = """lanes in use beside the most that the card can use, which gpuscope's recorder reads from sysfs for
    each rank's GPU. The generation is not judged: an idle GPU lowers it, and raises it when it is used."""
    helps = "reseating the card or its riser, a slot with all lanes, bifurcation in the BIOS; else another host."
    misleads = "virtual machines whose virtual link is narrower than the real one; cards built into narrower slots."

    lanes: int
    """Of the narrowest link."""
    most: int

    def message(self) -> str:
        return f"PCIe runs on {self.lanes} of {self.most} lanes, at {units.share(self.lanes / self.most)} of its rate"


@dataclass(frozen=True)
class SlowCopies(Finding):
    """Copies from and to pinned memory stay far below what the GPU's PCIe link can carry. Its cost is what the link's
    usual rate would save of the copies that hold up the device.
    """

    code = "slow_copies"
    recognised = """the fastest of at least 5 copies of 4 MiB and more between the device and pinned memory: below 60 %
    of what the model's PCIe generation carries over 16 lanes. Half the lanes or one generation less give half."""
    helps = SlowPcie.helps
    misleads = """hosts of an older PCIe generation; a link or switch shared with other GPUs and cards that copy all the
    time; memory of the host's other socket."""

    rate: int
    """Of the fastest, bytes/s."""
    usable: int
    """Of the link, bytes/s."""
    copies: int

    def message(self) -> str:
        return (
            f"The fastest of {self.copies} large copies from and to pinned memory reaches "
            f"{units.bandwidth(self.rate / 1e9)}, {units.share(self.rate / self.usable)} of what the GPU's PCIe link "
            "can carry"
        )


@dataclass(frozen=True)
class LateInRecords(Finding):
    """A rank comes late to a communicator's operations, by what NCCL's Inspector timed."""

    code = "late_in_records"
    recognised = """records of NCCL's Inspector of all ranks. An operation ends everywhere together: the rank with the
    shortest time came last, and the others waited for what theirs are longer. The rank has to be late by the test of
    [definitions](definitions.md#waiting-and-transferring) in two stretches of ten operations, up to the last one."""
    helps = "a recording of that rank and another one (`gpuscope record`), which says what it does meanwhile."
    misleads = "times that the plugin took on the CPU (`timing_source`) on a host that is busy."

    communicator: str
    operations: int
    by_ns: int
    """Behind the median rank."""
    since: int | None
    """Number of the operation from which on it is late; None: from the first that is recorded."""

    def message(self) -> str:
        return (
            f"It comes {units.duration(self.by_ns)} late to the {self.operations} recorded operations of communicator "
            f"{units.clean(self.communicator)}{_since(self.since)}"
        )


@dataclass(frozen=True)
class SlowLinkInRecords(Finding):
    """Communicators transfer more slowly than others of the same size that do the same, by what NCCL's Inspector timed,
    whoever comes last.
    """

    code = "slow_link"
    recognised = """the shortest time over the ranks of each operation, compared between communicators of one size with
    the same operations: by the test for late ranks, and at least 1.25 times the others'. The finding's rank is the one
    that is in all slow communicators and in no other, where there is one; else all their ranks."""
    helps = (
        "the named rank's network card, cable and switch port: its counters, `ibdiagnet`, another node in its place."
    )
    misleads = "communicators that cross hosts beside others that don't."

    communicators: list[str]
    times: float
    since: int | None

    def message(self) -> str:
        return (
            f"Transfers of {units.plural(len(self.communicators), 'communicator')} take {self.times:.1f} times as long "
            f"as the same ones of others{_since(self.since)}, also for the rank that comes last"
        )


def _since(operation: int | None) -> str:
    return "" if operation is None else f" since operation {operation}"
