"""Pipeline stages that wait for a neighbour."""

from __future__ import annotations

from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION, Cause, FindingFacts, Look, took
from gpuscope.catalogue.straggler_sentences import culprits, whose
from gpuscope.trace import kinds
from gpuscope.trace.schema import Category
from gpuscope.words import vocabulary

# Idle time that no recorded host event explains.

NO_RECORDED_CAUSE_CAUSE = Cause(
    code=UNATTRIBUTED,
    place=130,
    class_name=None,
    label="no recorded cause",
    meaning="the trace holds no host events that could explain the gap",
    message="The device idles, and no recorded event explains it",
    look=Look(vocabulary.GREY, "."),
    located=False,
    idle=True,
    about=(
        "The device is idle and the trace holds no host events that could explain it. If that dominates, the "
        "verdict abstains."
    ),
    recognised="no operator, runtime call, Python frame or operating-system call of the rank around the gap.",
    helps="record the host too: `ProfilerActivity.CPU`, or `nsys profile -t cuda,nvtx,osrt`.",
    misleads="host records of another process (a launcher that was profiled instead of the worker).",
)


# Migrations of unified memory.

PAGING_CAUSE = Cause(
    code="paging",
    place=110,
    class_name="memory",
    label="unified-memory paging",
    meaning="unified-memory faults and migrations",
    message="Unified-memory migrations are not hidden behind compute",
    look=Look(vocabulary.PURPLE, "."),
    detail=took("migrations"),
    about="Pages of unified memory migrate while nothing else runs on the device.",
    recognised="exposed migrations of unified memory, as nsys records them.",
    helps="`cudaMemPrefetchAsync`, memory advice, a working set that fits; or explicit copies.",
    misleads=(
        "faults inside a running kernel: that kernel is slow, and counts as compute. The cost reported here "
        "is a lower bound."
    ),
)


# Copies and memsets that nothing hides.

COPIES_CAUSE = Cause(
    code="copy",
    place=100,
    class_name="memory",
    label="host–device copies",
    meaning="exposed host–device copies and memsets",
    message="Host–device copies are not hidden behind compute",
    look=Look(vocabulary.PURPLE),
    detail=took("copies and memsets"),
    about="Copies between host and device, or memsets, are not hidden behind compute or communication.",
    recognised="exposed memory time of memcpy and memset.",
    helps=(
        "pinned memory and `non_blocking=True` on a stream of its own; prefetch of the next batch; fewer, "
        "larger copies; keep data on the device."
    ),
    misleads="little. A copy by a kernel (`.copy_` on the device) is compute.",
)


# Ranks that wait for a late one.


def _whose(facts: FindingFacts) -> str:
    if not facts.stragglers:
        return ""
    return f"; {whose(facts.stragglers, facts.testable, facts.clock_error_ns)}"


def _culprits(facts: FindingFacts) -> list[int]:
    """The late ranks, not the waiting ones; the table of causes shows those."""
    return sorted(entry["rank"] for entry in culprits(facts.stragglers))


LATE_RANKS_CAUSE = Cause(
    code="straggler",
    place=60,
    class_name="communication",
    label="waiting for a late rank",
    meaning="exposed time of a collective before the last rank has arrived",
    message="Collectives wait for the last rank to arrive",
    look=Look(vocabulary.ORANGE, "/"),
    detail=_whose,
    ranks=_culprits,
    about="Collectives wait for the last rank to arrive.",
    recognised=(
        "matching every collective over all ranks of its group. From a rank's own start to the last rank's "
        "start it waits; what of that is exposed is counted. The finding names the ranks to whom the waiting "
        "goes back, what they were doing, and the [reason](definitions.md#why-a-rank-is-late) where the trace "
        "shows one: its device, its data or its host. The table of causes shows the ranks that **wait**. A "
        "long collective kernel is not evidence of a slow network."
    ),
    helps=(
        "what answers the reason. `device`: its clocks, temperature and memory errors; drain or replace its "
        "node. `data`: batches of equal cost (bucketed or packed sequences, a balanced router). `host`: the "
        "cpu cause that is named, on that rank. A rank that is not recurrent is noise until more steps show "
        "otherwise. A group (four ranks of one host) is mended as a whole: the others wait for whoever is left."
    ),
    misleads=(
        "files of one side only (the cause abstains); clocks that nothing ties together: no claim is finer "
        "than `clock_error_ns`; ranks that run different programs (pipeline stages): there the trail of a "
        "late rank ends, and its wait is traced to no rank. Without recorded shapes a slow device can't be "
        "distinguished from longer data."
    ),
)


# Launches that are slower than the device.

LAUNCH_OVERHEAD_CAUSE = Cause(
    code="launch",
    place=30,
    class_name="cpu",
    label="kernel launch overhead",
    meaning=(
        "the device is idle while that thread issues one launch after the other and is slower than the "
        "device: launch overhead"
    ),
    message="The host launches kernels more slowly than they run",
    look=Look(vocabulary.SKY),
    located=False,
    idle=True,
    about=(
        "The device is idle while the launching thread issues one launch after the other and is slower than "
        "the device: launch overhead, of Python, the framework and the driver."
    ),
    recognised=(
        "the idle time that stays in the replay whose blocking calls return at once, plus the first 10 µs "
        "before an operation that was already queued. Host work that is long against the usual launch "
        "interval is `host_other`, not `launch`."
    ),
    helps=(
        "larger batches or fewer, larger kernels; `torch.compile`; CUDA graphs; foreach or fused optimizers; "
        "less Python per step."
    ),
    misleads=(
        "the profiler itself, which adds microseconds to every operator, most of all with stacks and shapes, "
        "and with `emit_nvtx`; compare with an unprofiled step time. Work that no record shows (a native "
        "library, a busy CPU, a descheduled process) ends up here too if it is short: see how many cores the "
        "job has. A program with few launches: see `host_other`."
    ),
)


# Exposed communication that can't be divided into waiting and transferring.

UNDIVIDED_COMMUNICATION_CAUSE = Cause(
    code=UNDIVIDED_COMMUNICATION,
    place=140,
    class_name="communication",
    label="communication (wait or transfer)",
    meaning=(
        "exposed communication that can't be divided into waiting and transfer: ranks or sizes are missing; "
        "`unattributed` within its class"
    ),
    message=("Communication is not hidden behind compute"),
    look=Look(vocabulary.ORANGE, "x"),
    finding="exposed_communication",
    about=(
        "Communication is exposed, and the trace does not separate waiting from transferring. In `stall_ns` "
        "of the JSON report it is `unattributed` under `communication`. Where it dominates, the verdict is "
        "`communication` and only its cause abstains."
    ),
    recognised=(
        "a communication event that is not matched over the ranks, or is matched but has no recorded size and "
        "takes between two and four times the link's fixed cost."
    ),
    helps=(
        "record all ranks of a group; torch ≥ 2.4 records sizes; nsys exports NCCL's arguments with "
        "`--include-blobs=true` or `--include-json=true`."
    ),
    misleads="–",
)


# Messages whose fixed cost dominates.

MESSAGE_LATENCY_CAUSE = Cause(
    code="latency",
    place=70,
    class_name="communication",
    label="small messages (latency)",
    meaning="exposed transfer of messages so small that the fixed cost dominates",
    message="Collectives are so small that latency dominates",
    look=Look(vocabulary.ORANGE, "."),
    about="Exposed messages are so small that their fixed cost exceeds the cost of their bytes.",
    recognised=(
        "α > S·factor/B in the [cost model](definitions.md#latency-or-bandwidth-the-cost-of-a-message), "
        "fitted where message sizes vary, else assumed (with less confidence). Without a size: a transfer of "
        "less than twice α. A barrier is all latency."
    ),
    helps=(
        "larger buckets (DDP `bucket_cap_mb`), fusing many small collectives, overlapping them with compute, "
        "fewer groups."
    ),
    misleads="an assumed model; on CPU the assumption is 1 ms per gloo collective.",
)


# Transfers limited by bytes over the link.

LINK_BANDWIDTH_CAUSE = Cause(
    code="bandwidth",
    place=80,
    class_name="communication",
    label="link bandwidth",
    meaning="exposed transfer limited by bytes over the link",
    message="Collectives are limited by link bandwidth",
    look=Look(vocabulary.ORANGE),
    about="Exposed transfers are limited by bytes over the link.",
    recognised="S·factor/B ≥ α in the same model. Without a size: a transfer of four times α and more.",
    helps=(
        "overlap (prefetch, smaller first bucket), less volume (gradient accumulation, lower precision, "
        "hybrid sharding within the node), and a look at whether the link gives what it should: `busbw` in "
        "the report against [`gpuscope bench collectives`](bench.md)."
    ),
    misleads=(
        "an assumed model (PCI Express where there is NVLink: it then reports `bandwidth` too often); ranks "
        "that do not start together but are not all in the files, where the world is only assumed."
    ),
)


# The data loader: the thread that launches waits for its next batch.

DATA_LOADER_CAUSE = Cause(
    code="input",
    place=10,
    class_name="cpu",
    label="data loader",
    meaning="the device is idle while the thread that launches next waits for the data loader",
    message="The device waits for the data loader",
    on_cpu="The training thread waits for the data loader",
    look=Look(vocabulary.VERMILLION),
    idle=True,
    precedence=10,
    shown_by=(((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_loader),),
    about="The device is idle while the thread that launches next waits for the data loader.",
    recognised=(
        "that thread is inside `enumerate(DataLoader)#…`, a frame of `torch/utils/data/dataloader.py` or of "
        "its fetcher, or a range named like `data`, `dataloader`, `data loading`, `next batch`, `fetch "
        "batch`, `load_batch`."
    ),
    helps=(
        "more `num_workers`; `persistent_workers`; `pin_memory` with `non_blocking` copies; decode or "
        "tokenise ahead of training; read from local disk. See whether all ranks wait (storage, CPU cores) or "
        "one (its node)."
    ),
    misleads=(
        "a loader that wraps none of these names (write a range `data` around it); a loader that blocks on a "
        "lock held elsewhere; a range named `data` around something else."
    ),
)


# Python's garbage collector, where its runs are recorded as ranges or frames.

GARBAGE_COLLECTION_CAUSE = Cause(
    code="gc",
    place=40,
    class_name="cpu",
    label="Python garbage collection",
    meaning="Python's garbage collection",
    message="Python's garbage collection leaves the device idle",
    on_cpu="Python's garbage collection holds the training thread",
    look=Look(vocabulary.GREEN),
    idle=True,
    precedence=20,
    shown_by=(((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_garbage_collection),),
    about="Python's garbage collector runs on the launching thread while the device is idle.",
    recognised=(
        "a range or frame of the collector (`gc.collect`, `GC …`). Kineto records it with stacks "
        "(`with_stack=True`); `gpuscope record` and `gpuscope train` record ranges for it."
    ),
    helps=(
        "`gc.freeze()` after setting up; `gc.disable()` and a `gc.collect()` at the same step on all ranks; "
        "fewer cycles."
    ),
    misleads="a trace without those ranges; then it looks like `launch`.",
)


# Other work of the launching thread: checkpoints, logging, locks, files, the network.


def _outside(name: str) -> bool:
    return kinds.is_file_or_network_call(name) or kinds.is_lock_or_sleep_call(name)


OTHER_HOST_WORK_CAUSE = Cause(
    code="host_other",
    place=50,
    class_name="cpu",
    label="other host work",
    meaning=(
        "anything else on the launching thread: checkpoint, logging, lock, file or network call, compilation, "
        "or one host operation that computes for long without launching"
    ),
    message="Other host work leaves the device idle",
    on_cpu="Host code other than operators holds the training thread",
    look=Look(vocabulary.GREEN, "/"),
    idle=True,
    precedence=40,
    shown_by=(
        ((Category.ANNOTATION, Category.PYTHON), kinds.is_host_other),
        ((Category.OS,), _outside),
    ),
    about=(
        "The launching thread does something else while the device is idle: a checkpoint, logging, a lock, a "
        "file or network call, compilation, or one host operation that computes for long without launching."
    ),
    recognised=(
        "by name, ranges or frames of checkpoints (`save_checkpoint`, `dcp.save`, `torch.save`), logging, "
        "TensorBoard, wandb and `print`, and calls into the operating system on files and sockets, locks and "
        "sleeps (nsys with `-t osrt`), except inside a CUDA call, whose own waiting they are. By length, a "
        "stretch of the thread's own code of at least 1 ms and 20 usual launch intervals, or a launch call of "
        "1 ms and more whose queue was not full. The evidence names the innermost range that covers most of "
        "it. On a CPU, whatever no other cause covers."
    ),
    helps=(
        "look at what the evidence names. Asynchronous checkpoints, less frequent logging, a thread for what "
        "needs no answer; for compilation and loading a warm-up before the steps that count, and a persistent "
        "cache; for a long host operation, the same work on the device or off the launching thread."
    ),
    misleads=(
        "operating-system calls that nsys leaves out because they are shorter than its threshold; short "
        "logging through a function it does not know by name (then `launch`). A program that launches only a "
        "few times a step: its usual launch interval is long itself, so its host work between launches stays "
        "`launch`."
    ),
)


# Calls that wait for the device and let the launch queue run dry.

BLOCKING_CALLS_CAUSE = Cause(
    code="sync",
    place=20,
    class_name="cpu",
    label="blocking synchronisation",
    meaning=(
        "the device is idle because a blocking call (`.item()`, `cudaStreamSynchronize`, a pageable copy…) "
        "let the launch queue run dry"
    ),
    message="Blocking calls leave the device idle",
    look=Look(vocabulary.YELLOW),
    idle=True,
    about=(
        "The device is idle because a blocking call let the launch queue run dry. The queue fills again over "
        "many launches, so the cost lies in many gaps after the call, not in the call itself: while the host "
        "waits in it the device computes."
    ),
    recognised=(
        "the rank replayed twice, as recorded and with its blocking calls returning at once "
        "([how](definitions.md#sync-host-work-or-launch-two-replays)). What idle time the second one does not have is "
        "`sync`. Blocking are stream, device, context and event synchronisations, synchronous copies, and "
        "asynchronous copies from or to pageable memory, in CUDA, HIP and CANN. The evidence names the call "
        "and the operator around it."
    ),
    helps=(
        "find the `.item()`, `.cpu()`, `print(loss)`, `nonzero`, boolean mask or `tensor.to(device)` of the "
        "evidence and do without it, or do it every n steps; pin the memory of copies; make small constants "
        "once on the device."
    ),
    misleads=(
        "waits between streams that are not recorded and so are inferred from order; a launch queue that the "
        "host would not fill anyway (then little is `sync`, and removing the call gains little). A trace "
        "without runtime calls: nothing links kernels to launches then."
    ),
)


# Calls that allocate or free device or pinned memory.

ALLOCATOR_CALLS_CAUSE = Cause(
    code="allocator",
    place=120,
    class_name="memory",
    label="allocator calls",
    meaning="the device is idle while the host is in `cudaMalloc`, `cudaFree`, `cudaHostAlloc` or similar",
    message="Allocator calls leave the device idle",
    look=Look(vocabulary.PURPLE, "x"),
    idle=True,
    precedence=30,
    shown_by=(((Category.RUNTIME,), kinds.is_allocator_call),),
    about="The device is idle while the host allocates or frees device or pinned memory.",
    recognised=(
        "a call such as `cudaMalloc`, `cudaFree`, `cudaHostAlloc`, `cuMemCreate`, `cuMemMap`, `hipFree`, or "
        "CANN's, on the launching thread. Idle in the breakdown, memory by class."
    ),
    helps=(
        "where hundreds of calls stand in every step, the caching allocator is off: unset "
        "`PYTORCH_NO_CUDA_MEMORY_CACHING`, or have a pluggable allocator cache. Where a few do: "
        "`expandable_segments:True`; fewer distinct sizes (pad sequences to buckets); no "
        "`torch.cuda.empty_cache()` in the loop; headroom, so that the cache is not flushed and retried."
    ),
    misleads=(
        "a recording of warm-up alone: the first steps allocate, later ones should not. `cudaFree` waits for "
        "the device: in a gap that it causes itself its time is counted here, not as `sync`. Calls nested in "
        "an operator (a convolution, say) look like that operator's own search for an algorithm."
    ),
)


PIPELINE_BUBBLE_CAUSE = Cause(
    code="pipeline_bubble",
    place=90,
    class_name="communication",
    label="pipeline bubble",
    meaning="a pipeline stage with nothing to do: it waits for an activation or gradient from a neighbour",
    message="Pipeline stages wait for their neighbours",
    look=Look(vocabulary.ORANGE, "-"),
    about="A pipeline stage has nothing to do: its send or receive waits for a neighbour.",
    recognised=(
        "the exposed wait of a matched send or receive, on either side. The bubble of the section `pipeline` "
        "is more: whatever keeps a stage from computing."
    ),
    helps="more micro-batches; an interleaved or zero-bubble schedule; stages of equal cost.",
    misleads=(
        "send and receive that are not pipeline (an all-to-all that NCCL carries out as `SendRecv`, context "
        "parallelism in a ring). Sends and receives whose other end is not recorded are not matched: without "
        "sizes their time is `exposed_communication`."
    ),
)


CAUSES = (
    ALLOCATOR_CALLS_CAUSE,
    BLOCKING_CALLS_CAUSE,
    COPIES_CAUSE,
    DATA_LOADER_CAUSE,
    GARBAGE_COLLECTION_CAUSE,
    LATE_RANKS_CAUSE,
    LAUNCH_OVERHEAD_CAUSE,
    LINK_BANDWIDTH_CAUSE,
    MESSAGE_LATENCY_CAUSE,
    NO_RECORDED_CAUSE_CAUSE,
    OTHER_HOST_WORK_CAUSE,
    PAGING_CAUSE,
    PIPELINE_BUBBLE_CAUSE,
    UNDIVIDED_COMMUNICATION_CAUSE,
)
