"""A job's log in words, for every front: where its time goes, and what the table does not say."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.schema.job_log_section import JobLogSection, LogServer
from gpuscope.words import units

PARTS_SHOWN = 6
BASES = {
    "step_time": "as logged",
    "rate": "by the rate of a progress bar",
    "throughput": "the global batch by the throughput",
    "time_stamps": "by the time stamps of its lines",
    "none": "",
}


def table(log: JobLogSection) -> list[tuple[str, str, str, str]]:
    """Where the job's time goes: what, how long, its share, how often."""
    total = log["total_ns"]
    entries: list[tuple[str, int | None, int | None]] = [
        ("steps", log["steps_ns"], log["steps"]),
        ("start", log["startup_ns"], None),
        ("evaluations", log["evaluation_ns"], log["evaluations"]),
        ("checkpoints", log["checkpoint_ns"], log["checkpoints"]),
        ("restarts", sum(one["lost_ns"] or 0 for one in log["attempts"]), log["restarts"]),
    ]
    known = sum(ns or 0 for _, ns, _ in entries)
    if total is not None and total > known:
        entries.append(("neither", total - known, None))
    return [
        (
            name,
            units.duration(ns),
            units.share(ns / total) if total else units.NONE,
            units.count(count) if count else "",
        )
        for name, ns, count in entries
        if ns
    ]


def steps_sentence(log: JobLogSection) -> str:
    """How long steps are."""
    if log["step_ns"] is None:
        return "no step time is logged"
    spread = f", nine in ten within {units.duration(log['spread_ns'])}" if log["spread_ns"] else ""
    pieces = [f"a step takes {units.duration(log['step_ns'])} in the median{spread}"]
    pieces.append(f"{units.plural(log['samples'], 'step time')} read, {BASES[log['basis']]}")
    if log["tokens_per_s"]:
        pieces.append(f"{log['tokens_per_s']:,.0f} tokens/s as logged or by batch and length")
    if log["mfu_frac"]:
        pieces.append(f"MFU {units.share(log['mfu_frac'])}")
    return "; ".join(pieces)


def sentences(log: JobLogSection) -> list[str]:
    """What the table does not say."""
    return [*_told(log)]


def _told(log: JobLogSection) -> Iterator[str]:
    if log["step_ns"] is not None:
        yield steps_sentence(log)
    if log["goodput_frac"] is not None:
        yield (
            f"goodput {units.share(log['goodput_frac'])}: the steps' time by that of the whole job"
            + (
                f"; available {units.share(log['availability_frac'])}, a restart takes {units.duration(log['mttr_ns'])}"
                if log["mttr_ns"] is not None and log["availability_frac"] is not None
                else ""
            )
        )
    if log["startup_parts"]:
        parts = log["startup_parts"][:PARTS_SHOWN]
        named = ", ".join(f"{part['name']} {units.duration(part['dur_ns'])}" for part in parts)
        yield f"of the start: {named}"
    for shift in log["shifts"]:
        beside = f"; beside it: {', '.join(shift['beside'])}" if shift["beside"] else ""
        lines = " and ".join(f"{one['file']}:{one['line']}" for one in shift["lines"])
        span = units.span(shift["from_ns"], shift["to_ns"], " → ")
        yield f"from step {shift['step']:,} on: {span} ({lines}){beside}"
    if (long := log["long_steps"]) is not None:
        often = f", every {long['period']:,} steps" if long["period"] else ""
        lines = ", ".join(f"{one['file']}:{one['line']}" for one in long["lines"][:3])
        count = units.plural(long["count"], "long step")
        yield f"{count}{often}: {units.duration(long['cost_ns'])} more in all ({lines})"
    if (server := log["server"]) is not None:
        yield server_sentence(server)
    for one in log["advice"]:
        yield one["action"]
    yield f"what the log can't tell: {log['next']}"


def server_sentence(server: LogServer) -> str:
    """An inference server in one sentence."""
    pieces = []
    if server["generated_tokens_per_s"] is not None:
        pieces.append(f"generates {server['generated_tokens_per_s']:,.0f} tokens/s while it does")
    if server["prompt_tokens_per_s"] is not None:
        pieces.append(f"reads {server['prompt_tokens_per_s']:,.0f} tokens/s of prompts")
    if server["running"] is not None:
        pieces.append(f"{server['running']:,.0f} requests run")
    if server["waiting"] is not None:
        pieces.append(f"{server['waiting']:,.0f} wait (at most {server['waiting_max'] or 0:,.0f})")
    if server["cache_used_max_frac"] is not None:
        pieces.append(f"the cache is {units.share(server['cache_used_max_frac'])} full at most")
    if server["preemptions"]:
        pieces.append(f"{units.plural(server['preemptions'], 'preemption')}")
    if server["time_to_first_token_ns"] is not None:
        pieces.append(f"first token after {units.duration(server['time_to_first_token_ns'])}")
    return f"the server, in the median of {units.plural(server['lines'], 'line')}: {', '.join(pieces)}"
