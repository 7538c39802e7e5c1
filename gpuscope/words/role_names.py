"""The roles of a job for reinforcement learning: their codes, what they are called, and who runs them."""

from __future__ import annotations

from gpuscope import when_used

LABELS = {
    "data": "data",
    "rollout": "rollout",
    "waiting": "waiting for the rollout",
    "reward": "reward",
    "experience": "rewards and log-probs",
    "log_probs": "old log-probs",
    "reference": "reference log-probs",
    "values": "critic values",
    "advantages": "advantages",
    "update_critic": "critic update",
    "update_actor": "actor update",
    "weight_sync": "weight sync",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "other": "other",
}
"""In the order in which a step runs them."""
ORDER = {role: place for place, role in enumerate(LABELS)}
TRAINER = frozenset({"experience", "log_probs", "reference", "values", "advantages", "update_critic", "update_actor"})
"""Roles that run on the GPUs of the trainer."""
FORWARD = ("log_probs", "reference", "values")
"""Of those the ones that need no reward."""

_NAMED = (
    ("weight_sync", r"update_weights?|sync_\w*weights|param_sync|weight_sync|refit|broadcast"),
    ("reference", r"\bref(?:erence)?(?![a-z])"),
    ("update_critic", r"update_critic|critic_update|critic_train"),
    ("update_actor", r"update_actor|actor_update|actor_train|update_policy|policy_training"),
    ("values", r"compute_values?|critic_compute|\bvalues\b|^critic"),
    ("reward", r"reward|\brm\b|rm_score"),
    ("log_probs", r"log_?probs?"),
    ("rollout", r"rollout|generat|sampler|agent_loop"),
    ("update_actor", r"^(?:actor|trainer|learner|policy)\b"),
)
_PATTERNS = tuple((role, when_used.pattern(pattern)) for role, pattern in _NAMED)


def role_of(name: str) -> str | None:
    """The role that a folder, range or event is named after (`actor_compute_log_prob`, `ref`, `update_weights`)."""
    plain = name.lower().replace("-", "_")
    spaced = plain.replace("_", " ")
    return next((role for role, pattern in _PATTERNS if pattern.search(plain) or pattern.search(spaced)), None)
