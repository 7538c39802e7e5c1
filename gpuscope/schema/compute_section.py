"""The sections `compute`, `operator_work`, `ideal` and `device_counters`: what the devices' work consists of, what it
would take at their peaks, and what their counters showed."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.schema.event_id import EventId
from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.when_used import TypedDict

Generation = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]


class ComputePart(TypedDict):
    """The kernels of one category in a judged step of one rank."""

    category: str
    """As in `kernels[]`."""
    dur_ns: int
    """Per step; kernels beside each other on several streams count once."""
    known_ns: int
    """Of these, those whose FLOPs or bytes are known."""
    bounded_ns: NotRequired[int]
    """Of the known ones those whose work sets a floor: not where all that they read and write fits the last-level
    cache. Reports of gpuscope 0.2 and before lack it."""
    floor_ns: int
    """What the known ones would take at the device's peaks, those without a floor as long as measured."""


class ReducibleEntry(TypedDict):
    """Kernels of one rank that another setting would make shorter or needless; the code is that of its finding."""

    code: str
    """Of the finding on them."""
    dur_ns: int
    """Over the judged steps."""
    count: int
    detail: str
    """What of it varies: a precision, a size, a kind of optimizer."""
    name: str
    """The longest of these kernels."""
    start_ns: int
    """When that one began."""
    longest_ns: int
    """And how long it took."""
    event: NotRequired[EventId]
    """Which one that is; reports of gpuscope 0.2 and before lack it."""


Roof = Literal["compute", "memory"]


class BelowRoofEntry(TypedDict):
    """An operator with its inputs that runs below half of its roof on one rank, while those of its name hold a tenth of
    the judged time."""

    operator: str
    shapes: str
    """Of its inputs that are tensors."""
    kernel: str
    """The longest of its kernels."""
    category: str
    """As in `kernels[]`."""
    kernels: list[str]
    """Names of all its kernels."""
    calls: float
    """Per step."""
    dur_ns: int
    """Over the judged steps."""
    floor_ns: int
    """What its work needs at the roof."""
    roof: Roof
    """What it would run against: the peak of its precision, or the memory's bandwidth."""
    precision: str
    """Of products; empty where it is not known."""
    peak_per_s: float
    """The roof: FLOP/s or B/s."""
    device_name: str
    """Whose roof it is."""
    device_assumed: bool
    """Whether no file tells the device, so that it is the likeliest by the names of kernels."""
    reason: str | None
    """Why, as far as its inputs tell: `few_tiles`, `odd_sizes`, `tall_and_skinny`, `short_sequence`, `narrow_head`,
    `depthwise`, `channels_last`, `unfused_chain`, `wrong_precision`, `strided_input`."""
    reaches: float | None
    """Share of the roof that this reason alone would leave, about."""
    figures: dict[str, int]
    """What shows the reason: sizes, tiles, multiprocessors."""
    start_ns: int
    """When the longest of its kernels began."""
    longest_ns: int
    event: NotRequired[EventId]


class PowerEntry(TypedDict):
    """One rank's GPU over the judged steps, by the NVML samples that `gpuscope record --nvml-interval MS` puts into the
    trace."""

    rank: int
    samples: int
    sm_mhz: float | None
    """Mean clock of the multiprocessors."""
    power_w: float | None
    """Mean board power."""
    joules_per_step: float | None
    """That power times the step."""
    held_frac: dict[str, float]
    """Share of the samples in which a reason held the clock down: `power_cap`, `thermal`, `power_brake` or
    `set_clocks`."""


class ComputeEntry(TypedDict):
    """One rank's device over its judged steps."""

    rank: int
    device: int
    device_name: str | None
    """Model, whose peaks are taken."""
    generation: Generation | None
    """Of an NVIDIA GPU, by its model, else by the newest architecture that a kernel was compiled for."""
    steps: int
    """1 where the whole window is judged."""
    window_ns: int
    """Of the judged steps."""
    parts: list[ComputePart]
    """The kernels of a judged step by category, the longest first."""
    reducible: list[ReducibleEntry]
    """Kernels that another setting would make shorter or needless."""
    below_roof: NotRequired[list[BelowRoofEntry]]
    """Operators that could be faster, those that leave most first; reports of gpuscope 0.2 and before lack it."""
    why: str
    """Why floors are not known, or not of all kernels; empty where all are."""


class OperatorWorkEntry(TypedDict):
    """Compute kernels by the operator that launched them: sums over the ranks of a mean judged step of each."""

    module: str | None
    """Class of the innermost module around it; null where modules were not recorded, or it is in none."""
    operator: str | None
    """The innermost operator around the launch; null where none is recorded."""
    shapes: str
    """Of its inputs that are tensors; empty where they were not recorded."""
    within: str | None
    """The outermost operator around it."""
    within_shapes: str
    """Of that one's inputs."""
    calls: float
    """Calls of the operator that launched any."""
    kernels: float
    kernel: str
    """The kernel with most of the time."""
    category: str
    """What most of the time does, as in `kernels[]`."""
    dur_ns: int
    """Summed over streams."""
    flops: int
    """0 where they can't be counted from shapes."""
    bytes: int
    """That are moved at least; 0 where they can't be counted."""
    known_ns: NotRequired[int]
    """Of its time that of kernels whose work is known; reports of gpuscope 0.2 and before lack it."""
    peak_ns: int | None
    """What that work needs at the device's peaks; null where these or half of the work are not known."""


class IdealPart(TypedDict):
    """What one kind of work takes in the step and what it would take."""

    name: str
    """Category of kernels, exposed communication, exposed copies, idle."""
    dur_ns: int
    ideal_ns: int


class IdealEntry(TypedDict):
    """What a step of one rank would take with each kernel at the device's peak, each collective at the speed of its
    link, these two beside each other, and no idle time. [What an ideal step is](definitions.md#the-ideal-step)."""

    rank: int
    step_ns: int
    """Mean over its judged steps."""
    compute_ns: int | None
    """Kernels at their floors; those whose work is not known as long as measured."""
    known_frac: float
    """Share of the kernels' time whose work is known. Below half nothing is told of an ideal step."""
    bounded_frac: NotRequired[float]
    """Share of the kernels' time whose work sets a floor; below half nothing is told either."""
    unknown: NotRequired[list[str]]
    """Operators (or kernels) with most of the time whose work is not known, the longest first."""
    communication_ns: int | None
    """Collectives at link speed; None where sizes or the link are not known, and then they count as hidden."""
    ideal_ns: int | None
    """The longer of the two; None where it is not told."""
    parts: list[IdealPart]
    """Where the difference lies, the largest first: categories of kernels, exposed communication and memory, idle."""


class KernelSamples(TypedDict):
    """What a counter showed while one kernel ran."""

    name: str
    samples: int
    """Samples that the kernel's runs fill to nine tenths at least."""
    mean: float
    """Mean of these."""


class DeviceCounterEntry(LinkCounterEntry):
    """A counter of a GPU that is not of a link: its SMs, memory, power, clocks. One entry per rank and counter, from
    nsys's `--gpu-metrics-devices` and the counters of torch 2.15's profiler."""

    rank: int
    device: int
    mean_while_computing: float | None
    """While kernels ran that are no communication; None where none did, or no sample was taken then."""
    mean_while_idle: float | None
    """While nothing ran on the device."""
    kernels: list[KernelSamples]
    """The kernels that fill most samples; a kernel shorter than the interval between samples fills none."""
