"""Every table of a Trace, declared once: name, dtype and meaning of each column.

Times are int64 nanoseconds on the run's clock. An absent integer is stored as `NA` and shown as
`pandas.NA`; an absent name has code `NO_NAME` and is shown as NaN. Row references (`refs`) are row
numbers of another table of the same Trace, or `NA`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Literal

import numpy as np

from gpuscope.when_used import dataclass

NA: int = int(np.iinfo(np.int64).min)
"""An absent integer (as NaT is in numpy); never shown to users, who see `pandas.NA`."""

MOST_RANKS = 1 << 20
"""A rank from here on is damage: no job is as large, and tables by rank would take any amount of memory."""

NS_PER_US = 1_000

Dtype = Literal["time", "int", "name", "enum"]


class Kind(IntEnum):
    """What a device event is; exactly one of these (definitions: «Device events of a rank»)."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2


class Category(IntEnum):
    """What a host event is."""

    OP = 0
    """An operator of the framework (`aten::mm`, autograd functions)."""
    RUNTIME = 1
    """A call into the CUDA, HIP or CANN runtime or driver."""
    ANNOTATION = 2
    """A range named by the user or the framework (`record_function`, NVTX)."""
    PYTHON = 3
    """A Python function from a recorded stack."""
    OS = 4
    """A call into the operating system: file, network, lock, sleep."""
    OVERHEAD = 5
    """The profiler's own work."""
    COMMUNICATION = 6
    """A communication call as the host saw it (gloo, MPI)."""
    SAMPLE = 7
    """A function in which consecutive samples of the CPU found the thread."""


class AllocatorAction(IntEnum):
    """What PyTorch's caching allocator did (`TraceEntry::Action`)."""

    ALLOC = 0
    """Memory handed out."""
    FREE_REQUESTED = 1
    """Memory given back, perhaps still in use on another stream."""
    FREE_COMPLETED = 2
    """Memory given back and free for reuse."""
    SEGMENT_ALLOC = 3
    """cudaMalloc."""
    SEGMENT_FREE = 4
    """cudaFree."""
    SEGMENT_MAP = 5
    """Pages mapped into an expandable segment."""
    SEGMENT_UNMAP = 6
    OOM = 7
    """A request failed."""


class BlockState(IntEnum):
    """State of a block in an allocator snapshot."""

    ALLOCATED = 0
    AWAITING_FREE = 1
    """Freed, but in use on another stream."""
    INACTIVE = 2
    """Free for reuse."""


class MessageOrder(IntEnum):
    """In what order a rank sends, receives and computes within a step."""

    NEEDS_INPUT = 0
    """Its first message is a receive, and it computes between that and its first send, or sends nothing: a stage."""
    SENDS_FIRST = 1
    """What it sends first needs no received message: the first stage, or a member of an exchange."""
    SENDS_GRADIENTS = 2
    """The same, and its backward pass is over before: no stage's, whose gradients need a message."""


class RolePlace(IntEnum):
    """Where the time of a role's timer lies in the step of a job made of roles."""

    STEP = 0
    """The step itself."""
    PART = 1
    """A part of the step, that no other part overlaps."""
    NESTED = 2
    """Within another timer, or around several: it is counted there."""
    BESIDE = 3
    """Beside the parts: a rollout for the next step."""
    OUTSIDE = 4
    """Between two steps."""


@dataclass(frozen=True)
class Column:
    """One column: `dtype` time and int are int64, name is an int32 code, enum an int8 of `enum`.

    Integers of a `narrow` column are kept in 32 bits where they fit; those that are never absent are then given out
    as int32.
    """

    name: str
    dtype: Dtype
    doc: str
    optional: bool = False
    refs: str | None = None
    enum: type[IntEnum] | None = None
    narrow: bool = False


@dataclass(frozen=True)
class TableSchema:
    """A table's name, meaning and columns; rows are kept in the order of `sort`."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    sort: tuple[str, ...] = ()

    def column(self, name: str) -> Column:
        """The column of that name. Raises `KeyError` for a name that is not declared."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name!r} has no column {name!r}")


_RANK = Column("rank", "int", "rank in the distributed job")
_RANK_OF_EVENT = replace(_RANK, narrow=True)
_START = Column("start", "time", "start, ns on the run's clock")
_END = Column("end", "time", "end, ns on the run's clock; never before start")

RANKS = TableSchema(
    "ranks",
    "one row per rank and device",
    (
        _RANK,
        Column("device", "int", "device ordinal; absent where the host's training thread is the device", True),
        Column("source", "int", "row in Trace.sources of the file it came from"),
        Column("pid", "int", "process id", True),
        Column("device_name", "name", "model of the device, e.g. NVIDIA H100 80GB HBM3", True),
        Column("host", "name", "host name", True),
        Column("world_size", "int", "number of ranks in the job, as its file records it", True),
        Column(
            "world_basis",
            "name",
            "where world_size is from: asked, distributed_info (or absent), communicators, environment, manifest",
            True,
        ),
        Column("device_id", "name", "identifies the device: its UUID, else its PCI address", True),
        Column("host_devices", "name", "devices of its host as its file lists them, comma-separated", True),
        Column("backend", "name", "communication backend: nccl, gloo, hccl, mpi", True),
    ),
    sort=("rank", "device"),
)

RECORDING = TableSchema(
    "recording",
    "completeness of a recording: one row per file with a timeline",
    (
        Column("source", "int", "row in Trace.sources of the file"),
        Column(
            "operator_ids",
            "int",
            "External ids of operators in the file, less the lowest and highest 1 %; absent where none are recorded",
            True,
        ),
        Column(
            "operator_id_span",
            "int",
            "ids from the lowest to the highest of these, less blocks of 512 without any: whole files have nearly all",
            True,
        ),
        Column("kernels", "int", "kernels on the device"),
        Column("kernels_without_launch", "int", "kernels without a recorded launching call"),
        Column("launches", "int", "calls that launched a kernel or a graph before the last kernel began"),
        Column("launches_without_kernel", "int", "launches without a recorded kernel"),
        Column("dropped", "int", "records that the profiler says it dropped or lost", True),
        Column("incomplete", "int", "warnings of the profiler that it may not have collected all events", True),
    ),
)

DEVICE_EVENTS = TableSchema(
    "device_events",
    "work on a device: kernels, copies, memsets, migrations. For a rank without a device, its training "
    "thread's operators and collectives stand here",
    (
        _RANK_OF_EVENT,
        Column("device", "int", "device ordinal", True, narrow=True),
        Column("stream", "int", "stream on the device", True, narrow=True),
        Column("context", "int", "context that numbers the stream, where it matters", True, narrow=True),
        _START,
        _END,
        Column("kind", "enum", "what the event is: compute, communication or memory", enum=Kind),
        Column("name", "name", "kernel or copy"),
        Column(
            "correlation",
            "int",
            "the profiler's id of the launch: equals host_events.correlation of the call, within a rank",
            True,
            narrow=True,
        ),
        Column("bytes", "int", "bytes moved", True),
        Column(
            "copy_kind",
            "name",
            "HtoD, DtoH, DtoD, PtoP, HtoH, memset, or `migration …` (unified memory, with its cause where recorded)",
            True,
        ),
        Column("graph", "int", "CUDA graph that launched it", True, narrow=True),
        Column("launch", "int", "the host event that launched it", True, refs="host_events", narrow=True),
    ),
    sort=("rank", "start"),
)

GRAPH_NODES = TableSchema(
    "graph_nodes",
    "device events that were nodes of a CUDA graph, where the trace says which",
    (
        Column("event", "int", "the device event", refs="device_events"),
        Column("node", "int", "the node's number in its graph: the low 32 bits of CUPTI's id"),
        Column("annotation", "name", "what the program called the part of the graph that it belongs to", True),
    ),
)

BACKWARD = TableSchema(
    "backward",
    "autograd's nodes by the operators that made them, where lines or modules were recorded with sequence numbers",
    (
        Column("event", "int", "the node, an operator of the backward pass", refs="host_events"),
        Column("forward", "int", "the operator of the forward pass", refs="host_events"),
    ),
)

SMALL_GRIDS = TableSchema(
    "small_grids",
    "kernels that run long on few blocks, where the trace has the size of their launch",
    (
        Column("event", "int", "the device event", refs="device_events"),
        Column("blocks", "int", "blocks of the grid"),
        Column("threads", "int", "threads of a block"),
    ),
)

GRAPH_DEPENDENCIES = TableSchema(
    "graph_dependencies",
    "what a node of a CUDA graph waited for in the same replay of the graph, where the trace says so",
    (
        Column("event", "int", "the device event that waited", refs="device_events"),
        Column("after", "int", "the device event that it waited for", refs="device_events"),
        Column(
            "host_ns", "int", "time that host functions of the graph took between the two, ns; 0 where there are none"
        ),
    ),
)

HOST_EVENTS = TableSchema(
    "host_events",
    "what host threads did: operators, runtime calls, annotations, Python, operating-system calls",
    (
        _RANK_OF_EVENT,
        Column("thread", "int", "thread that did it", refs="threads", narrow=True),
        _START,
        _END,
        Column("category", "enum", "operator, runtime call, annotation…", enum=Category),
        Column("name", "name", "what was called"),
        Column(
            "correlation",
            "int",
            "the profiler's id of the launch: equals device_events.correlation of the work, within a rank",
            True,
            narrow=True,
        ),
    ),
    sort=("rank", "start"),
)

THREADS = TableSchema(
    "threads",
    "host threads",
    (
        _RANK,
        Column("pid", "int", "process id", True),
        Column("tid", "int", "thread id", True),
        Column("name", "name", "thread name", True),
    ),
)

SYNCS = TableSchema(
    "syncs",
    "synchronisation records of a device (`cuda_sync`): not work, never counted as time on the device",
    (
        _RANK,
        Column("device", "int", "device ordinal", True),
        Column("stream", "int", "stream that the call waited for", True),
        _START,
        _END,
        Column("name", "name", "kind of synchronisation"),
        Column("correlation", "int", "equals host_events.correlation of the call that waited", True),
        Column(
            "awaited_stream",
            "int",
            "where a stream waits for an event: the stream that the event was recorded on",
            True,
        ),
        Column(
            "record",
            "int",
            "where a stream waits for an event: correlation id of the call that recorded the event",
            True,
        ),
    ),
    sort=("rank", "start"),
)

COLLECTIVES = TableSchema(
    "collectives",
    "collective and point-to-point operations with what the trace says of their arguments",
    (
        _RANK,
        Column("start", "time", "start of the event that carried it out, ns", True),
        Column("end", "time", "end of the event that carried it out, ns", True),
        Column("event", "int", "the device event that carried it out", True, refs="device_events"),
        Column("host_event", "int", "the host call that carried it out (gloo, MPI)", True, refs="host_events"),
        Column("op", "name", "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv…"),
        Column("group", "name", "process group or communicator", True),
        Column("group_description", "name", "what the framework calls the group, e.g. mesh_dp", True),
        Column("group_size", "int", "ranks in the group", True),
        Column("group_ranks", "name", "ranks in the group, as recorded", True),
        Column("seq", "int", "sequence number within the group", True),
        Column("bytes", "int", "size of the whole array, as nccl-tests counts it", True),
        Column("size_basis", "name", "what `bytes` is estimated from; absent where it is recorded", True),
        Column("share", "int", "bytes of one rank's share, where that is recorded and the group's size is not", True),
        Column("received", "int", "bytes that this rank receives in an all-to-all", True),
        Column("dtype", "name", "element type", True),
        Column("peer", "int", "the other rank of a point-to-point operation", True),
        Column("first_use", "name", "the operator that first uses the result, of an execution trace", True),
        Column("first_use_after", "int", "time from the call to the start of that operator, ns", True),
        Column("peer_place", "int", "the other rank's index within the group, where only that is recorded", True),
    ),
    sort=("rank", "start"),
)

MESSAGE_ORDERS = TableSchema(
    "message_orders",
    "in what order a rank sends, receives and computes within a step, by process group; derived by an analysis",
    (
        _RANK,
        Column("group", "name", "process group or communicator", True),
        Column("first_send", "enum", "whether its first send needs a received message", enum=MessageOrder),
        Column("steps", "int", "steps of this order, the most frequent one"),
    ),
)

ACTIVITY = TableSchema(
    "activity",
    "what a rank did between its last communication and the start of its next collective; per collective only the "
    "longest operations are named",
    (
        _RANK,
        Column("collective", "int", "the collective that came next", refs="collectives"),
        Column("phase", "name", "data, forward, backward, optimizer, checkpoint, or «before» one of them", True),
        Column("operation", "name", "operation on the device, or what the host did while it was idle", True),
        Column("dur", "int", "time spent, ns"),
    ),
)

WORK = TableSchema(
    "work",
    "what a rank's device computed in its steady steps, summed by operation and input shape, to compare ranks by",
    (
        _RANK,
        Column("operation", "name", "the operator with recorded shapes that launched it, else the kernel"),
        Column("dims", "name", "its input dimensions, as JSON", True),
        Column("elements", "int", "elements of its inputs", True),
        Column("count", "int", "how often"),
        Column("dur", "int", "time of its kernels, ns"),
        Column("steps", "int", "steady steps in the sum; 1 for a recording without steps"),
    ),
)

EXPERT_TOKENS = TableSchema(
    "expert_tokens",
    "tokens of each of a rank's experts after an all-to-all, from the shapes of their matrix products",
    (
        _RANK,
        Column("arrival", "time", "end of the all-to-all that brought them, ns on the run's clock"),
        Column("expert", "int", "place among the rank's experts, from 0"),
        Column("tokens", "int", "rows that it multiplies"),
    ),
    sort=("rank", "arrival"),
)

SHAPES = TableSchema(
    "shapes",
    "input shapes of operators whose floating-point operations or bytes can be counted from them, and of gradients",
    (
        Column("event", "int", "the operator", refs="host_events"),
        Column("dims", "name", "input dimensions, as JSON"),
        Column("types", "name", "input element types, as JSON", True),
        Column("concrete", "name", "scalar inputs, as JSON", True),
        Column("strides", "name", "strides of the inputs, as JSON", True),
    ),
)

STEPS = TableSchema(
    "steps",
    "steps as the host saw them",
    (
        _RANK,
        Column("step", "int", "step number"),
        _START,
        _END,
        Column("basis", "name", "what the steps were found from"),
        Column("phase", "name", "of an inference server: prefill, decode, mixed or capture", True),
        Column("prefill_requests", "int", "prompts in the batch", True),
        Column("prefill_tokens", "int", "tokens of these that the step works on", True),
        Column("decode_requests", "int", "requests in the batch that get their next token", True),
        Column("decode_tokens", "int", "tokens of these; of a capture, the size that is captured", True),
    ),
    sort=("rank", "start"),
)

GROUPS = TableSchema(
    "groups",
    "process groups a rank belongs to",
    (
        _RANK,
        Column("group", "name", "process group"),
        Column("description", "name", "what the framework calls it", True),
        Column("size", "int", "ranks in it", True),
        Column("place", "int", "index of this rank within the group, from 0", True),
        Column("ranks", "name", "its ranks, comma-separated", True),
        Column("backend", "name", "communication backend", True),
    ),
)

OPERATIONS = TableSchema(
    "operations",
    "operations of training steps, timed by the job itself: what each pipeline stage of a data-parallel replica "
    "computes, sends and synchronises",
    (
        _RANK,
        Column("dp_rank", "int", "data-parallel replica"),
        Column("stage", "int", "pipeline stage; absent where a rank's messages alone show its computations", True),
        Column("step", "int", "step number"),
        Column("op", "name", "forward-compute, backward-compute, forward-send, grads-reduce-scatter, optimizer…"),
        _START,
        _END,
        Column("seq", "int", "number among the operations of its type, rank and step, by start"),
        Column("micro_batch", "int", "micro-batch", True),
        Column("chunk", "int", "model chunk within the stage", True),
        Column("global_chunk", "int", "model chunk within the model", True),
    ),
    sort=("rank", "start"),
)

_ANY_RANK = Column("rank", "int", "rank in the distributed job; absent where not recorded", True)

ROLE_TIMES = TableSchema(
    "role_times",
    "what the roles of a job for reinforcement learning take in each step, by the job's own timers",
    (
        _ANY_RANK,
        Column("step", "int", "step number; absent where only start and duration are recorded", True),
        Column("role", "name", "rollout, reward, log_probs, reference, update_actor, weight_sync…"),
        Column("timer", "name", "as the job calls it"),
        Column("place", "enum", "step, part, nested, beside or outside", enum=RolePlace),
        Column("began", "time", "start, ns since the epoch or on the recorder's clock", True),
        Column("dur", "int", "how long it took, ns"),
    ),
)

ROLE_FIGURES = TableSchema(
    "role_figures",
    "what else a job for reinforcement learning says of a step, or of all: lengths of responses, GPUs of a role",
    (
        Column("step", "int", "step number; absent for what holds for all", True),
        Column("figure", "name", "response_length_mean, request_s_max, gpus_rollout…"),
        Column("value", "int", "in millionths"),
    ),
)

LOG_STEPS = TableSchema(
    "log_steps",
    "step times that the log of a job tells, one row per time read",
    (
        _ANY_RANK,
        Column("series", "name", "what tells the time: the key or the shape of the line"),
        Column("step", "int", "step number as logged", True),
        Column("dur", "int", "time of a step, ns; absent where only time stamps tell it", True),
        Column("covers", "int", "steps that it is the mean of, where the log says so", True),
        Column("time", "time", "when the line was written, ns since 1970 or on a progress bar's clock", True),
        Column("line", "int", "number of the line in its file"),
        Column("source", "int", "row in Trace.sources of the file"),
    ),
)

LOG_EVENTS = TableSchema(
    "log_events",
    "what else the log of a job tells: marks, evaluations, checkpoints, parts of the start-up, restarts",
    (
        _ANY_RANK,
        Column("what", "name", "init_start, run_start, run_stop, evaluation, checkpoint, part, restart, first, last…"),
        Column("text", "name", "the beginning of the line", True),
        Column("name", "name", "of a part: what it is", True),
        Column("step", "int", "step number as logged", True),
        Column("dur", "int", "how long it took, ns, where the line says so", True),
        Column("time", "time", "when the line was written, as in log_steps", True),
        Column("line", "int", "number of the line in its file"),
        Column("source", "int", "row in Trace.sources of the file"),
    ),
)

LOG_FIGURES = TableSchema(
    "log_figures",
    "figures on the lines of the log of a job: memory, tokens, loss scale, requests…",
    (
        _ANY_RANK,
        Column("figure", "name", "memory, tokens_per_s, loss_scale, sequence_length, mfu, running, waiting…"),
        Column("value", "int", "in millionths"),
        Column("step", "int", "step number as logged", True),
        Column("time", "time", "when the line was written, as in log_steps", True),
        Column("line", "int", "number of the line in its file"),
        Column("source", "int", "row in Trace.sources of the file"),
    ),
)

FLIGHT_RECORDS = TableSchema(
    "flight_records",
    "entries of Flight Recorder dumps: the last collective and point-to-point operations a rank enqueued",
    (
        _RANK,
        Column("record", "int", "number of the entry; counts from 0 over all operations of the rank"),
        Column("group", "name", "process group"),
        Column("seq", "int", "collectives of the group up to and including this entry"),
        Column("p2p_seq", "int", "point-to-point operations of the group up to and including this entry"),
        Column("op", "name", "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv…"),
        Column("peer", "int", "the other rank of a point-to-point operation", True),
        Column("dtype", "name", "element type", True),
        Column("sizes", "name", "input sizes, as JSON", True),
        Column("state", "name", "scheduled, started or completed, as recorded"),
        Column("done", "int", "1 where it completed or was retired, 0 where not; absent where unknown", True),
        Column("created", "time", "when it was enqueued, ns", True),
        Column("seen_started", "time", "when the watchdog first saw it begun, ns; it looks every 100 ms", True),
        Column("seen_completed", "time", "when the watchdog first saw it done, ns; it looks every 100 ms", True),
        Column("dur", "int", "from begin to end on the device, ns, with TORCH_NCCL_ENABLE_TIMING", True),
        Column("frames", "name", "the Python stack that enqueued it, innermost first, one frame per line", True),
    ),
    sort=("rank", "record"),
)

GROUP_STATUS = TableSchema(
    "group_status",
    "how far a rank had got in each of its process groups when it wrote its Flight Recorder dump",
    (
        _RANK,
        Column("group", "name", "process group"),
        Column("enqueued", "int", "number of the last operation it enqueued", True),
        Column("started", "int", "number of the last operation seen to start", True),
        Column("completed", "int", "number of the last operation seen to complete", True),
    ),
)

HOST_STACKS = TableSchema(
    "host_stacks",
    "what a thread of a rank was in when its stack was dumped (faulthandler, py-spy, a traceback in a log)",
    (
        _ANY_RANK,
        Column("pid", "int", "process id", True),
        Column("thread", "name", "thread, as the dump names it", True),
        Column("main", "int", "1 for the main thread, else 0"),
        Column("gil", "int", "1 where it held the interpreter's lock, 0 where not; absent where unknown", True),
        Column("taken", "time", "when its file was written, ns since 1970"),
        Column("frames", "name", "innermost first: function (file:line), with the line's code after a tab where known"),
        Column("source", "int", "row in Trace.sources of the file"),
    ),
)

HANG_SIGNS = TableSchema(
    "hang_signs",
    "lines of logs, and states of processes, that tell why a rank may have stopped",
    (
        _ANY_RANK,
        Column("pid", "int", "process id, where the line names a process and no rank", True),
        Column("sign", "name", "killed, out_of_memory, crashed, stopped, network, gpu_error, timed_out… (SIGNS)"),
        Column("text", "name", "the line"),
        Column("line", "int", "its number in the file"),
        Column("place", "name", "line of the program that a traceback around it names", True),
        Column("source", "int", "row in Trace.sources of the file"),
    ),
)

RANK_PROGRESS = TableSchema(
    "rank_progress",
    "how far a rank had got by NCCL's RAS, or by what torch's watchdog logged, and whether it answered",
    (
        _ANY_RANK,
        Column("told_by", "name", "ras, watchdog, gloo or signal (a watchdog's that another rank's log tells of)"),
        Column("group", "name", "communicator or process group; empty where no line names it"),
        Column("launched", "int", "operations launched", True),
        Column("completed", "int", "number of the last operation completed", True),
        Column("waited", "int", "number of the operation that it waited for until its time was up", True),
        Column("op", "name", "that operation", True),
        Column("numel_in", "int", "elements of its input", True),
        Column("numel_out", "int", "elements of its output", True),
        Column("state", "name", "alive, unresponsive, dead or aborted; absent where unknown", True),
        Column("source", "int", "row in Trace.sources of the file"),
    ),
)

COMPILATIONS = TableSchema(
    "compilations",
    "what torch.compile compiled, one row per compiled frame and cause, as TORCH_TRACE logs it",
    (
        _RANK,
        Column("compile_id", "name", "torch's id: frame/compilation of it, e.g. 0/1"),
        Column("frame", "int", "number of the frame"),
        Column("nth", "int", "number of the compilation of that frame, from 0: later ones are recompilations"),
        Column("start", "time", "when it began, ns since 1970", True),
        Column("end", "time", "when it ended, ns since 1970", True),
        Column("open", "int", "1 where the log has its begin alone: it was under way when the log ended, else 0"),
        Column("function", "name", "the compiled function", True),
        Column("file", "name", "its file", True),
        Column("line", "int", "the line where it begins", True),
        Column("called_at", "name", "the user's line that called it, file:line", True),
        Column("reason", "name", "why it was compiled again: the guard that failed", True),
        Column("failed", "name", "why compiling failed; the frame then runs uncompiled", True),
        Column("cache", "name", "of Inductor's cache of graphs: hit, miss or bypass", True),
        Column("schedule", "name", "collectives of the compiled code in their order, as JSON", True),
    ),
)

GRAPH_BREAKS = TableSchema(
    "graph_breaks",
    "where torch.compile ended a graph, as TORCH_TRACE logs it",
    (
        _RANK,
        Column("compile_id", "name", "the compilation that broke"),
        Column("file", "name", "file of the user's code"),
        Column("line", "int", "line of the user's code", True),
        Column("reason", "name", "what could not be compiled"),
        Column("explanation", "name", "torch's explanation", True),
        Column("hint", "name", "torch's first hint", True),
    ),
)

COMPILED_GAPS = TableSchema(
    "compiled_gaps",
    "idle time between the graphs of one compiled call, which graph breaks leave; derived by an analysis",
    (
        _RANK,
        Column("regions", "name", "compile ids of the compiled frames around the graph before it, the innermost first"),
        Column("step", "int", "number of the step that they are in"),
        Column("count", "int", "how often in that step"),
        Column("host_ns", "int", "time between the graphs, ns"),
        Column("idle_ns", "int", "of it time in which the device was idle, ns"),
    ),
)

COMPILED_KERNELS = TableSchema(
    "compiled_kernels",
    "the user's lines that kernels generated by Inductor come from, where the log tells",
    (
        _RANK,
        Column("kernel", "name", "the kernel's name"),
        Column("place", "name", "the user's line: file(line): function"),
    ),
)

COMMUNICATORS = TableSchema(
    "communicators",
    "communicators as NCCL records them, one row per rank in each",
    (
        _ANY_RANK,
        Column(
            "communicator",
            "name",
            "name shared by all its ranks; if not recorded, host:pid:pointer of this rank",
        ),
        Column("size", "int", "ranks in it", True),
        Column("nodes", "int", "hosts in it", True),
        Column("channels", "int", "channels for collectives", True),
        Column("p2p_channels", "int", "channels for point-to-point operations", True),
        Column("rings", "int", "number of rings", True),
        Column("trees", "int", "number of trees", True),
        Column("version", "name", "NCCL's version", True),
        Column("host", "name", "host name", True),
        Column("device", "int", "device ordinal", True),
        Column("bus_id", "name", "PCI address of the device", True),
        Column("device_name", "name", "model of the device", True),
    ),
)

CONNECTIONS = TableSchema(
    "connections",
    "connections between two ranks of a communicator, by transport",
    (
        _RANK,
        Column("peer", "int", "the rank it sends to"),
        Column("communicator", "name", "as in communicators", True),
        Column("transport", "name", "P2P/CUMEM, P2P/IPC, SHM/direct, NET/IB/0/GDRDMA, NET/Socket/0…"),
        Column("count", "int", "connections of this kind, over channels"),
        Column("same_node", "int", "1 where both ranks are on one host, 0 where not", True),
    ),
)

CHOICES = TableSchema(
    "choices",
    "algorithm and protocol that NCCL chose by operation and size",
    (
        Column("op", "name", "all_reduce, all_gather…", True),
        Column("group_size", "int", "ranks of the communicator", True),
        Column("bytes", "int", "size as NCCL logs it"),
        Column("algorithm", "name", "tree, ring, nvls…"),
        Column("protocol", "name", "ll, ll128, simple"),
        Column("channels", "int", "channels used", True),
        Column("ranks", "int", "distinct ranks that chose so", True),
        Column("count", "int", "times it was logged"),
        Column("source", "int", "row in Trace.sources of the file it came from", True),
    ),
)

MEASUREMENTS = TableSchema(
    "measurements",
    "timed collectives: rows of nccl-tests and `gpuscope bench`, records of NCCL's Inspector and profiler plugins",
    (
        _ANY_RANK,
        Column("tool", "name", "nccl-tests, gpuscope-bench, inspector, profiler-plugin"),
        Column("op", "name", "all_reduce, all_gather…"),
        Column("group_size", "int", "ranks that took part"),
        Column("bytes", "int", "size of the whole array, as nccl-tests counts it"),
        Column("dur", "int", "time of one operation, ns"),
        Column("busbw", "int", "bus bandwidth as the tool reports it, B/s", True),
        Column("count", "int", "operations that the time is averaged over", True),
        Column("variant", "name", "in-place or out-of-place, or what timed it", True),
        Column("wrong", "int", "elements with a wrong value", True),
        Column("source", "int", "row in Trace.sources of the file it came from", True),
        Column("communicator", "name", "the communicator, where the tool names it", True),
        Column("seq", "int", "number of the operation within its communicator: the same on all its ranks", True),
        Column("warmup", "int", "operations run before the timed ones", True),
    ),
)

TOPOLOGY = TableSchema(
    "topology",
    "links between the devices of one host, from NCCL's topology XML or nvidia-smi",
    (
        Column("source", "int", "row in Trace.sources of the file it came from"),
        Column("node", "name", "one end: GPU0, a PCI address, a network card"),
        Column("peer", "name", "the other end"),
        Column("link", "name", "nvlink, nvswitch, pcie, net, or a path of `topo -m` (NV12, PIX, PHB, SYS…)"),
        Column("width", "int", "NVLinks, PCIe lanes or ports", True),
        Column("rate", "int", "bytes per second and direction over all of them, where recorded", True),
    ),
)

_SOURCE = Column("source", "int", "row in Trace.sources of the file it came from")

COUNTERS = TableSchema(
    "counters",
    "samples of counters of network ports, NVLink, PCIe and GPUs",
    (
        _SOURCE,
        Column("place", "name", "the port or GPU: NIC mlx5_0, GPU 0"),
        Column("counter", "name", "as the recorder names it"),
        Column("unit", "name", "of the value, as the recorder has it; % of the peak for NVLink and PCIe"),
        Column("start", "time", "start of the sample, ns on the run's clock"),
        Column("end", "time", "its end"),
        Column("value", "int", "what was counted during the sample, or the level reached"),
        Column(
            "parts",
            "int",
            "what to divide the value by: 1000 where it is in thousandths; absent for whole units",
            True,
        ),
    ),
)
_FRAMES = Column("frames", "name", "the stack that asked for it, innermost first, one frame per line", True)

ALLOCATOR_EVENTS = TableSchema(
    "allocator_events",
    "what the caching allocator did, from allocator snapshots; in the order it was done, per file and device",
    (
        _RANK,
        _SOURCE,
        Column("device", "int", "device ordinal"),
        Column("time", "time", "when, ns since the epoch; absent where not recorded", True),
        Column("action", "enum", "alloc, free_requested, segment_alloc, oom…", enum=AllocatorAction),
        Column("address", "int", "address of the block or segment; absent for a failed request", True),
        Column("bytes", "int", "bytes asked for; of a segment, its size"),
        Column("stream", "int", "stream it was for"),
        Column("device_free", "int", "bytes free on the device when a request failed", True),
        _FRAMES,
    ),
)

SEGMENTS = TableSchema(
    "segments",
    "memory the caching allocator holds from the device at the time of a snapshot",
    (
        _RANK,
        _SOURCE,
        Column("device", "int", "device ordinal"),
        Column("address", "int", "address"),
        Column("bytes", "int", "its size: what counts as reserved"),
        Column("stream", "int", "stream whose requests it serves"),
        Column("small", "int", "1 where it serves requests of at most 1 MiB, 0 where larger ones"),
        Column("expandable", "int", "1 for mapped pages of an expandable segment, 0 for a cudaMalloc"),
        Column("private_pool", "name", "the private pool (CUDA graph, MemPool) it belongs to", True),
        _FRAMES,
    ),
)

BLOCKS = TableSchema(
    "blocks",
    "pieces of the segments, in order of address",
    (
        _RANK,
        Column("segment", "int", "the segment it is part of", refs="segments"),
        Column("address", "int", "address"),
        Column("bytes", "int", "its size"),
        Column("requested", "int", "bytes that were asked for", True),
        Column("state", "enum", "allocated, awaiting_free or inactive", enum=BlockState),
        _FRAMES,
    ),
)

MEMORY_SAMPLES = TableSchema(
    "memory_samples",
    "memory of the caching allocator over time, as a profiler saw it at each allocation and free",
    (
        _RANK,
        Column("device", "int", "device ordinal"),
        Column("time", "time", "when, ns on the run's clock"),
        Column("allocated", "int", "bytes in tensors"),
        Column("reserved", "int", "bytes held from the device", True),
    ),
    sort=("rank", "time"),
)

SCHEMAS: dict[str, TableSchema] = {
    schema.name: schema
    for schema in (
        RANKS,
        RECORDING,
        DEVICE_EVENTS,
        GRAPH_NODES,
        SMALL_GRIDS,
        GRAPH_DEPENDENCIES,
        BACKWARD,
        HOST_EVENTS,
        THREADS,
        SYNCS,
        COLLECTIVES,
        MESSAGE_ORDERS,
        ACTIVITY,
        WORK,
        EXPERT_TOKENS,
        SHAPES,
        STEPS,
        GROUPS,
        OPERATIONS,
        ROLE_TIMES,
        ROLE_FIGURES,
        LOG_STEPS,
        LOG_EVENTS,
        LOG_FIGURES,
        FLIGHT_RECORDS,
        GROUP_STATUS,
        HOST_STACKS,
        HANG_SIGNS,
        RANK_PROGRESS,
        COMPILATIONS,
        GRAPH_BREAKS,
        COMPILED_GAPS,
        COMPILED_KERNELS,
        COMMUNICATORS,
        CONNECTIONS,
        CHOICES,
        MEASUREMENTS,
        TOPOLOGY,
        COUNTERS,
        ALLOCATOR_EVENTS,
        SEGMENTS,
        BLOCKS,
        MEMORY_SAMPLES,
    )
}
