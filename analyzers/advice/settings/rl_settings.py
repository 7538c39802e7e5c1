"""Trainers for reinforcement learning: placement of the roles, asynchronous rollouts, limits on responses."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File, Known

_VERL = File("verl", "verl/trainer/config/ppo_trainer.yaml", "config")
_VERL_ROLLOUT = File("verl", "verl/workers/config/rollout.py", "config")
_OPENRLHF = File("openrlhf", "openrlhf/cli/train_ppo_ray.py", "config")
_NEMO = File("nemo-rl", "examples/configs/grpo_math_1B.yaml", "config")
_SLIME = File("slime", "slime/utils/arguments.py", "config")
_TRL = File("trl", "trl/trainer/grpo_config.py", "python")

ROLLOUT_GPUS: dict[str, Known] = {
    "verl": File("verl", "verl/experimental/one_step_off_policy/config/one_step_off_ppo_trainer.yaml", "config")(
        "rollout.n_gpus_per_node"
    ),
    "openrlhf": _OPENRLHF("--vllm.num_engines"),
    "nemo-rl": _NEMO("policy.generation.colocated.resources.gpus_per_node"),
    "slime": _SLIME("--rollout-num-gpus"),
}
"""GPUs of the rollout alone, by framework."""
TRAINER_GPUS = {
    "verl": "trainer.n_gpus_per_node",
    "openrlhf": "--actor.num_gpus_per_node",
    "nemo-rl": "cluster.gpus_per_node",
    "slime": "--actor-num-gpus-per-node",
}
"""Besides it, those of the trainer (of NeMo-RL, of both)."""
ONE_STEP_OFF: dict[str, Known] = {
    "verl": File("verl", "verl/experimental/one_step_off_policy/main_ppo.py", "config")(
        "python3 -m verl.experimental.one_step_off_policy.main_ppo"
    ),
    "openrlhf": _OPENRLHF("--train.async_enable"),
    "nemo-rl": _NEMO("grpo.async_grpo.enabled", "false"),
    "slime": File("slime", "train_async.py", "config")("train_async.py"),
}
"""The rollout beside the training."""
FULLY_ASYNC: dict[str, Known] = {
    "verl": File("verl", "verl/experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml", "config")(
        "async_training.staleness_threshold"
    ),
    "openrlhf": _OPENRLHF("--train.partial_rollout_enable"),
    "nemo-rl": _NEMO("grpo.async_grpo.max_trajectory_age_steps", "1"),
}
"""No rollout waits for its last response."""
LONGEST_RESPONSE: dict[str, Known] = {
    "verl": _VERL("data.max_response_length"),
    "openrlhf": _OPENRLHF("--rollout.max_new_tokens"),
    "nemo-rl": _NEMO("policy.generation.max_new_tokens"),
    "slime": _SLIME("--rollout-max-response-len"),
    "trl": _TRL("GRPOConfig.max_completion_length", "256"),
}
REWARD_BESIDE: dict[str, Known] = {"verl": _VERL("reward_model.launch_reward_fn_async", "False")}
WEIGHT_TRANSFER: dict[str, Known] = {
    "verl": _VERL_ROLLOUT("actor_rollout_ref.rollout.checkpoint_engine.backend", "naive")
}
WEIGHT_BUCKETS = _VERL_ROLLOUT("actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes", "2048")
