"""Files that are cut off, damaged, or hold what gpuscope does not know."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

# What the profiler did not record, or recorded so that it can't be linked.

_RECORD = "record with: nsys profile -t cuda,nvtx,osrt -o OUT COMMAND"

KERNEL_MISSING = ProblemKind(
    "kernel_missing",
    "data_loss",
    "launches whose kernel was not recorded",
    about="Launches, within the recorded activity of the device, whose kernel is not there: the profiler dropped "
    "records. Idle time may then be work that was not recorded. Beyond half of the launches the verdict abstains if "
    "idle dominates. Record fewer steps, or with larger buffers.",
)
DIGEST_ONLY = ProblemKind(
    "digest_only",
    "info",
    "digests, in which what the training thread computes is one stretch per phase: for operators, kernels and most "
    "advice record a window (`touch RUN/record`)",
    about="A digest of `gpuscope record --always`: phases of the training thread, its waits and the collectives. What "
    "it computes is one stretch per phase, Python between operators included; of a GPU it holds the durations of "
    "collectives alone, and then there is no verdict. For operators, kernels and advice record a window: "
    "`touch RUN/record`.",
)
DIGEST_SAMPLED = ProblemKind(
    "digest_sampled",
    "info",
    "{file}: steps with more collectives than a digest lists: the others are in its sums alone",
    about="A step's line lists the collectives that fit into 3 kB, about 50; of more every second, fourth… is listed, "
    "the same on all ranks, and the others are in sums alone: waiting for a late rank may then count as transfer.",
)
DIGEST_UNSEEN = ProblemKind(
    "digest_unseen",
    "info",
    "{file}: {many} collectives passed between two looks at Flight Recorder's ring and are in no step",
    about="Of a GPU's collectives a digest has what Flight Recorder's ring holds when it looks, once a second at most: "
    "of a busy job (FSDP with many layers) the ring turns over in between. `TORCH_FR_BUFFER_SIZE=20000` holds more.",
)
LOOKS_LIKE_COMMUNICATION = ProblemKind(
    "looks_like_communication",
    "info",
    "kernels counted as compute that behave like communication: {kernel}",
    about="Kernels that no rule knows and that run long beside compute, on a stream of their own, in every step, as "
    "communication does. They count as compute; confidence falls. If they communicate, say so in an issue, with the "
    "library's name.",
)
RECORDS_DROPPED = ProblemKind(
    "records_dropped",
    "data_loss",
    "records that the profiler reports as dropped or lost",
    about="Records that the profiler itself says it dropped or lost: nsys in its diagnostics, libkineto in what it "
    "logs into the trace. Record fewer steps, or with larger buffers.",
)
LAUNCH_MISSING = ProblemKind(
    "launch_missing",
    "info",
    "device events whose launching call was not recorded",
    about="Device events whose launching call was not recorded, as at the beginning of a recording. They count as work "
    "as ever; their launching thread is guessed to be the one that launches most, so confidence in a `cpu` verdict "
    "falls.",
)
DUPLICATE_CORRELATION = ProblemKind(
    "duplicate_correlation",
    "info",
    "launches that share a correlation id with another",
    about="Launches that share a correlation id with another; the last one before the device event is taken.",
)
AWAITED_STREAM_INFERRED = ProblemKind(
    "awaited_stream_inferred",
    "info",
    "stream waits whose other stream is not recorded, but inferred",
    about="Waits of one stream for another where the trace names the call that recorded the event, but not its stream "
    "(torch 2.15's CUPTI back end). It is taken to be the stream of the last launch of the recording thread.",
)
COPY_DIRECTION_UNKNOWN = ProblemKind(
    "copy_direction_unknown",
    "info",
    "{file}: copies whose direction is not recorded",
    about="Copies of which the trace does not say whether they go to or from the device: a `.pftrace` has no place for "
    "it. Whether they block, and what pinned memory would gain, is not judged. Record JSON for that.",
)
CLOCKS_LOCKED = ProblemKind(
    "clocks_locked",
    "info",
    "hardware counters were sampled, which locks the GPU's clocks: don't compare times with a run without them",
    about="Hardware counters were sampled (`PerformanceMetricsConfig`). CUPTI locks the GPU's clocks for that, so "
    "times can't be compared with those of a run without it.",
)
GRAPH_LEVEL = ProblemKind(
    "graph_level",
    "info",
    "CUDA graphs recorded as a whole: each counts as compute, what ran inside is not known (record with "
    "--cuda-graph-trace=node)",
    about="CUDA graphs recorded as a whole. Each counts as compute, and communication inside it is not seen. Record "
    "with `nsys profile --cuda-graph-trace=node`.",
)
FAILED_CALL = ProblemKind(
    "failed_call",
    "info",
    "CUDA calls that returned an error",
    about="CUDA calls that returned an error; nothing is expected of them on the device.",
)
CUT_TO_WINDOW = ProblemKind(
    "cut_to_window",
    "info",
    "the file holds only a window of the recording ({cut}): launches and kernels at its edges are unpaired",
    about="The export holds only a window of the recording: launches at its edges lack their kernels, and kernels "
    "their launches.",
)
OTHER_PROCESSES = ProblemKind(
    "other_processes",
    "info",
    "host events of processes without a rank were dropped",
    about="Host events of processes that are no rank (a launcher, loader workers) were left out.",
)
NSYS_DIAGNOSTIC = ProblemKind(
    "nsys_diagnostic",
    "info",
    "nsys: {said}",
    about="nsys's own error messages, and its doubts whether it collected all events, word for word. Some are false "
    "alarms: a child process that used no CUDA, a capture range that ended as it should.",
)
KERNELS_NOT_RECORDED = ProblemKind(
    "kernels_not_recorded",
    "data_loss",
    "rank {rank}: {launches} launches were recorded and none of their kernels",
    about="A rank launched kernels and none was recorded: the recorder was given nothing by the GPU. It does not mean "
    "that the GPU was idle. The verdict abstains if no rank has device events.",
)
RECORDER_DELIVERED_NOTHING = ProblemKind(
    "recorder_delivered_nothing",
    "info",
    "the recorder was given nothing by the GPU, which does not mean that it was idle. Let the user read its activity "
    "(NVreg_RestrictProfilingToAdminUsers=0, in a container --cap-add SYS_ADMIN; not under WSL), stop other profilers "
    "of the process (nsys, ncu, DCGM's profiling), give torch.profiler warm-up steps (schedule(wait=1, warmup=1, "
    "active=3)), let the process end by itself, and record again",
    about="Why launches may be recorded without their kernels: the user may not read the GPU's activity (CUPTI's "
    "permissions, a container, a VM, WSL), another profiler is attached, the schedule has no warm-up, or the process "
    "was killed before its buffers were written.",
)
HOST_ALONE = ProblemKind(
    "host_alone",
    "info",
    "the launching thread of rank {rank} spent {operators:.1f} % of {window_ms:.2f} ms in operators and {calls:.1f} % "
    "in runtime calls ({waits:.1f} % waiting), most in {most}",
    about="What the host did, of a rank whose launches were recorded without their kernels: where the time of the "
    "thread with most runtime calls went.",
)
DEVICE_UNUSED = ProblemKind(
    "device_unused",
    "info",
    "nothing ran on the {device}: no launch and no copy is among the runtime calls; if the model belongs there, move "
    'it and its batches (.to("cuda"))',
    about="The file names a device, and among the recorded runtime calls is no launch and no copy: the run is judged "
    "as one on the CPU.",
)

CUDA_NOT_TRACED = ProblemKind(
    "no_device_events",
    "info",
    f"CUDA was not traced; {_RECORD}",
    about="The file holds no work of a device; the message says why, as far as the file records it: CUDA was not "
    "traced, was not called, or only some tables were exported. The verdict abstains.",
)
CUDA_TRACED_NO_KERNELS = CUDA_NOT_TRACED.saying(
    "CUDA calls were traced, but the kernels that they launched were not recorded"
)
NOTHING_LAUNCHED = CUDA_NOT_TRACED.saying("CUDA was called, but nothing was launched while recording")
TABLES_NOT_EXPORTED = CUDA_NOT_TRACED.saying("only some tables were exported; export again without --tables")
CUDA_NOT_CALLED = CUDA_NOT_TRACED.saying(
    "CUDA was to be traced, but no profiled process called it while recording (a capture range that never opened, or "
    "work in a process that was not followed)"
)
NO_CUDA_CALLS = CUDA_NOT_TRACED.saying(
    f"the file holds no CUDA calls and does not say whether CUDA was traced; {_RECORD}"
)
DIGEST_OF_A_GPU = CUDA_NOT_TRACED.saying(
    "a digest holds no work of a GPU but the durations of its collectives: record a window (`touch RUN/record`)"
)
OPERATIONS_ONLY = CUDA_NOT_TRACED.saying("{file}: holds operations of training steps, not what devices did")


TRUNCATED = ProblemKind(
    "truncated",
    "data_loss",
    "{file}: truncated; the {what} before the cut were read",
    about="The file was cut off and read with `--partial`; what is there was taken. Without `--partial` a file that is "
    "cut off is an error (exit code 3).",
)
LINES_TRUNCATED = TRUNCATED.saying("{file}: cut off; the lines before the cut were read")

UNDECODABLE_EVENT = ProblemKind(
    "undecodable_event",
    "data_loss",
    "{file}: events with invalid JSON",
    about="Events that are no valid JSON, or packets of a `.pftrace` that can't be read, were left out; their "
    "neighbours were kept.",
)
UNDECODABLE_PACKET = UNDECODABLE_EVENT.saying("{file}: packets that can't be read")

BROKEN_METADATA = ProblemKind(
    "broken_metadata",
    "info",
    "{file}: metadata with a quote in its text",
    about="`profile.add_metadata` of torch.profiler writes a value with a double quote as invalid JSON. The entry was "
    "left out; events are not affected.",
)
RECORD_UNREADABLE = ProblemKind(
    "record_unreadable",
    "data_loss",
    "{file}: {what} that could not be read",
    about="Entries of a Flight Recorder dump, or lines of a log, that lack what they should hold, and files of a run "
    "folder that are no plain files, lead out of it or have no end. They were left out.",
)
FILE_BESIDE_UNREADABLE = RECORD_UNREADABLE.saying("not read: {why}")
OTHER_EXECUTION_TRACE = RECORD_UNREADABLE.saying(
    "{file}: an execution trace of a process with the same number, but of other calls: no sizes were taken from it"
)
RUN_FILE_REFUSED = RECORD_UNREADABLE.saying("{run}: {why}")

BAD_TIME = ProblemKind(
    "bad_time",
    "data_loss",
    "{file}: events whose time is not a number, or too large for a clock",
    about="Events whose start or duration is no number, or too large for a clock in ns, were left out.",
)
BAD_TIME_OF_EVENTS = BAD_TIME.saying("events whose time is not a number, or too large for a clock")
BAD_TIME_OF_OPERATION = BAD_TIME.saying("{file}: operations without a time were left out")
BAD_OPERATION = ProblemKind(
    "bad_operation",
    "data_loss",
    "{file}: operations without rank, stage, step, type or number were left out",
    about="Rows of an operation-level trace without rank, stage, step, type or number were left out.",
)
STEPS_FROM_ZERO = ProblemKind(
    "steps_from_zero",
    "info",
    "{file}: each step begins at 0; the steps were laid end to end, without what lay between them",
    about="In an operation-level trace each step begins at 0; the steps were laid end to end, without what lay between "
    "them.",
)
UNPAIRED_SLICE = ProblemKind(
    "unpaired_slice",
    "data_loss",
    "{file}: host events with a begin or an end alone",
    about="Host events of a `.pftrace` of which only the begin or only the end is there, and those of the same thread "
    "and group of packets, since it is open which belong together. They were left out.",
)
RANGE_NEVER_CLOSED = ProblemKind(
    "range_never_closed",
    "info",
    "NVTX ranges that were never closed were left out",
    about="NVTX ranges that were never closed were left out.",
)
VALUE_MISSING = ProblemKind(
    "value_missing",
    "data_loss",
    "rows of {table} without a valid {column}",
    about="Rows of an nsys export without a value that every such row has in every version of nsys (start, device, "
    "name…): the export is damaged or was changed. Rows without a time are left out; work without a name counts as "
    "compute. Export again.",
)
NAME_MISSING = VALUE_MISSING.saying("rows of {table} whose name is not in StringIds")
NEGATIVE_DURATION = ProblemKind(
    "negative_duration",
    "data_loss",
    "{table}: events that end before they start were dropped",
    about="Events that end before they start were left out.",
)
IMPOSSIBLE_TIME = ProblemKind(
    "impossible_time",
    "data_loss",
    "{table}: events more than a day from all others were dropped",
    about="Events more than a day away from all others were left out: a broken clock, and one of them would stretch "
    "the window to years.",
)
OVERRUNS_STREAM = ProblemKind(
    "overruns_stream",
    "data_loss",
    "device events of {of:,} that end after their successor on the same stream has ended: {cut_ms:,.1f} ms too late in "
    "all, at most {most_ms:,.1f} ms ({name}); each was cut where its successor begins",
    about="Work on one stream is serial, so an event that ends more than 2 µs after the next one on its stream (of one "
    "process, device and context) has ended can't be right: recorders are known to write ends seconds late. Such an "
    "event ends where its successor begins, in every table and figure, and the confidence falls. Nodes of one launch "
    "of a graph, graphs recorded as a whole and rows without a stream are left as they are; where the stream is a "
    "hardware queue (ROCm, Intel, MTIA), only events that outlast three successors and last ten times the median of "
    "their name are cut.",
)
TOTALS_DIFFER = ProblemKind(
    "totals_differ",
    "data_loss",
    "rank {rank}: {by} gives {given_ms:.2f} ms of {part}, the events as read {own_ms:.2f} of {window_ms:.2f} ms",
    about="The trace holds totals of its own (Ascend's «Overlap Analysis», or `step_trace_time.csv` beside it) that "
    "differ from those of the events as they were read, by more than 2 % of the recording: some kind of event was not "
    "understood. The breakdown is then in doubt, and the verdict keeps half of its confidence at most.",
)
TOTALS_CONTRADICT = ProblemKind(
    "totals_contradict",
    "info",
    "rank {rank}: {by} and the events as read differ by a tenth of the recording or more: believe the former",
    about="The trace's own totals (see `totals_differ`) differ from those of the events by a tenth of the recording or "
    "more: there is no verdict.",
)
UNKNOWN_CATEGORY = ProblemKind(
    "unknown_category",
    "info",
    "{file}: events of category {category!r}",
    about="Events of a category that gpuscope does not know were left out. If it is work on a device, please report "
    "it.",
)
UNKNOWN_PACKETS = UNKNOWN_CATEGORY.saying("{file}: {what}, which are not read")

SHAPE_UNREADABLE = ProblemKind(
    "shape_unreadable",
    "info",
    "{file}: recorded inputs that are no shapes",
    about="Distinct recorded inputs of operators (`Input Dims`…) that are no lists of sizes; they count as not "
    "recorded.",
)
COUNTER_UNREADABLE = ProblemKind(
    "counter_unreadable",
    "data_loss",
    "samples of GPU counters without a time or value",
    about="Samples of GPU, network, NVLink or PCIe counters without a time, a name or a number were left out.",
)
LINK_COUNTER_UNREADABLE = COUNTER_UNREADABLE.saying("samples of link counters without a time, name or value")
INVALID_UTF8 = ProblemKind(
    "invalid_utf8",
    "info",
    "{file}: names that are not UTF-8",
    about="Names that are not UTF-8; the bytes that could not be read are shown as `�`.",
)
