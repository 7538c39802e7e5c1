"""Runs that ended badly, and ranks and files that are not there."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

# What the logs of a job made of roles leave open.

TIMERS_UNKNOWN = ProblemKind(
    "role_timers_unknown",
    "info",
    "{file}: timers whose role is not known count as «other»: {names}",
    about="A trainer of another version, or your own code, timed something under a name that gpuscope does not know. "
    "Whether it lies within another timer is unknown, so it is not added.",
)
STEP_ASSUMED = ProblemKind(
    "role_step_assumed",
    "info",
    "{file}: the time of a step is not logged; the sum of its timers is taken",
    about="What a step takes beside its timers is unknown, and so is whether they overlap.",
)
STEPS_REPEATED = ProblemKind(
    "role_steps_repeated",
    "info",
    "{file}: steps that are logged more than once, as after a restart; the last one is taken",
    about="A job that resumes from a checkpoint runs some steps again.",
)
TIMERS_MISSING = ProblemKind(
    "role_timers_missing",
    "data_loss",
    "the log has the time of its steps, but no timer of a role",
    about="TRL's console log and its TensorBoard files hold `step_time` and the lengths of responses; the timers "
    '(`profiling/Time taken: …`) go to W&B, MLflow and Trackio alone. Set `report_to=["wandb"]` and name the CSV or '
    "JSON lines of the run's history.",
)
STEPS_CONTRADICT = ProblemKind(
    "role_steps_contradict",
    "data_loss",
    "steps whose timers add up to more than the step were left out",
    about="Two timers of the step overlap, or the line of the log is damaged. Where that is so in most steps the "
    "rollout is taken to run beside the training, as in asynchronous trainers.",
)
RANKS_MISSING = ProblemKind(
    "role_ranks_missing",
    "info",
    "{role}: no interval of {ranks}",
    about="Others of the same name have higher numbers, so these ranks ran it too, or their files are missing. Times "
    "by role are those of the ranks that are there.",
)


# Snapshots of PyTorch's caching allocator.

ENTRY_UNREADABLE = ProblemKind(
    "allocator_entry_unreadable",
    "data_loss",
    "{file}: entries that could not be read",
    about="Segments, blocks or events of an allocator snapshot that could not be read were left out.",
)
FRAME_NAME_CUT = ProblemKind(
    "frame_name_cut",
    "info",
    "{file}: names of stack frames cut at {characters} characters",
    about="Names or files of stack frames in an allocator snapshot were longer than 1,000 characters; the end of each "
    "is left out.",
)
NO_HISTORY = ProblemKind(
    "no_allocator_history",
    "info",
    "{file}: no history of allocations: only what was held at the end is known",
    about="The snapshot holds segments and blocks but no history: peaks, fragmentation and failures are unknown. Call "
    '`torch.cuda.memory._record_memory_history(stacks="python")` at the start of the job: with C++ frames, torch\'s '
    "default, a snapshot takes a hundred times as long.",
)
HISTORY_INCONSISTENT = ProblemKind(
    "allocator_history_inconsistent",
    "data_loss",
    "{file}: events that contradict the state of their blocks",
    about="Events of an allocator snapshot contradict the blocks they speak of (an address is handed out twice). No "
    "other setting is predicted from such a history.",
)


# Collectives that can't be matched, sized or timed.

COLLECTIVES_RANKS_MISSING = ProblemKind(
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


RUN_FAILED = ProblemKind(
    "run_failed",
    "error",
    "{run}: the run {ended}: {failures}",
    about="The manifest of the run folder says that the run failed; the message, with which the report begins unless "
    "the job hung, names the ranks with their errors, the likeliest culprit first. Its last step is then cut short.",
)
RUN_ENDED_EARLY = ProblemKind(
    "run_ended_early",
    "error",
    "{run}: the run {ended}: {failures}",
    about="The same of a run that was interrupted, or of one that failed without a word.",
)
RUN_ENDED_UNEXPLAINED = RUN_ENDED_EARLY.saying("{run}: the run {ended}: no rank recorded why")
RUN_GOING_ON = ProblemKind(
    "run_going_on",
    "info",
    "{run}: the run has not ended, or its launcher was killed: what it had written is read",
    about="The manifest of the run folder records no end: the job still runs, or its launcher was killed.",
)
RECORDING_LOST = ProblemKind(
    "recording_lost",
    "data_loss",
    "{said}",
    about="What the recorder could not record, in its own words: the script ended before the steps to be recorded, a "
    "full disk, another profiler. It names what to set.",
)
RUN_TROUBLE = ProblemKind(
    "run_trouble",
    "error",
    "{run}: {said}",
    about="The recorder itself found something wrong while the run went on (a hang, say); the message is its own.",
)

RUN_PAUSED = ProblemKind(
    "run_paused",
    "info",
    "{run}: {said}",
    about="Ranks waited in a collective for longer than `--hang-timeout` of the recorder, and went on: no hang. The "
    "message says who was late, where it was, and for how long; stacks and collectives of then lie in `pause1/`.",
)

_ATTEMPTS = "this is {read}. Left out: {others}; name its traces ({where}) to analyse it"
RESTARTS_LEFT_OUT = ProblemKind(
    "restarts_left_out",
    "info",
    "{run}: torchrun started the job again; " + _ATTEMPTS,
    about="torchrun started the job again (`--max-restarts`), and more than one of its attempts recorded traces; or "
    "several windows were recorded on demand. Ranks of two attempts never ran together, so only the last that left a "
    "trace is analysed; the message says how to name another.",
)
WINDOWS_LEFT_OUT = RESTARTS_LEFT_OUT.saying("{run}: several windows were recorded; " + _ATTEMPTS)
OTHER_WINDOWS = RESTARTS_LEFT_OUT.saying(
    "{run}: several windows of one run; this is {read}. Left out: {others}; --window chooses another, gpuscope diff "
    "compares two"
)
OTHER_LOOPS = ProblemKind(
    "other_loops",
    "info",
    "{run}: recordings of different loops of the same processes; this is {read}, which holds the optimizer. Left out: "
    "{others}; {first} alone shows one of them",
    about="Some frameworks record each loop into a file of its own (Lightning's `.training_step`, `.validation_step`, "
    "`.test_step`, `.predict_step`), and each counts its own steps. The recordings that hold the optimizer are judged; "
    "the message names the others. Name their files to judge them instead.",
)
OTHER_ROLES = ProblemKind(
    "other_roles",
    "info",
    "{run}: jobs of several roles; this is {read}. Left out: {others}; --role chooses another",
    about="The folder holds jobs of several roles (`actor_update/`, `rollout/` …), each in its own folder. Each is "
    "judged by itself; the message says which one this report is of.",
)

FILE_LEFT_OUT = ProblemKind(
    "file_left_out",
    "data_loss",
    "{file}: left out: {why}",
    about="A file of the run that could not be read (with `--skip-unreadable`), or whose worker died with it. Its rank "
    "is missing from every figure.",
)
RANKS_ABSENT = ProblemKind(
    "ranks_absent",
    "info",
    "ranks asked for that are in no file: {ranks}",
    about="Ranks named by `--ranks` that no file holds; the others were analysed.",
)
RANK_GUESSED = ProblemKind(
    "rank_guessed",
    "info",
    "{file}: its rank is taken from {basis}",
    about="A Flight Recorder dump whose name ends in no number: its rank is taken from the folder, or is 0.",
)
WORLD_ASSUMED = ProblemKind(
    "world_assumed",
    "info",
    "{why}",
    about="The number of ranks of the job is not recorded. Every device of every host is in the files and the matched "
    "collectives end together, so the ranks at hand are [taken for all](definitions.md#world-size); `count` is their "
    "number. Record `WORLD_SIZE`, or from before the communicators are made, to be sure.",
)
