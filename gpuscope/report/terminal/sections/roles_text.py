"""The section `roles` in words: a step by role, idle GPUs, the rollout's tail, and what is bounded, not predicted."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.catalogue.findings.roles import RoleGrowth
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report
from gpuscope.schema.roles_section import RoleGain, RolePool, RolesSection
from gpuscope.words import units
from gpuscope.words.role_names import LABELS

FAINT = 0.001
"""The share below which a role has no row."""
STALENESS = {
    "staleness_mean": "versions of the weights between rollout and use, mean",
    "staleness_max": "the most",
    "stale_in_all": "stale samples used in all",
    "stale_dropped_in_all": "stale samples dropped in all",
}


def section(report: Report, writer: Writer) -> None:
    """Nothing without timers of roles."""
    if "roles" not in report:
        return
    roles = report["roles"]
    writer.heading("A step by role")
    if not roles["roles"]:
        longest = max((step["dur_ns"] for step in roles["steps"]), default=0)
        shortest = min((step["dur_ns"] for step in roles["steps"]), default=0)
        writer.line(f"no role is timed; steps took {units.span(shortest, longest, ' to ')}", hang=2)
    rows = [
        (
            label(one["role"]),
            units.duration(one["per_step_ns"]),
            units.share(one["share_frac"]),
            units.duration(one["half_gains_ns"]),
        )
        for one in roles["roles"]
        if one["share_frac"] >= FAINT
    ]
    if rows:
        writer.rows(("<role", ">per step", ">share", ">half of it saves"), rows)
    for sentence in sentences(roles):
        writer.line(sentence, hang=2)


def label(role: str) -> str:
    """What a role is called."""
    return LABELS.get(role, role)


def sentences(roles: RolesSection) -> list[str]:
    """What the table does not say."""
    return [
        *_averaged(roles),
        *_growth(roles),
        *map(_idle, roles["pools"]),
        *_tail(roles),
        *_staleness(roles),
        *filter(None, map(_limit, roles["gains"])),
    ]


def _averaged(roles: RolesSection) -> Iterator[str]:
    if roles.get("averaged", 1) > 1:  # absent in reports of versions before
        yield f"each logged step is the mean of {roles['averaged']} steps, and timers are divided by that"


def _growth(roles: RolesSection) -> Iterator[str]:
    for one in roles.get("growth", []):
        yield RoleGrowth(
            one["role"],
            one["steps"],
            one["first_ns"],
            one["last_ns"],
            one["figure"],
            one["figure_times"],
            one["slower_times"],
        ).message()


def _idle(pool: RolePool) -> str:
    whose = "GPUs" if pool["gpus"] is None else units.plural(pool["gpus"], "GPU")
    of = "of all roles" if pool["pool"] == "all" else f"of the {pool['pool']}"
    return f"{whose} {of}: none of these runs {units.share(pool['idle_frac'])} of the time"


def _tail(roles: RolesSection) -> Iterator[str]:
    tail = roles["tail"]
    if tail is None:
        return
    least = "at most " if tail["shared_frac"] is None else ""
    lengths = f"responses: the longest {tail['longest']:,.0f} {tail['unit']}, the mean {tail['mean']:,.0f}"
    if tail["cost_ns"] is None:
        yield lengths
        return
    saved = f"{least}{units.duration(tail['cost_ns'])} of a step"
    yield f"{lengths}; were none longer than the mean, the rollout would save {saved}"
    if tail["shared_frac"] is not None:
        yield f"{units.share(tail['shared_frac'])} of the rollout is shared by all tokens, so that more GPUs divide it"


def _staleness(roles: RolesSection) -> Iterator[str]:
    if roles["staleness"]:
        yield ", ".join(f"{STALENESS[name]} {value:.3g}" for name, value in roles["staleness"].items())


CHANGES = {
    "overlap": "rollout beside the training",
    "split": "GPUs apart, rollout beside the training",
    "move": "GPUs moved",
    "cap": "shorter responses",
    "reward_beside": "rewards beside the log-probs",
    "asynchronous": "partial or asynchronous rollouts",
    "weight_sync": "faster weight sync",
}


def _limit(gain: RoleGain) -> str:
    if gain["predicted"] is not None:
        return ""
    least = "" if gain["at_least_ns"] is None else f"at best {units.duration(gain['at_least_ns'])} per step; "
    return f"{CHANGES[gain['change']]}: {least}{gain['why_not']}"
