"""What the logs of a job made of roles leave open."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

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
