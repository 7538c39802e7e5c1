"""Jobs for reinforcement learning: other schedules and placements of their roles, and shorter responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, as_reported, config
from gpuscope.analyzers.advice.settings import other_settings
from gpuscope.analyzers.advice.settings.known import Known
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.schema.provenance import RoleGain
from gpuscope.when_used import dataclass

_OFF_POLICY = "samples are one update older: watch the reward, and correct for it (importance sampling)"
_MEMORY = "the model and its optimizer must fit on fewer GPUs, and sizes of parallel groups must divide them"


@dataclass(frozen=True)
class OverlapRollout(Suggestion):
    """Rollout and training at once, on the GPUs that they have."""

    code = "overlap_rollout"
    answers = ("role_bound",)
    sets = "verl's one-step off-policy trainer, `--train.async_enable`, `grpo.async_grpo.enabled`, `train_async.py`"
    action = "Run the rollout of the next batch while this one is trained on"
    why = "the GPUs of one side wait for the other side in turns; together a step takes as long as the slower one"
    risk = _OFF_POLICY
    verify = "log it again: roles.pools[].idle_frac lower, and the reward as before"
    alters_training = True


@dataclass(frozen=True)
class SplitRoles(Suggestion):
    """GPUs of their own for rollout and training, both at once."""

    code = "split_roles"
    answers = ("role_bound",)
    sets = "GPUs of rollout and trainer apart (`rollout.n_gpus_per_node`…), with asynchronous rollouts"
    action = "Give the rollout {rollout} GPUs and the training {trainer}, and run both at once"
    why = "on shared GPUs the roles run in turns, and a rollout's last responses leave all of them nearly idle"
    risk = f"{_MEMORY}; {_OFF_POLICY}"
    verify = "log it again: the step, and the reward as before"
    alters_training = True

    rollout: int
    trainer: int


@dataclass(frozen=True)
class MoveGpus(Suggestion):
    """Another split of the GPUs."""

    code = "move_gpus"
    answers = ("role_bound",)
    sets = "GPUs of the rollout and of the trainer (`rollout.n_gpus_per_node`, `--rollout-num-gpus`…)"
    action = "Split the GPUs {rollout} for the rollout to {trainer} for the training"
    why = "{message}"
    risk = _MEMORY
    verify = "log it again: the step, roles.pools[].idle_frac"

    rollout: int
    trainer: int


@dataclass(frozen=True)
class CapResponse(Suggestion):
    """A limit on the response's length."""

    code = "cap_response"
    answers = ("rollout_tail",)
    sets = "the longest response (`data.max_response_length`, `--rollout-max-response-len`…)"
    action = "Limit responses to {tokens} tokens"
    why = "{message}"
    risk = "what is cut off earns no reward: the model learns to be brief; mask such samples, or punish them softly"
    verify = "log it again: response_length/clip_ratio, the reward, the step"
    alters_training = True

    tokens: int


@dataclass(frozen=True)
class PartialRollouts(Suggestion):
    """Training that does not wait for the last responses."""

    code = "asynchronous_rollouts"
    answers = ("rollout_tail",)
    sets = "fully asynchronous trainers (`async_training.staleness_threshold`, `--train.partial_rollout_enable`…)"
    action = "Let the training take finished samples, and long responses go on over weight updates"
    why = "{message}"
    risk = "samples mix versions of the weights: watch roles.staleness and the reward"
    verify = "log it again: the step, the staleness, the reward"
    alters_training = True


@dataclass(frozen=True)
class RewardBeside(Suggestion):
    """Rewards beside the log-probs."""

    code = "reward_beside"
    answers = ("role_bound",)
    sets = "`reward_model.launch_reward_fn_async`"
    action = "Compute rewards while the log-probs are computed"
    why = "nothing before the advantages needs the rewards, and functions that compute them leave the GPUs idle"
    risk = "a reward model on the same GPUs competes with them"
    verify = "log it again: roles.roles[] of reward, and the step"


@dataclass(frozen=True)
class WeightTransfer(Suggestion):
    """Weights over a faster way."""

    code = "weight_transfer"
    answers = ("weight_sync",)
    sets = "`checkpoint_engine.backend`, `checkpoint_engine.update_weights_bucket_megabytes`"
    action = "Send new weights to the rollout by collective transfers, in larger buckets"
    why = "{message}"
    risk = "larger buckets need as much memory on both sides"
    verify = "log it again: the timer of the weight update"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What the section's gains say of each change that the framework has a setting for."""
    section = case.report.get("roles")
    if section is None:
        return
    for gain in section["gains"]:
        made = _made(gain)
        if finding["code"] in made.answers:
            setting = _setting(section["framework"], gain)
            at_most = None if gain["at_least_ns"] is None else max((case.step_ns or 0) - gain["at_least_ns"], 0)
            yield Proposal(finding, made, setting, outcome=as_reported(gain), at_most=at_most)


def _made(gain: RoleGain) -> Suggestion:
    rollout, trainer = gain["gpus_rollout"] or 0, gain["gpus_trainer"] or 0
    plain: dict[str, Suggestion] = {
        "overlap": OverlapRollout(),
        "asynchronous": PartialRollouts(),
        "reward_beside": RewardBeside(),
        "weight_sync": WeightTransfer(),
        "split": SplitRoles(rollout, trainer),
        "move": MoveGpus(rollout, trainer),
        "cap": CapResponse(gain["tokens"] or 0),
    }
    return plain[gain["change"]]


_NAMES: Mapping[str, Mapping[str, Known]] = {
    "overlap": other_settings.ONE_STEP_OFF,
    "split": other_settings.ROLLOUT_GPUS,
    "move": other_settings.ROLLOUT_GPUS,
    "cap": other_settings.LONGEST_RESPONSE,
    "reward_beside": other_settings.REWARD_BESIDE,
    "asynchronous": other_settings.FULLY_ASYNC,
    "weight_sync": other_settings.WEIGHT_TRANSFER,
}
_VALUES = {"overlap": {"nemo-rl": "true"}, "asynchronous": {"verl": "0.5", "nemo-rl": "2"}}
_WORDS = {
    "overlap": "asynchronous rollouts",
    "split": "GPUs of the rollout",
    "move": "GPUs of the rollout",
    "cap": "longest response",
    "reward_beside": "rewards beside the log-probs",
    "asynchronous": "partial rollouts",
    "weight_sync": "transfer of the weights",
}


def _setting(framework: str, gain: RoleGain) -> Setting:
    """As the framework calls it; in words where it has no name that is known."""
    change = gain["change"]
    known = _NAMES[change].get(framework)
    value = _VALUES.get(change, {}).get(framework, "")
    if change in ("split", "move"):
        value = (
            f"{gain['gpus_rollout']}; {other_settings.TRAINER_GPUS.get(framework, 'trainer')}={gain['gpus_trainer']}"
        )
        if change == "split" and framework in other_settings.ONE_STEP_OFF:
            value += f", with {other_settings.ONE_STEP_OFF[framework].name}"
    elif change == "cap":
        value = str(gain["tokens"])
    elif change == "reward_beside":
        value = "True"
    elif change == "weight_sync":
        value = f"nccl; {other_settings.WEIGHT_BUCKETS.name}=4096" if known else "by a collective"
    return config(_WORDS[change], value) if known is None else known.to(value)


RULE = Rule(
    "roles",
    (OverlapRollout, SplitRoles, MoveGpus, CapResponse, PartialRollouts, RewardBeside, WeightTransfer),
    propose,
    place=107,
)
"""Its findings come from logs of jobs that no other rule applies to."""
