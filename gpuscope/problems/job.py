"""Runs that ended badly, and ranks and files that are not there."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

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
