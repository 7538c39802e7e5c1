"""Another algorithm or protocol for exactly the sizes at which measured times show that it gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import sqrt
from typing import NamedTuple

from gpuscope.analyzers.advice.framework_settings import config, env
from gpuscope.analyzers.advice.logged_nccl import older_than
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Change, MeasuredTransfers, Predicted, Refused
from gpuscope.analyzers.nccl.logged.nccl_grammar import algorithm_name, protocol_name
from gpuscope.analyzers.nccl.trial_commands import Variant, comparison, search
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import CrossoverEntry
from gpuscope.words import units

NEXT_SIZE = sqrt(2)
"""A measured size speaks for messages within this factor of it: sizes are measured a factor of two apart."""
TUNER_PLUGINS = (2, 19)
"""The version that brought tuner plugins (ncclTunerPlugin_v1)."""
NAMED = 3


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Per operation and group: what its faster sizes were carried out by; between runs, the faster run's settings."""
    kinds = ("other_run",) if finding["code"] == "slower_run" else ("larger_is_faster", "bandwidth_drops")
    groups: dict[tuple[str, str | None, str, int], list[CrossoverEntry]] = defaultdict(list)
    for entry in case.report.get("crossovers", ()):
        if entry["kind"] in kinds and entry["op"] == finding.get("facts", {}).get("op"):
            groups[entry["tool"], entry["run"], entry["op"], entry["group_size"]].append(entry)
    for own in groups.values():
        used = _used(case, own)
        if used is not None and not used:
            continue  # none of these sizes is in the job
        yield _between_runs(case, own, used) if kinds == ("other_run",) else _by_size(case, own, used)


def _used(case: Case, entries: Sequence[CrossoverEntry]) -> list[tuple[int, CrossoverEntry]] | None:
    """Messages of the job that the entries speak for; None where there is no job, or its sizes are not recorded."""
    first = entries[0]
    sizes = {
        row["bytes"]
        for row in case.report.get("bandwidth", ())
        if (row["tool"], row["op"], row["group_size"]) == ("trace", first["op"], first["group_size"])
    }
    if not case.report["ranks"] or not sizes:
        return None
    return [(size, one) for size in sorted(sizes) for one in entries
            if one["bytes"] / NEXT_SIZE < size < one["bytes"] * NEXT_SIZE]  # fmt: skip


def _by_size(
    case: Case, entries: Sequence[CrossoverEntry], used: Sequence[tuple[int, CrossoverEntry]] | None
) -> Proposal:
    op, ranks = entries[0]["op"], entries[0]["group_size"]
    sizes = sorted({one["bytes"] for one in entries})
    known = [one for one in entries if one["faster_algorithm"] and one["faster_protocol"] not in (None, "ll128")]
    if not known:
        return Proposal(
            code="nccl_choice_search",
            action=f"Find what carries {op} of {_listed(sizes)} out faster",
            why=_why(entries) + "; what NCCL chose for these sizes is not recorded, or is LL128, which is never forced",
            setting=env("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING"),
            risk="with NCCL_DEBUG=INFO a line per operation in the log",
            verify=search(op, sizes, ranks),
            outcome=Refused("which choice the faster size had is not recorded: the search tries them all"),
        )
    best = min(known, key=lambda one: one["at_most_ns"] / one["dur_ns"])
    algorithm, protocol = str(best["faster_algorithm"]), str(best["faster_protocol"])
    words = f"{algorithm}/{protocol}"
    forced = {"NCCL_ALGO": algorithm_name(algorithm), "NCCL_PROTO": protocol_name(protocol)}
    old = older_than(case, TUNER_PLUGINS)
    trial = comparison(op, sizes, ranks, [Variant("default", {}), Variant(words.replace("/", "_"), forced)])
    return Proposal(
        code="nccl_by_size",
        action=f"Let NCCL carry out {op} of {_listed([one['bytes'] for one in known])} by {words}, as it does "
        f"{units.memory(best['like_bytes'])}",
        why=_why(known),
        setting=config("NCCL", "2.19 or later, with NCCL_TUNER_CONFIG_FILE=nccl_tuner.csv")
        if old
        else env("NCCL_TUNER_CONFIG_FILE", "nccl_tuner.csv"),
        risk="needs NCCL's example tuner plugin (NCCL_TUNER_PLUGIN), built for the same NCCL; `gpuscope export PATH "
        "--nccl-tuner nccl_tuner.csv` writes the rows. NCCL_ALGO and NCCL_PROTO would hold for all sizes"
        + (f"; NCCL {old} has no tuner plugins yet" if old else ""),
        verify=f"{trial}; or {search(op, sizes, ranks)}",
        **_outcome(case, known, used)._asdict(),
    )


def _between_runs(
    case: Case, entries: Sequence[CrossoverEntry], used: Sequence[tuple[int, CrossoverEntry]] | None
) -> Proposal:
    op, slow = entries[0]["op"], entries[0]["run"]
    faster = sorted({one["faster_run"] or "" for one in entries})
    sizes = sorted({one["bytes"] for one in entries})
    return Proposal(
        code="nccl_faster_run",
        action=f"Run {op} of {_listed(sizes)} as in {' or '.join(faster)}, not as in {slow}",
        why=_why(entries),
        setting=config("NCCL's settings", f"those of {' or '.join(faster)}: unset what {slow} sets besides"),
        risk="other operations and sizes may differ: the table of bandwidths has both runs side by side",
        verify=f"{search(op, sizes[:8], entries[0]['group_size'])}; or both runs again with NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=INIT,ENV, so that the log names what they differ by",
        **_outcome(case, entries, used)._asdict(),
    )


def _outcome(
    case: Case, entries: Sequence[CrossoverEntry], used: Sequence[tuple[int, CrossoverEntry]] | None
) -> _Outcome:
    """The change in the replay where the job's own messages are meant, else what the measurement itself says."""
    if used:
        factors = {size: one["at_most_ns"] / one["dur_ns"] for size, one in used}
        best = {size: factors[size] * min(one["bytes"] / one["like_bytes"], 1.0) for size, one in used}
        first = entries[0]
        sizes = tuple((size, best[size], factor) for size, factor in sorted(factors.items()))
        return _Outcome(changes=(MeasuredTransfers(first["op"], first["group_size"], sizes),))
    if case.report["ranks"]:
        return _Outcome(outcome=Refused("the sizes of this job's messages are not recorded: record their arguments"))
    return _Outcome(outcome=Predicted(0, 0, 0, 0, f"measured: {_why(entries)}", "measured"), gains_time=False)


class _Outcome(NamedTuple):
    """Fields of a proposal."""

    changes: tuple[Change, ...] = ()
    outcome: Predicted | Refused | None = None
    gains_time: bool = True


def _why(entries: Sequence[CrossoverEntry]) -> str:
    """The largest gains in words."""
    best = sorted(entries, key=lambda one: one["at_most_ns"] / one["dur_ns"])[:NAMED]
    more = f" and {len(entries) - NAMED} more sizes" if len(entries) > NAMED else ""
    return ", ".join(_times(one) for one in best) + more


def _times(one: CrossoverEntry) -> str:
    times = f"{units.duration(one['dur_ns'])} → at most {units.duration(one['at_most_ns'])}"
    return f"{units.memory(one['bytes'])}: {times}"


def _listed(sizes: Sequence[int]) -> str:
    several = sorted(set(sizes))
    if len(several) > NAMED:
        return f"{len(several)} sizes from {units.memory(several[0])} to {units.memory(several[-1])}"
    return ", ".join(units.memory(size) for size in several)


RULE = Rule(
    "nccl_measured",
    (
        Knob(
            "nccl_by_size",
            ("nccl_crossover",),
            "`NCCL_TUNER_CONFIG_FILE` of NCCL's example tuner plugin: the choice of the faster size, for exactly the "
            "sizes that gain",
            risk="needs NCCL's example tuner plugin, built for the same NCCL; NCCL_ALGO and NCCL_PROTO hold for "
            "all sizes",
            verify="nccl-tests at the named sizes by default and with the choice, as the suggestion's command does; or "
            "`gpuscope bench tune`",
        ),
        Knob(
            "nccl_choice_search",
            ("nccl_crossover",),
            "`gpuscope bench tune`, where NCCL's choices are not recorded",
            verify="the search names a candidate that beats the default in all rounds, or none",
        ),
        Knob("nccl_faster_run", ("slower_run",), "the settings of the faster of several measured runs"),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=150,
)
