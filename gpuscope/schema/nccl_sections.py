"""The report's sections `bandwidth`, `fits`, `traffic`, `nccl` and `topology`."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.schema.provenance import Provenance
from gpuscope.when_used import TypedDict

# The tables that users of other profilers look up: operators, ranges, calls, copies, launches, streams, gaps.
#
# All of them are over the whole recording, or over the steps asked for with `--steps`: like the same tables of `nsys
# stats`, HTA or the TensorBoard plugin, and unlike the verdict, which is of the steady steps.


class KernelRankEntry(TypedDict):
    """One of the kernels that take longest, on one rank."""

    rank: int
    device: int | None
    name: str
    category: str
    operator: str | None
    """The operator or range that launches it, innermost first; of several, the one with most of its time."""
    count: int
    dur_ns: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    share_frac: float
    """Share of the rank's device-event time."""


class OperatorEntry(TypedDict):
    """All calls of one operator of the framework, over the ranks analysed. Device columns: None without a device."""

    name: str
    count: int
    host_ns: int
    """In its calls, with what they call."""
    host_self_ns: int
    """Without the operators and ranges in it."""
    device_ns: int | None
    """Durations of what was launched in its calls."""
    device_self_ns: int | None
    """Of what was launched in no operator or range within it."""
    kernels: int | None
    """Device events launched in its calls."""


class RangeEntry(TypedDict):
    """All ranges of one name on one rank: NVTX, `record_function`, modules. Device columns: None without a device."""

    rank: int
    name: str
    kind: Literal["range", "module"]
    phase: str | None
    """The phase of a step that its name stands for: data, forward, backward, optimizer, checkpoint."""
    count: int
    host_ns: int
    host_mean_ns: int
    host_max_ns: int
    update_ns: NotRequired[int]
    """Of an optimizer's steps that hold the forward and backward of a closure: the host's time behind these."""
    device_ns: int | None
    """Durations of what was launched in it, on whatever stream."""
    compute_ns: int | None
    communication_ns: int | None
    memory_ns: int | None
    device_span_ns: int | None
    """From the first start to the last end of what was launched in it, summed over its instances."""
    kernels: int | None


class PhaseEntry(TypedDict):
    """A phase of the step on one rank. Device columns: None without a device."""

    rank: int
    phase: str
    """data, forward, backward, optimizer, checkpoint; «before» one of them where no range covers it; or `none`."""
    host_ns: int
    """Time in which a thread is in a range of the phase."""
    device_ns: int | None
    """Durations of what was launched in it."""
    compute_ns: int | None
    communication_ns: int | None
    memory_ns: int | None


class ApiCallEntry(TypedDict):
    """Calls of one function of the CUDA, HIP or CANN runtime or driver by one rank."""

    rank: int
    name: str
    count: int
    dur_ns: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    share_frac: float
    """Share of the rank's time in such calls, over its threads."""


class CopyEntry(TypedDict):
    """Copies, memsets or migrations of one kind and size on one rank."""

    rank: int
    device: int | None
    kind: str
    least_bytes: int | None
    """Their sizes are from this on; None where sizes are not recorded."""
    below_bytes: int | None
    """And below this; None for the largest."""
    count: int
    bytes: int | None
    dur_ns: int
    median_ns: int
    max_ns: int
    bandwidth_gbps: float | None
    """Bytes over time, 1e9 B/s."""


class LaunchEntry(TypedDict):
    """How the host launches the kernels of one rank and device."""

    rank: int
    device: int | None
    launches: int
    """Kernels whose launching call is recorded; those of a graph share one."""
    call_ns: int
    """Time in these calls."""
    call_median_ns: int
    call_max_ns: int
    delay_median_ns: int
    """From the call's end to the kernel's start; 0 where it started earlier."""
    delay_max_ns: int
    kernel_median_ns: int
    short_kernels: int
    """Kernels shorter than their launching call."""
    slow_calls: int
    """Calls of 50 µs and more."""
    late_starts: int
    """Kernels that start 100 µs and more after their call."""


class QueueEntry(TypedDict):
    """The launch queue of a stream: what was issued and has not started."""

    rank: int
    device: int | None
    stream: int | None
    operations: int
    mean: float
    """Over time, from the first issue to the last start."""
    max: int
    empty_frac: float
    """Share of that time with nothing queued."""
    start_ns: int
    bin_ns: int
    """Length of a bin of the two lists, of which the first begins at `start_ns`."""
    mean_by_bin: list[float]
    max_by_bin: list[int]


class StreamEntry(TypedDict):
    """One stream of a device, from its first operation to its last."""

    rank: int
    device: int | None
    stream: int | None
    operations: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    host_wait_ns: int
    """Idle: the next operation was not issued yet."""
    queued_wait_ns: int
    """Idle: it was issued, and waited for another stream, an event or the device."""
    longest_idle_ns: int
    compute_ns: int
    communication_ns: int
    memory_ns: int


class GapEntry(TypedDict):
    """One of the longest times in which all streams of a device were idle."""

    rank: int
    device: int | None
    start_ns: int
    dur_ns: int
    step: int | None
    cause: str | None
    """The cause that most of it has; None where causes can't be determined."""
    before: str | None
    """The operation that ends last before it."""
    after: str | None
    """The operation that ends it."""
    host: str | None
    """What the launching thread does in it: the innermost event over most of the gap, else the one over most of it."""
    host_ns: NotRequired[int]
    """How much of the gap that event covers, 0 where there is none; absent where no host events are recorded."""


class BandwidthEntry(TypedDict):
    """By operation, group and size, from the collectives of a trace and from what nccl-tests and NCCL's plugins
    measured. `algbw` is bytes by mean time, `busbw` that times [nccl-tests' factor](definitions.md#bandwidth). Of a
    trace at most 64 sizes of an operation and group are listed, those that took most time. [Where the peak comes
    from](definitions.md#communication-efficiency)."""

    tool: str
    """What timed it: `trace`, or a tool of NCCL."""
    run: str | None
    """What the run is called, where the files hold several of the same kind; else None."""
    op: str
    group: str | None
    """The group's description, else its name; None where the tool records none."""
    bytes: int
    """Size of the whole array."""
    size_basis: str | None
    """What the size is estimated from; None where it is recorded."""
    group_size: int
    """Ranks; 0 where not recorded."""
    variant: str | None
    """`in-place`, `out-of-place`; of the Inspector what timed it."""
    count: int
    """Operations timed."""
    dur_ns: int
    """Mean of one operation."""
    algbw_gbps: float | None
    """1e9 B/s."""
    busbw_gbps: float | None
    """1e9 B/s."""
    lower_bound: bool
    """Whether the time includes waiting that can't be separated: the bandwidth is then a lower bound."""
    algorithm: str | None
    """What NCCL's log says it chose for this operation, size and number of ranks, else what the kernel's name says;
    null where not recorded, or several."""
    protocol: str | None
    channels: int | None
    """What NCCL's log says it chose for this operation and size, else what the kernel's name says (never more than
    the algorithm, but for a library with exact names); None where not recorded or ambiguous."""
    peak_gbps: float | None
    """Line rate of the link, per direction of one GPU."""
    link: str | None
    """The link."""
    peak_basis: str
    """What the peak rests on, or why there is none."""
    peak_provenance: Provenance | None
    """`measured` where a topology file holds the rate, `inferred` from its links and the GPU's model, `assumed` from
    the model alone; None without a peak."""
    efficiency_frac: float | None
    """`busbw` by `peak`; above 1 where switches reduce (NVLS, SHARP)."""
    wrong: int | None
    """Elements with a wrong value; None where the tool did not check."""


class FitEntry(TypedDict):
    """T(S) = α + S·factor/B, fitted to the shortest time of each size of an operation and group; where NCCL's log
    records its choices, per algorithm and protocol."""

    tool: str
    """As in `bandwidth[]`."""
    run: str | None
    op: str
    group: str | None
    group_size: int
    algorithm: str | None
    """What NCCL's log says it chose for these sizes."""
    protocol: str | None
    """NCCL's choice for these sizes, from its log; None where not recorded. Other choices are separate entries."""
    sizes: int
    """Distinct message sizes."""
    alpha_ns: float | None
    """α, the fixed cost; null without a fit."""
    alpha_error_ns: float | None
    """Its standard error; null where the fit held it at 0."""
    busbw_gbps: float | None
    """B: bus bandwidth without the fixed cost."""
    busbw_error_gbps: float | None
    """These two are standard errors; None where the fit had to hold that part at its limit."""
    error_frac: float | None
    """Root mean square of the relative error of the times."""
    why: str
    """Why there is no fit; empty where there is."""


class CrossoverEntry(TypedDict):
    """Sizes at which measured times alone show that another choice of NCCL is faster
    ([how](findings.md#nccl_crossover))."""

    kind: str
    """`larger_is_faster`: a larger message, of `like_bytes`, took less. `bandwidth_drops`: the same bytes in messages
    of `like_bytes` took less. `other_run`: another run of the same took less."""
    tool: str
    """As in `bandwidth[]`."""
    run: str | None
    faster_run: str | None
    """With `other_run`: the run that was faster."""
    op: str
    group: str | None
    group_size: int
    bytes: int
    """The size that takes longer than it must."""
    dur_ns: int
    """Median of one operation."""
    at_most_ns: int
    """What it takes at most by the choice that was faster."""
    like_bytes: int
    """The size whose time shows that."""
    algorithm: str | None
    """NCCL's choice for `bytes`."""
    protocol: str | None
    faster_algorithm: str | None
    """Its choice for `like_bytes`."""
    faster_protocol: str | None
    """NCCL's choices, as in `bandwidth`."""


class TrafficEntry(TypedDict):
    """Messages from one rank to another, as a sparse matrix. Kernels that send and receive at once are left out: how
    their time and bytes divide is not recorded."""

    rank: int
    """The sender."""
    peer: int
    """The receiver."""
    count: int
    """Messages."""
    bytes: int | None
    """None where a size is not recorded."""
    dur_ns: int
    """Sum over messages: the transfer where both ends are matched, else the one recorded end's time."""


class CommunicatorEntry(TypedDict):
    """Communicators of one size with the same setup."""

    size: int
    """Ranks in each."""
    nodes: int | None
    """Hosts."""
    count: int
    """How many such communicators."""
    ranks: list[int]
    """The ranks whose records name them."""
    channels: int | None
    """Channels for collectives."""
    p2p_channels: int | None
    """Channels for send and receive."""
    rings: int | None
    trees: int | None


class TransportEntry(TypedDict):
    """Connections of one transport."""

    transport: str
    """As NCCL writes it: `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB/0/GDRDMA`…"""
    same_node: bool | None
    """Whether both ranks are on one host."""
    pairs: int
    """Ordered pairs of ranks."""
    connections: int
    """Over all channels."""


class ChoiceEntry(TypedDict):
    """What NCCL chose for an operation and size."""

    op: str | None
    group_size: int | None
    """Ranks of the communicator, where the log records them with the choice."""
    bytes: int
    """Size as NCCL logs it."""
    algorithm: str
    """`ring`, `tree`, `collnet_direct`, `nvls`…"""
    protocol: str
    """`ll`, `ll128` or `simple`."""
    channels: int | None
    """Channels used."""
    ranks: int | None
    """Devices whose processes logged it."""
    count: int
    """Times it was logged."""


class VariableEntry(TypedDict):
    """A variable of NCCL that was set when it started."""

    name: str
    value: str


class LinkCounterEntry(TypedDict):
    """A counter of a network port, of NVLink or of PCIe. One entry per port or GPU and counter, from nsys's
    `--nic-metrics`, `--ib-switch-metrics-devices`, `--ib-switch-congestion-devices` and `--gpu-metrics-devices`."""

    place: str
    """`NIC mlx5_0`, `GPU 0`."""
    counter: str
    """As the recorder names it; nsys's `Congestion events: …` are counted by the millisecond."""
    unit: str
    """`%` of the peak, else as the recorder has it."""
    samples: int
    mean: float
    """By time."""
    peak: float
    total: int
    """Sum of the samples, for what counts events."""
    mean_while_exposed: float | None
    """While communication was exposed on some rank of the file; None where none was."""
    start_ns: int
    bin_ns: int
    course: list[float]
    """The mean per `bin_ns` from `start_ns` on."""


class PortEntry(TypedDict):
    """A network port."""

    name: str
    link_layer: str | None
    """RoCE or IB; None where not logged."""
    gpu_direct: bool | None
    """Whether it reads and writes GPU memory itself (GPUDirect RDMA); None where not logged."""


class Nccl(TypedDict):
    """What NCCL said of itself. From `NCCL_DEBUG` logs, nccl-tests, the Inspector and profiler plugins."""

    versions: list[str]
    """NCCL's versions."""
    average_busbw_gbps: list[float]
    """nccl-tests' own averages, one per table."""
    communicators: list[CommunicatorEntry]
    """Communicators with the same setup are one entry."""
    transports: list[TransportEntry]
    """Connections by transport."""
    choices: list[ChoiceEntry]
    """Algorithm and protocol by operation and size."""
    environment: list[VariableEntry]
    """NCCL's variables as its logs say they were set."""
    networks: list[str]
    """What carries messages between hosts: IB, Socket, or a plugin."""
    ports: list[PortEntry]
    """Network ports that its logs name."""
    gpus: list[str]
    """The models of its GPUs, as far as recorded."""


class TopologyEntry(TypedDict):
    """A link inside a host, from NCCL's topology XML or `nvidia-smi topo -m`."""

    source: str
    """File name."""
    node: str
    """`GPU 0000:17:00.0`, `GPU0`, `mlx5_0`…"""
    peer: str
    """The other end."""
    link: str
    """`pcie`, `nvlink`, `nvswitch`, `net`, or a word of the matrix (`NV12`, `PIX`, `SYS`…)."""
    width: int | None
    """PCIe lanes or NVLinks."""
    rate_gbps: float | None
    """1e9 B/s per direction, where recorded."""
