"""The parts of the breakdown and the classes of stalls: words, colours and fills of every front."""

from __future__ import annotations

from typing import Literal

from gpuscope import when_used
from gpuscope.when_used import dataclass

# The colours of every front: Okabe and Ito, Color Universal Design (2008), for the colour-blind; and of pages.

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILLION = "#D55E00"
SKY = "#56B4E9"
YELLOW = "#F0E442"
PURPLE = "#CC79A7"
GREY = "#8C8C8C"

PAGE = {
    "page": ("#f6f7f8", "#14171a"),
    "card": ("#ffffff", "#1c2024"),
    "ink": ("#1c1e21", "#e8eaed"),
    "faint": ("#5d646c", "#a3abb3"),
    "line": ("#d9dcdf", "#363c42"),
    "mark": ("#b0004e", "#ff7ab0"),
    "high": ("#b3261e", "#ff8a80"),
    "medium": ("#8a5a00", "#f2b84b"),
    "low": ("#4b5563", "#b6bec7"),
    "good": ("#1b6e3c", "#7ddc9f"),
    "idle-paper": ("#e9ebed", "#2a2f35"),
    "link": ("#0b57a4", "#8ab8f0"),
}
"""Of a page, light and dark: text on `page` and `card` has a contrast of 4.5 and more."""


def page_css(dark: bool) -> str:
    """Them as CSS variables."""
    return " ".join(f"--{name}: {colours[dark]};" for name, colours in PAGE.items())


# The roles of a job for reinforcement learning: their codes, what they are called, and who runs them.

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


# How compiled functions are called (those that go on behind a graph break by the function that was broken), and whose
# code they are.

_RESUMED = when_used.pattern(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")
LIBRARY = when_used.pattern(r"(?:.*/)?(?:site-packages|dist-packages|python3\.\d+)/")
"""What stands behind this is a library's own path, the same on every machine."""


def in_library(file: str | None) -> bool:
    """Whether a file belongs to an installed library or to Python, which nobody changes for a job."""
    return LIBRARY.match((file or "").replace("\\", "/")) is not None


def frame_place(function: str | None, file: str | None, line: int | None) -> str:
    """`f (train.py:6)`; `f (train.py, from line 9)` of one that goes on behind a graph break."""
    name = (file or "?").replace("\\", "/").rpartition("/")[2]
    if found := _RESUMED.match(function or ""):
        return f"{found['name']} ({name}, from line {found['line']})"
    at = f"{name}:{line if line is not None else '?'}"
    return f"{function} ({at})" if function else at


PartKey = Literal["compute", "exposed_communication", "exposed_memory", "idle"]


@dataclass(frozen=True)
class Part:
    """One part of the breakdown. The fills differ as the colours do."""

    key: PartKey
    label: str
    short: str
    colour: str
    fill: str
    plain_fill: str


PARTS = (
    Part("compute", "compute", "compute", BLUE, "█", "#"),
    Part("exposed_communication", "exposed communication", "comm.", ORANGE, "▒", "="),
    Part("exposed_memory", "exposed memory", "memory", PURPLE, "▚", "%"),
    Part("idle", "idle", "idle", GREY, "·", "."),
)

BOUND = {
    "cpu": "CPU-bound",
    "communication": "Communication-bound",
    "memory": "Memory-bound",
    "compute": "Compute-bound",
}

VERDICT_SHARE = 0.10
"""A class must hold this share of the window to bound the run (definitions: «Verdict»)."""

CLASSES = {"cpu": "CPU", "communication": "communication", "memory": "memory", "compute": "compute"}
