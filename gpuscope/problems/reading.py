"""Files that are cut off, damaged, or hold what gpuscope does not know."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

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
