"""Collectives that can't be matched, sized or timed."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

RANKS_MISSING = ProblemKind(
    "collectives_ranks_missing",
    "info",
    "collectives not matched: ranks of their group are in none of the files; add the traces of all ranks",
    about="Collectives (one per rank) that can't be matched because ranks of their group are in none of the files. Who "
    "came last is not known then. Add the traces of all ranks.",
)
OUTSIDE_WINDOW = ProblemKind(
    "collectives_outside_window",
    "info",
    "collectives not matched: another rank's capture does not hold them; let all ranks record the same steps",
    about="Collectives that another rank's capture does not hold: it began later, ended earlier or lost the record. "
    "Let all ranks record the same steps.",
)
DISAGREE = ProblemKind(
    "collectives_disagree",
    "info",
    "collectives not matched: ranks disagree on operation, size or count under one sequence number",
    about="Under one sequence number ranks show different operations, sizes or counts, so that which belongs to which "
    "is open.",
)
ORDER_UNKNOWN = ProblemKind(
    "collectives_order_unknown",
    "info",
    "collectives not matched: no sequence numbers, and the order of calls fits in no way or in several",
    about="Without sequence numbers, the order of operations of the ranks fits together in no way or in several "
    "equally good ones. Record with arguments of collectives (torch ≥ 2.4, NVTX of NCCL ≥ 2.26) or the same steps on "
    "all ranks.",
)
GROUP_UNKNOWN = ProblemKind(
    "collectives_group_unknown",
    "info",
    "collectives not matched: which ranks belong to their group is not recorded",
    about="Collectives of a group whose members are not recorded.",
)
PEER_UNKNOWN = ProblemKind(
    "messages_peer_unknown",
    "info",
    "sends and receives not matched: the rank at the other end is not recorded",
    about="Sends and receives whose other end is not recorded, in a group of more than two ranks.",
)
LAST_RANK_UNKNOWN = ProblemKind(
    "last_rank_unknown",
    "info",
    "collectives whose last rank is unknown: another arrived within the clock error of {clock_error}; their waits are "
    "charged to no rank",
    about="Collectives that ranks waited in, but whose last rank is unknown, because another arrived within the "
    "clocks' error. Their waits are charged to no rank.",
)
SIZES_ESTIMATED = ProblemKind(
    "sizes_estimated",
    "info",
    "sizes of collectives are estimated from the {basis}: record their arguments (torch 2.4 and later)",
    about="Collectives whose size is recorded nowhere and was estimated from the shapes of the gradients that they "
    "carry ([how](definitions.md#latency-or-bandwidth-the-cost-of-a-message)). Record their arguments (torch 2.4 and "
    "later).",
)
ASSUMED_LINK = ProblemKind(
    "assumed_link",
    "info",
    "operations with too few different message sizes to fit latency and bandwidth; {links}",
    about="Latency is distinguished from bandwidth by the assumed figures of a link, because the messages are of too "
    "few different sizes to fit its cost. `count` is the number of operations (by group) so judged; the message names "
    "the link.",
)
GROUP_SIZE_UNKNOWN = ProblemKind(
    "group_size_unknown",
    "info",
    "collectives whose size is not known: NCCL logs one rank's share, and the making of the communicator, which "
    "records the number of ranks, lies outside the capture",
    about="Collectives whose size is not known: NCCL logs one rank's share of the array, and the making of the "
    "communicator, which records the number of ranks, lies outside the recording. Start recording before it, or record "
    "the sizes with torch.profiler.",
)
PAYLOAD_UNDECODABLE = ProblemKind(
    "payload_undecodable",
    "data_loss",
    "NCCL payloads whose layout is not in the file",
    about="NCCL payloads whose layout is not in the file.",
)

_WITHOUT_PAYLOADS = "NCCL kernels without sizes and communicators: {why}; operations are known by kernel names alone"
NCCL_RANGES_NOT_RECORDED = ProblemKind(
    "no_nccl_payloads",
    "info",
    _WITHOUT_PAYLOADS.format(why="NCCL's ranges were not recorded (trace with -t cuda,nvtx)"),
    about="NCCL kernels without sizes and communicators; the message says whether they were not recorded, not exported "
    "or not written. Operations are recognised by kernel names alone.",
)
NCCL_WROTE_NO_PAYLOADS = NCCL_RANGES_NOT_RECORDED.saying(
    _WITHOUT_PAYLOADS.format(why="NCCL wrote none (NCCL before 2.14, or built without NVTX)")
)
NCCL_PAYLOADS_NOT_EXPORTED = NCCL_RANGES_NOT_RECORDED.saying(
    _WITHOUT_PAYLOADS.format(why="they were not exported (nsys export --include-blobs=true --include-json=true)")
)

LOG_WITHOUT_OPERATIONS = ProblemKind(
    "log_without_operations",
    "info",
    "{file}: no communicator, choice or time",
    about="A log of NCCL without a communicator, a choice of algorithm or a time: only the settings in it are used. "
    "Record with `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING`.",
)
MEASUREMENT_COLD = ProblemKind(
    "measurement_cold",
    "info",
    "rows of nccl-tests timed without a warm-up are left out: the same was measured after one",
    about="Rows of nccl-tests timed without a warm-up were left out, because the same was also measured after one: the "
    "first call of a size makes connections.",
)
COLLECTIVE_UNTIMED = ProblemKind(
    "measurement_incomplete",
    "data_loss",
    "{file}: collectives without a size or a kernel to time them",
    about="A timed collective that can't be used: nccl-tests' rows without the lines above the table that name "
    "operation and ranks, or a plugin's collectives that no kernel of the same GPU times.",
)
BENCH_ROW_INCOMPLETE = COLLECTIVE_UNTIMED.saying(
    "{file}: rows of nccl-tests without an operation or number of ranks: keep the lines above the table"
)
INSPECTOR_OVERWRITTEN = ProblemKind(
    "inspector_overwritten",
    "data_loss",
    "{file}: operations that NCCL's Inspector overwrote before it wrote them: raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE",
    about="NCCL's Inspector overwrote operations in its rings before it wrote them (`dump_stats`): what is left is a "
    "sample. Raise `NCCL_INSPECTOR_DUMP_COLL_RING_SIZE` or dump more often.",
)
INSPECTOR_DUMP_INCOMPLETE = ProblemKind(
    "inspector_dump_incomplete",
    "data_loss",
    "{file}: operations that a dump of NCCL's Inspector announces and does not hold",
    about="A dump of NCCL's Inspector says how many operations follow its header, and fewer do: the file was cut off.",
)
DUMP_WITHOUT_ENTRIES = ProblemKind(
    "dump_without_entries",
    "info",
    "{file}: no collective is recorded in it",
    about="A Flight Recorder dump without a collective: nothing was enqueued, or its entries are damaged.",
)
GROUP_UNNAMED = ProblemKind(
    "group_unnamed",
    "info",
    "Flight Recorder: progress in groups that the dump does not name",
    about="The dump records the rank's progress in a group by a number, and nothing in it says which group that is.",
)
