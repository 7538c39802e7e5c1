"""Time by the place of the program that it goes back to, as one tree; tables by line, module, operator or kernel are
made from it."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.trace.frameworks import Phase
from gpuscope.when_used import TypedDict

# Which recorded event shows something: enough to find it in its rank's file again.


class EventId(TypedDict):
    """One recorded event of a rank; times are on the rank's own clock."""

    table: Literal["device_events", "host_events"]
    """Whether a device or a thread of the host ran it."""
    device: int | None
    """Of a device event; null on a CPU, whose training thread is the device."""
    stream: int | None
    """Of a device event, where it is recorded."""
    thread: int | None
    """Of a host event, the id of its thread, where it is recorded."""
    start_ns: int
    dur_ns: int
    name: str


# The section `host_calls`: what the launching threads of a rank call in a judged step.


class BlockingCallEntry(TypedDict):
    """A place of the program that waits for the device, told apart by call, operator and copy."""

    call: str
    """Runtime call."""
    operator: str | None
    """The innermost operator or range around it."""
    within: str | None
    """The outermost one."""
    copy: str | None
    """`HtoD pageable`, `DtoH`…: the copy that the call makes or waits for; None where it makes none."""
    bytes: int | None
    """Of that copy, the median."""
    count: int
    """Calls in the judged part."""
    per_step: float
    dur_ns: int
    """Time in these calls over the judged part; the device may compute meanwhile."""
    behind: NotRequired[str]
    """The collective that its thread had launched last, which it waits for; absent where that was none."""


class HostCallsEntry(TypedDict):
    """One rank on one device over what is judged. What the threads that launch a rank's work call in a judged step;
    advice names places from here."""

    rank: int
    device: int | None
    runtime: Literal["cuda", "hip", "acl"] | None
    """Whose runtime its calls are."""
    steps: int
    """Judged steps that the figures are of; 1 where the whole window is judged."""
    steady: bool
    """Whether these are steady steps."""
    kernels_per_step: float
    """Compute kernels."""
    repeated_frac: float | None
    """Share of a steady step's kernels, by name and number, that the step before it ran too (median over pairs of
    steps); None with fewer than two steady steps."""
    blocking_calls: list[BlockingCallEntry]
    """Those that block longest first."""
    allocations_per_step: float
    """Calls that allocate device memory (cudaMalloc, hipMalloc…)."""
    frees_per_step: float
    least_allocations: int
    """In the judged step that has fewest."""
    least_frees: int
    maps_segments: bool
    """Whether memory is mapped by the driver's virtual memory calls, as expandable segments are."""
    caches: bool | None
    """Whether the framework's allocator reported memory that it holds; None where the recording has no such events."""
    frees_outside_per_step: float | None
    """Frees in each judged step that no operator made, as torch.cuda.empty_cache() makes them; None where a step has
    none, or operators were not recorded."""
    passes_per_step: int | None
    """Forward passes of DistributedDataParallel in a step, the median; None where there are none, or no steps."""


# The report's section `compilation`: what torch.compile did, from the logs that `TORCH_TRACE` writes.


class CompileEntry(TypedDict):
    """One compilation of a frame on a rank, in order of time."""

    rank: int
    compile_id: str
    """Frame and number of its compilation, as torch has it: `0/1`."""
    function: str | None
    file: str | None
    line: int | None
    """Where the function begins."""
    called_at: str | None
    """The user's line that called it, `file:line`."""
    start_ns: int | None
    """Since 1970."""
    dur_ns: int | None
    step: int | None
    """The step that it was in, of a trace of the same rank; None where it was in none."""
    recompiled: bool
    reason: str | None
    """The guard that failed."""
    failed: str | None
    """Why it failed: the frame then runs uncompiled."""
    cache: str | None
    """`hit`, `miss` or `bypass` of Inductor's cache of graphs."""


class GraphBreakEntry(TypedDict):
    """A line of the user's code at which graphs end, the costliest first."""

    file: str
    line: int | None
    reason: str
    explanation: str | None
    hint: str | None
    """torch's own."""
    ranks: list[int]
    compile_ids: list[str]
    """The compilations that broke there."""
    per_step: float | None
    """How often a judged step of a rank passes it; None where the trace has no ranges of compiled regions."""
    host_ns_per_step: int | None
    """From the end of the graph before it to the next one's begin, mean over ranks and judged steps."""
    idle_ns_per_step: int | None
    """Of it time in which the device was idle."""


class CompiledRankEntry(TypedDict):
    """What compiling took of a rank."""

    rank: int
    compiles: int
    recompiles: int
    failed: int
    cache_misses: int
    compile_ns: int
    """In all, compilations within compilations once."""
    in_steps_ns: int | None
    """Of it in judged steps; None without a trace of the rank on the same clock."""


class DivergenceEntry(TypedDict):
    """A way in which ranks compile unlike one another."""

    kind: str
    """`compilations`: not the same frames or reasons; `schedule`: not the same collectives in the same order."""
    file: str | None
    line: int | None
    function: str | None
    groups: list[list[int]]
    """Ranks that are alike, the largest group first."""
    what: list[str]
    """What each group has."""


class CompilationSection(TypedDict):
    """What torch.compile did and what that costs. Absent without its logs (`TORCH_TRACE`)."""

    compiles: list[CompileEntry]
    graph_breaks: list[GraphBreakEntry]
    ranks: list[CompiledRankEntry]
    divergence: list[DivergenceEntry]


# The report's section `serving`: the steps of an inference server by phase.

Work = Literal["attention", "gemm", "communication", "other"]


class ServingWork(TypedDict):
    """The device's work of one kind in a step of a phase: means over its steps."""

    kind: Work
    dur_ns: int
    """Summed over streams."""
    floor_frac: float | None
    """What the kernels whose FLOPs or bytes are known would take at the device's peaks, by what these took; null where
    none is known."""
    known_frac: float
    """Share of the time whose work is known."""


class ServingBreakdown(TypedDict):
    compute: int
    exposed_communication: int
    exposed_memory: int
    idle: int


class ServingPhase(TypedDict):
    """The judged steps of one phase, of all ranks; of captures all. Times are means per step unless said otherwise."""

    phase: Phase | None
    """Null of steps whose phase the trace does not tell."""
    steps: int
    """Of all ranks together."""
    step_ns: int
    """Median."""
    share_frac: float
    """Of the judged time."""
    breakdown_ns: ServingBreakdown
    """As in `ranks[]`."""
    bound_by: Literal["cpu", "communication", "memory", "compute"]
    """Class, by the rule of the verdict, for these steps alone."""
    cause: str | None
    """Its largest cause."""
    cause_frac: float
    """Share of that class in the phase's time; of `compute`, what is no stall."""
    cpu_ns: int
    """Idle time with a cause of the class `cpu`."""
    gap_ns: int
    """From the end of the step's last work on the device to the begin of the next step's."""
    host_ns: int | None
    """From the first launch to the end of the last one; null where launches are not recorded."""
    launches: float
    """Launch calls, graphs included."""
    graphs: float
    """Of these, graphs."""
    graphed_frac: float
    """Share of the kernels that graphs launched."""
    call_ns: int
    """Time in launch calls."""
    prefill_requests: float | None
    """Mean, as the others: prompts, tokens of these, requests in decode; null where not told."""
    prefill_tokens: float | None
    decode_requests: float | None
    decode_tokens: float | None
    tokens_per_s: float | None
    """Tokens of the batch by the steps' time; null where not told."""
    work: list[ServingWork]


class ServingBatch(TypedDict):
    """Decode steps of one batch size."""

    requests: int
    steps: int
    step_ns: int
    """Median."""
    graphed_frac: float
    """As in `phases[]`."""
    launch_ns: int
    """Idle time with the cause `launch`, outside the gap to the next step, mean."""


class ServingInterval(TypedDict):
    """Times of one kind over the recording."""

    count: int
    median_ns: int
    p90_ns: int
    max_ns: int


class ServingSection(TypedDict):
    """[What the figures mean](serving.md)."""

    server: str | None
    """`vllm`, `sglang` or `tensorrt_llm`, where the trace shows it."""
    phases: list[ServingPhase]
    """The one with most time first."""
    batches: list[ServingBatch]
    """By the number of requests, where told."""
    token_interval: ServingInterval | None
    """From one step that decodes to the next one, whatever runs between: what a request waits for its next token (TPOT
    without the network and the queue)."""
    decode_alone_ns: int | None
    """The same where nothing but decode lies between: its median."""
    first_token: ServingInterval | None
    """Length of steps that prefill: what a prompt that fits one step waits for its first token at least (TTFT without
    the queue)."""
    captured: list[int]
    """Sizes that graphs were captured for in the recording."""


class ServingStep(TypedDict):
    """What was measured of one step of one device: what the section is made from, no part of the report."""

    rank: int
    device: int
    step: int
    gap_ns: int
    host_ns: int | None
    launches: int
    graphs: int
    kernels: int
    graphed: int
    """Kernels that graphs launched."""
    call_ns: int
    collectives: int
    """Kernels that communicate."""
    longest: str
    """Name of the one of these that takes longest; empty without one."""
    work: dict[str, list[int]]
    """By kind: ns, of these ns of kernels whose work is known, and their floor, ns."""


# The sections `compute`, `operator_work`, `ideal` and `device_counters`: what the devices' work consists of, what it
# would take at their peaks, and what their counters showed.

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


PlaceKind = Literal["range", "line", "module", "operator", "kernel", "unknown"]


class PlaceEntry(TypedDict):
    """A place of the program within the one above it. Times are its own, without the places below it, and summed over
    the ranks analysed."""

    id: int
    parent: int | None
    kind: PlaceKind
    """`line` is a function of the user's own code, by the line where it begins; `unknown` stands for what no host event
    covers, or no launch ties to one."""
    name: str
    device_ns: int
    """Durations of device events that were launched there."""
    exposed_communication_ns: int
    """Of communication launched there, what was exposed."""
    idle_ns: int
    """Idle time of the device while the thread that launches next was there."""
