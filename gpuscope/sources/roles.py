"""Folders of jobs of their own, a role each, as trainers for reinforcement learning and disaggregated servers leave
them (verl: `actor_update/`, `rollout/`, `ref_compute_log_prob/`). Definitions: «Ranks of a file and of a folder»."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpuscope.errors import SeveralRoles, UsageError
from gpuscope.when_used import dataclass

_WORDS = frozenset(
    {
        "actor",
        "critic",
        "ref",
        "reference",
        "policy",
        "rollout",
        "generator",
        "sampler",
        "reward",
        "rm",
        "trainer",
        "learner",
        "prefill",
        "decode",
    }
)
"""Of roles in verl, OpenRLHF, TRL, NeMo-RL and slime, and of servers that prefill and decode apart."""


@dataclass(frozen=True)
class Chosen:
    """The files of one role."""

    role: str
    gone: frozenset[Path]
    """The timelines of the other roles."""
    others: tuple[str, ...]


def by_role(folder: Path, timelines: Sequence[Path]) -> dict[str, list[Path]]:
    """The timelines below a folder by role; empty unless each lies in a role's folder and there are several roles."""
    found: dict[str, list[Path]] = {}
    for path in timelines:
        role = next((name for name in path.relative_to(folder).parts[:-1] if _is_role(name)), None)
        if role is None:
            return {}
        found.setdefault(role, []).append(path)
    return found if len(found) > 1 else {}


def chosen(folder: Path, timelines: Sequence[Path], role: str | None) -> Chosen | None:
    """The files of the role asked for; None where the folder has no roles and none is asked for.

    Raises `SeveralRoles` where none is asked for, `UsageError` where there is no such role.
    """
    found = by_role(folder, timelines)
    if not found:
        if role is None:
            return None
        raise UsageError(f"{folder}: holds no jobs of several roles", hint="leave --role out")
    if role is None:
        raise SeveralRoles(str(folder), sorted(found))
    if role not in found:
        raise UsageError(f"{folder}: has no role {role!r}", hint=f"its roles: {', '.join(sorted(found))}")
    others = tuple(sorted(set(found) - {role}))
    return Chosen(role, frozenset(path for other in others for path in found[other]), others)


def _is_role(name: str) -> bool:
    return not _WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))
