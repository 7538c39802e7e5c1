"""The timers by which trainers for reinforcement learning log a step, and which of them contain which.

From the sources: verl `trainer/ppo/ray_trainer.py`, `experimental/one_step_off_policy`, `fully_async_policy`; OpenRLHF
`trainer/ppo_trainer.py`, `ppo_trainer_async.py`; NeMo-RL `algorithms/grpo.py`; slime `utils/train_metric_utils.py`,
`ray/rollout.py`; TRL `trainer/grpo_trainer.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from gpuscope import when_used
from gpuscope.trace.schema import RolePlace
from gpuscope.when_used import dataclass

STEP, PART, NESTED, BESIDE, OUTSIDE = RolePlace


@dataclass(frozen=True)
class Timer:
    """A timer's role, and where its time lies in the step."""

    role: str
    place: RolePlace = PART


@dataclass(frozen=True)
class Framework:
    """How one framework names its timers."""

    name: str
    key: re.Pattern[str]
    """Matches a metric that is a time of a step; group 1 is the timer's name."""
    timers: Mapping[str, Timer]
    nested: re.Pattern[str]
    """Names of timers within others, besides those listed."""
    step_key: str
    """The timer of the step, without which a step was cut off."""
    adds_up: bool = False
    """Whether a step's timers come one by one before it, several of a name added up; the step's own time may then be
    the mean of several steps (`logging_steps`)."""
    holds: Mapping[str, Literal["unknown", "log_probs", ""]] = field(default_factory=dict)
    """Of such a framework the timers that end a stretch of the step, and what was timed since the last of them lies
    within them: timers of no known role; those and log-probs; nothing."""
    counted: str = ""
    """The timer of which each step has the same number of calls."""

    def timer(self, metric: str) -> tuple[str, Timer | None] | None:
        """A metric's timer: its name and, where it is known, its role; None for what is no timer."""
        match = self.key.match(metric)
        if match is None:
            return None
        name = match[match.lastindex or 0]
        if name in self.timers:
            return name, self.timers[name]
        return name, Timer("other", NESTED) if self.nested.search(name) else None


_VERL = {
    "step": Timer("step", STEP),
    "gen": Timer("rollout"),
    "gen_max": Timer("rollout"),
    "wait_prev_gen": Timer("waiting"),
    "generate_async": Timer("rollout", BESIDE),
    "reward": Timer("reward"),
    "rm": Timer("reward"),
    "old_log_prob": Timer("log_probs"),
    "log_prob": Timer("log_probs"),
    "ref": Timer("reference"),
    "values": Timer("values"),
    "adv": Timer("advantages"),
    "update_critic": Timer("update_critic"),
    "update_actor": Timer("update_actor"),
    "update_weights": Timer("weight_sync"),
    "sync_rollout_weights": Timer("weight_sync"),
    "param_sync": Timer("weight_sync"),
    "timing_s/param_sync": Timer("weight_sync"),
    "save_checkpoint": Timer("checkpoint"),
    "testing": Timer("validation", OUTSIDE),
    "dump_rollout_generations": Timer("other"),
    "start_profile": Timer("other", OUTSIDE),
    "stop_profile": Timer("other", OUTSIDE),
}
_OPENRLHF = {
    "step_total": Timer("step", STEP),
    "generation": Timer("rollout"),
    "make_experience": Timer("experience"),
    "ppo_train": Timer("update_actor"),
    "broadcast": Timer("weight_sync"),
}
_NEMO = {
    "total_step_time": Timer("step", STEP),
    "Total step time": Timer("step", STEP),
    "data_processing": Timer("data"),
    "prepare_for_generation": Timer("weight_sync"),
    "prepare_for_generation/total": Timer("weight_sync"),
    "weight_sync": Timer("weight_sync"),
    "generation": Timer("rollout"),
    "exposed_generation": Timer("waiting"),
    "reward_calculation": Timer("reward"),
    "logprob_inference_prep": Timer("log_probs"),
    "policy_and_reference_logprobs": Timer("log_probs"),
    "policy_logprobs": Timer("log_probs", NESTED),
    "reference_logprobs": Timer("reference", NESTED),
    "advantage_calculation": Timer("advantages"),
    "value_inference": Timer("values"),
    "value_training": Timer("update_critic"),
    "training_prep": Timer("update_actor"),
    "policy_training": Timer("update_actor"),
    "checkpointing": Timer("checkpoint"),
    "validation": Timer("validation"),
}
_SLIME = {
    "step": Timer("step", STEP),
    "rollout": Timer("rollout"),
    "train_wait": Timer("waiting", NESTED),
    "train": Timer("update_actor", NESTED),
    "log_probs": Timer("log_probs"),
    "ref_log_probs": Timer("reference"),
    "actor_train": Timer("update_actor"),
    "critic_train": Timer("update_critic"),
    "update_weights": Timer("weight_sync"),
    "data_preprocess": Timer("data"),
    "sleep": Timer("other"),
    "wake_up": Timer("other"),
    "save_model": Timer("checkpoint"),
}
_TRL = {
    "step_time": Timer("step", STEP),
    "vLLM.generate": Timer("rollout"),
    "generate": Timer("rollout"),
    "transformers.generate": Timer("rollout"),
    "_calculate_rewards": Timer("reward"),
    "_get_per_token_logps_and_entropies": Timer("log_probs"),
    "_get_per_token_logps": Timer("log_probs"),
    "compute_loss": Timer("update_actor"),
    "_move_model_to_vllm": Timer("weight_sync"),
    "sync_weights": Timer("weight_sync"),
}

FRAMEWORKS = (
    Framework(
        "verl",
        when_used.pattern(r"timing_s/(.+)"),
        _VERL,
        when_used.pattern(r"^(?:agent_loop/|generation_timing/|generate_sequences|reshard|reward_loop/|split_)"),
        "step",
    ),
    Framework(
        "nemo-rl",
        when_used.pattern(r"timing/train/(.+?)(?<!_per_gpu)$"),
        _NEMO,
        when_used.pattern(r"^(?:prepare_for_generation|generation|idle|weight_sync)/|_unix_s$"),
        "total_step_time",
    ),
    Framework(
        "openrlhf",
        when_used.pattern(r"timing/(?!train/)(.+)"),
        _OPENRLHF,
        when_used.pattern(r"^broadcast_|_idle_wait$"),
        "step_total",
    ),
    Framework("slime", when_used.pattern(r"perf/(\w+)_time$"), _SLIME, when_used.pattern(r"^update_weights_"), "step"),
    Framework(
        "trl",
        when_used.pattern(r"(?:train/)?(step_time)$|profiling/Time taken: \w+\.(.+)"),
        _TRL,
        when_used.pattern(r"^(?:_prepare_inputs|_generate|training_step)"),
        "step_time",
        adds_up=True,
        holds={"_calculate_rewards": "unknown", "_prepare_inputs": "", "compute_loss": "log_probs"},
        counted="compute_loss",
    ),
)

FIGURES = {
    "response_length/mean": "response_length_mean",
    "response_length/max": "response_length_max",
    "response_length/clip_ratio": "response_clipped",
    "prompt_length/mean": "prompt_length_mean",
    "timing_s/agent_loop/generate_sequences/mean": "request_s_mean",
    "timing_s/agent_loop/generate_sequences/max": "request_s_max",
    "timing_s/generation_timing/max": "replica_s_max",
    "timing_s/generation_timing/min": "replica_s_min",
    "perf/total_num_tokens": "tokens",
    "perf/throughput": "tokens_per_s_and_gpu",
    "fully_async/staleness/response_staleness_mean": "staleness_mean",
    "fully_async/staleness/response_staleness_max": "staleness_max",
    "fully_async/count/stale_trajectory_processed": "stale_in_all",
    "fully_async/count/dropped_stale_samples": "stale_dropped_in_all",
    "fully_async/rollouter/idle_ratio": "rollout_idle",
    "rollout/response_len/mean": "response_length_mean",
    "rollout/response_len/max": "response_length_max",
    "rollout/truncated_ratio": "response_clipped",
    "rollout/response_lengths": "response_length_mean",
    "response_length": "response_length_mean",
    "rollout/response_length_mean": "response_length_mean",
    "completions/mean_length": "response_length_mean",
    "completions/max_length": "response_length_max",
    "completions/clipped_ratio": "response_clipped",
    "train/completions/mean_length": "response_length_mean",
    "train/completions/max_length": "response_length_max",
    "train/completions/clipped_ratio": "response_clipped",
    "train/mean_gen_tokens_per_sample": "response_length_mean",
    "train/max_gen_tokens_per_sample": "response_length_max",
    "Mean Generation Length": "response_length_mean",
    "train/avg_trajectory_age": "staleness_mean",
    "Avg Trajectory Age": "staleness_mean",
}
"""Metrics beside the timers, by the frameworks' names."""

TRAINING_STEP_KEYS = ("training/global_step", "train/global_step", "global_step")
COUNTS_ROWS = frozenset({"_step", "Step"})
"""What numbers the rows of a table, however many steps lie between them."""
STEP_KEYS = (*TRAINING_STEP_KEYS, "rollout/step", "step", "_step", "Step")
"""Metrics that number a row, the one that counts training steps first."""


def framework_of(metrics: Mapping[str, float]) -> Framework | None:
    """The framework whose timers are among the metrics of a row."""
    for framework in FRAMEWORKS:
        found = (framework.timer(metric) for metric in metrics)
        if any(one is not None and one[1] is not None for one in found):
            return framework
    return None
