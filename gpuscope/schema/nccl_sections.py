"""The report's sections `bandwidth`, `fits`, `traffic`, `nccl` and `topology`."""

from __future__ import annotations

from typing import TypedDict

from gpuscope.schema.provenance import Provenance


class BandwidthEntry(TypedDict):
    """One operation and size: `algbw` is total bytes by total time, `busbw` that times nccl-tests' factor."""

    tool: str
    """What timed it: `trace`, or a tool of NCCL."""
    run: str | None
    """What the run is called, where the files hold several of the same kind; else None."""
    op: str
    group: str | None
    """The group's description, else its name; None where the tool records none."""
    bytes: int
    size_basis: str | None
    """What the size is estimated from; None where it is recorded."""
    group_size: int
    variant: str | None
    count: int
    """Operations timed."""
    dur_ns: int
    """Mean of one operation."""
    algbw_gbps: float | None
    busbw_gbps: float | None
    lower_bound: bool
    """Whether the time includes waiting that can't be separated: the bandwidth is then a lower bound."""
    algorithm: str | None
    protocol: str | None
    channels: int | None
    """What NCCL's log says it chose for this operation and size, else what the kernel's name says (never more than
    the algorithm, but for a library with exact names); None where not recorded or ambiguous."""
    peak_gbps: float | None
    """Line rate of the link, per direction of one GPU."""
    link: str | None
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
    """T(S) = α + S·factor/B over the sizes of one operation and group; None where there is no fit."""

    tool: str
    run: str | None
    op: str
    group: str | None
    group_size: int
    algorithm: str | None
    protocol: str | None
    """NCCL's choice for these sizes, from its log; None where not recorded. Other choices are separate entries."""
    sizes: int
    """Distinct message sizes."""
    alpha_ns: float | None
    alpha_error_ns: float | None
    busbw_gbps: float | None
    """B: bus bandwidth without the fixed cost."""
    busbw_error_gbps: float | None
    """These two are standard errors; None where the fit had to hold that part at its limit."""
    error_frac: float | None
    """Root mean square of the relative error of the times."""
    why: str
    """Why there is no fit; empty where there is."""


class CrossoverEntry(TypedDict):
    """A size at which measured times alone show that another choice of NCCL is faster."""

    kind: str
    """`larger_is_faster`: a larger message, of `like_bytes`, took less. `bandwidth_drops`: the same bytes in messages
    of `like_bytes` took less. `other_run`: another run of the same took less."""
    tool: str
    run: str | None
    faster_run: str | None
    """With `other_run`: the run that was faster."""
    op: str
    group: str | None
    group_size: int
    bytes: int
    dur_ns: int
    """Median of one operation."""
    at_most_ns: int
    """What it takes at most by the choice that was faster."""
    like_bytes: int
    algorithm: str | None
    protocol: str | None
    faster_algorithm: str | None
    faster_protocol: str | None
    """NCCL's choices, as in `bandwidth`."""


class TrafficEntry(TypedDict):
    """Messages that one rank sent to another."""

    rank: int
    peer: int
    count: int
    bytes: int | None
    """None where a size is not recorded."""
    dur_ns: int
    """Sum over messages: the transfer where both ends are matched, else the one recorded end's time."""


class CommunicatorEntry(TypedDict):
    """Communicators of one size with the same setup."""

    size: int
    nodes: int | None
    count: int
    ranks: list[int]
    channels: int | None
    p2p_channels: int | None
    rings: int | None
    trees: int | None


class TransportEntry(TypedDict):
    """Connections of one transport."""

    transport: str
    same_node: bool | None
    pairs: int
    """Ordered pairs of ranks."""
    connections: int


class ChoiceEntry(TypedDict):
    """What NCCL chose for an operation and size."""

    op: str | None
    group_size: int | None
    """Ranks of the communicator, where the log records them with the choice."""
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    ranks: int | None
    """Devices whose processes logged it."""
    count: int


class VariableEntry(TypedDict):
    """A variable of NCCL that was set when it started."""

    name: str
    value: str


class LinkCounterEntry(TypedDict):
    """A counter of a network port, of NVLink or of PCIe."""

    place: str
    """`NIC mlx5_0`, `GPU 0`."""
    counter: str
    unit: str
    """`%` of the link's peak, else as the recorder has it."""
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
    """What NCCL said of itself."""

    versions: list[str]
    average_busbw_gbps: list[float]
    """nccl-tests' own averages, one per table."""
    communicators: list[CommunicatorEntry]
    transports: list[TransportEntry]
    choices: list[ChoiceEntry]
    environment: list[VariableEntry]
    """NCCL's variables as its logs say they were set."""
    networks: list[str]
    """What carries messages between hosts: IB, Socket, or a plugin."""
    ports: list[PortEntry]
    """Network ports that its logs name."""
    gpus: list[str]
    """The models of its GPUs, as far as recorded."""


class TopologyEntry(TypedDict):
    """A link inside a host."""

    source: str
    node: str
    peer: str
    link: str
    width: int | None
    rate_gbps: float | None
