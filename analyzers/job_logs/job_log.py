"""The section `job_log`: what a job's log tells of its steps, its start and the time it loses, and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import Need, Result
from gpuscope.analyzers.base.lanes import JOB_LOG, STEP_TIME
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.job_logs import framework_options
from gpuscope.analyzers.job_logs.line_shapes import FIGURES_TOLD
from gpuscope.analyzers.job_logs.log_records import JobRecords, LogEvent, records_of
from gpuscope.analyzers.job_logs.lost_time import LostTime, Occurrence, lost_time, steps_run
from gpuscope.analyzers.job_logs.step_course import Course, course_of, period_of
from gpuscope.analyzers.roles.role_replay import correlation, ends_of_line
from gpuscope.catalogue.finding import Finding, Severity, made
from gpuscope.catalogue.findings import job_logs as words
from gpuscope.schema.document import StepTime
from gpuscope.schema.job_log_section import (
    JobLogSection,
    LogAdvice,
    LogGrowth,
    LogLine,
    LogLongSteps,
    LogPart,
    LogRank,
    LogRestart,
    LogServer,
    LogShift,
)
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array
from gpuscope.words import units

WORTH = 0.03
"""Of the job's time: a smaller loss is told below, not on top."""
SHOWN = 2_000
NEAR = 50
"""Lines with steps on either side of a shift in which the figures beside it are compared."""
CHANGED = 0.03
LATE = 0.05
GOES_WITH = 0.8
FEWEST_FOR_LATE = 4
QUEUE = 1.0


def run(facts: RunFacts) -> Result:
    """One section, and its findings."""
    result = Result(ANALYZER.name)
    records = records_of(facts.trace)
    if records is None or not (len(records.steps) or records.server or records.events):
        return result
    course = course_of(_per_step(records))
    lost = lost_time(records, course.median)
    section = _section(records, course, lost)
    result.sections[JOB_LOG] = section
    if not facts.lanes and facts.step_time is None and len(course.steady):
        result.sections[STEP_TIME] = _step_time(records.steps.dur[course.steady], course.median)
    for finding, share, cost in _findings(section, lost):
        severity: Severity | None = None if share >= WORTH or not _is_trouble(finding) else "medium"
        result.findings.append(
            made(finding, ranks=_ranks(finding), share=min(share, 1.0), cost_ns=cost, mean_ns=None, severity=severity)
        )
    return result


def _per_step(records: JobRecords) -> Array:
    return records.steps.dur.astype(np.float64)


def _step_time(durs: Array, median: float) -> StepTime:
    return {
        "median_ns": round(median),
        "p90_ns": round(float(np.percentile(durs, 90))),
        "min_ns": int(durs.min()),
        "max_ns": int(durs.max()),
        "steps": len(durs),
    }


def _section(records: JobRecords, course: Course, lost: LostTime) -> JobLogSection:
    steps = records.steps
    name = _format(records.formats)
    server = _server(records)
    steady = steps.dur[course.steady] if len(course.steady) else np.empty(0, np.int64)
    spread = None
    if len(steady) > 1:
        low, high = np.percentile(steady, (5, 95))
        spread = round(float(high - low))
    restarts = [_restart(records, *one) for one in lost.restarts]
    known = [one["lost_ns"] for one in restarts if one["lost_ns"] is not None]
    section: JobLogSection = {
        "format": name,
        "basis": records.basis if len(steps) else "none",  # type: ignore[typeddict-item]
        "samples": records.read,
        "steps": steps_run(records),
        "step_ns": round(course.median) if len(steps) else None,
        "spread_ns": spread,
        "startup_ns": lost.startup,
        "startup_parts": _parts(records, course),
        "evaluation_ns": lost.evaluation,
        "evaluations": len(lost.evaluations),
        "checkpoint_ns": lost.checkpoint,
        "checkpoints": len(lost.checkpoints),
        "restarts": len(restarts),
        "attempts": restarts,
        "goodput_frac": min(lost.steps / lost.total, 1.0) if lost.total and lost.steps is not None else None,
        "steps_ns": lost.steps,
        "total_ns": lost.total,
        "availability_frac": max(1 - lost.restart / lost.total, 0.0) if lost.total else None,
        "mttr_ns": round(sum(known) / len(known)) if known else None,
        "shifts": [_shift(records, course, index) for index in range(len(course.shifts))],
        "long_steps": _long_steps(records, course),
        "growth": _growth(records, course),
        "late_ranks": _late_ranks(records),
        "tokens_per_s": _tokens(records, course.median),
        "mfu_frac": _mfu(records),
        "server": server,
        "advice": [],
        "next": framework_options.trace_for(name),
        "step_times": _drawn(records),
        "lines": _evidence(records, lost),
    }
    section["advice"] = list(_advice(section, lost))
    return section


def _format(formats: Sequence[str]) -> str:
    named = [one for one in formats if one not in ("plain", "tqdm")]
    return (named or list(formats) or ["plain"])[0]


def _line(records: JobRecords, line: int, source: int, text: str = "") -> LogLine:
    return {"file": records.files[source], "line": line, "text": text}


def _row_line(records: JobRecords, at: int) -> LogLine:
    steps = records.steps
    number = int(steps.step[at])
    text = f"step {number:,}: " if number != NA else ""
    return _line(records, int(steps.line[at]), int(steps.source[at]), text + units.duration(int(steps.dur[at])))


def _number(records: JobRecords, at: int) -> int:
    """The number of a row's step; its place where the log has none."""
    steps = records.steps
    if steps.step[at] != NA:
        return int(steps.step[at])
    return int(np.sum(steps.covers[: at + 1]))


def _first_of(records: JobRecords, at: int) -> int:
    """The first step that a row stands for, where it is the mean of several."""
    return _number(records, at) - (int(records.steps.covers[at]) - 1 if records.covers_known else 0)


# -- shifts, long steps, growth


def _shift(records: JobRecords, course: Course, index: int) -> LogShift:
    shift = course.shifts[index]
    at = shift.at
    return {
        "step": _number(records, at),
        "from_ns": round(shift.before),
        "to_ns": round(shift.after),
        "beside": _beside(records, at),
        "lines": [_row_line(records, max(at - 1, 0)), _row_line(records, at)],
    }


_TOLD_EVENTS = {
    "evaluation": "an evaluation",
    "evaluation_start": "an evaluation",
    "evaluation_stop": "an evaluation",
    "eval_start": "an evaluation",
    "eval_stop": "an evaluation",
    "checkpoint": "a checkpoint",
    "checkpoint_start": "a checkpoint",
    "checkpoint_stop": "a checkpoint",
    "restart": "a restart",
}


def _beside(records: JobRecords, at: int) -> list[str]:
    """Events between the last line before a place and the first one after it, and figures that change there."""
    steps = records.steps
    found: list[str] = []
    if at > 0:
        low, high = int(steps.line[at - 1]), int(steps.line[at])
        near = {_TOLD_EVENTS[one.what] for one in _between(records, at, low, high) if one.what in _TOLD_EVENTS}
        found += sorted(near)
    before, after = steps.line[max(at - NEAR, 0) : at], steps.line[at : at + NEAR]
    for name, label in FIGURES_TOLD.items():
        if name in ("loss", "grad_norm", "lr") or name not in records.figures or not len(before) or not len(after):
            continue
        lines, values = records.figures[name]
        one, other = (values[np.isin(lines, own)] for own in (before, after))
        if len(one) and len(other):
            was, now = float(np.median(one)), float(np.median(other))
            if abs(now - was) > CHANGED * max(abs(was), 1e-9):
                found.append(f"{label} {was:,.4g} → {now:,.4g}")
    return found


def _between(records: JobRecords, at: int, low: int, high: int) -> list[LogEvent]:
    source = int(records.steps.source[at])
    return [one for one in records.events if one.source == source and low <= one.line <= high]


def _long_steps(records: JobRecords, course: Course) -> LogLongSteps | None:
    if not len(course.long):
        return None
    steps = records.steps
    durs = steps.dur[course.long].astype(np.float64)
    usual = np.full(len(durs), course.median)
    for shift in course.shifts:
        usual[course.long < shift.at] = shift.before
        break
    covers = steps.covers[course.long] if records.covers_known else np.ones(len(durs))
    excess = np.maximum(durs - usual, 0) * covers
    numbers = steps.step[course.long]
    numbers = numbers if (numbers != NA).all() else course.long
    beside: dict[str, int] = defaultdict(int)
    for at in course.long.tolist():
        low = int(steps.line[at - 1]) if at else 0
        high = int(steps.line[at + 1]) if at + 1 < len(steps) else int(steps.line[at])
        for what in {_TOLD_EVENTS[one.what] for one in _between(records, at, low, high) if one.what in _TOLD_EVENTS}:
            beside[what] += 1
    longest = course.long[np.argsort(-durs, kind="stable")[:5]]
    return {
        "count": len(durs),
        "cost_ns": round(float(excess.sum())),
        "period": period_of(numbers),
        "longest_ns": round(float(durs.max())),
        "beside": [what for what, count in sorted(beside.items()) if 2 * count >= len(durs)],
        "lines": [_row_line(records, int(at)) for at in longest],
    }


def _growth(records: JobRecords, course: Course) -> LogGrowth | None:
    if course.growth is None:
        return None
    first, last = course.growth
    figure = times = None
    best = GOES_WITH
    lines = records.steps.line[course.steady]
    durs = records.steps.dur[course.steady].astype(np.float64)
    for name in FIGURES_TOLD:
        if name in ("loss", "lr", "grad_norm") or name not in records.figures:
            continue
        own, values = records.figures[name]
        index = np.searchsorted(own, lines)
        there = (index < len(own)) & (own[np.minimum(index, len(own) - 1)] == lines)
        if there.mean() < 0.8:
            continue
        logged = values[index[there]]
        start, end = ends_of_line(logged)
        alike = correlation(durs[there], logged)
        if alike >= best and end > start:
            best, figure, times = alike, name, end / start
    return {
        "first_ns": round(first),
        "last_ns": round(last),
        "steps": len(course.steady),
        "figure": figure,
        "figure_times": times,
    }


def _late_ranks(records: JobRecords) -> list[LogRank]:
    """Ranks whose own step is longer than the others' in most steps."""
    if len(records.by_rank) < 2:
        return []
    shared = sorted(set.intersection(*(set(own) for own in records.by_rank.values())))
    if len(shared) < FEWEST_FOR_LATE:
        return []
    shared = shared[min(len(shared) // 5, 10) :]
    ranks = sorted(records.by_rank)
    times = np.array([[records.by_rank[rank][step] for step in shared] for rank in ranks], np.float64)
    found: list[LogRank] = []
    for place, rank in enumerate(ranks):
        others = np.median(np.delete(times, place, 0), axis=0)
        ratio = times[place] / others
        spread = 1.4826 * float(np.median(np.abs(ratio - np.median(ratio)))) / np.sqrt(len(shared))
        over = float(np.median(ratio)) - 1
        if over > max(LATE, 4 * spread) and (ratio > 1 + LATE / 2).mean() >= 0.75:
            found.append(
                {
                    "rank": rank,
                    "step_ns": round(float(np.median(times[place]))),
                    "others_ns": round(float(np.median(others))),
                }
            )
    return found if 2 * len(found) <= len(ranks) else []


def _restart(records: JobRecords, at: int, lost: int | None, again: int) -> LogRestart:
    told = [
        _line(records, one.line, one.source, one.text)
        for one in records.events
        if one.what in ("restart", "init_start")
        and one.source == int(records.steps.source[at])
        and int(records.steps.line[at - 1]) <= one.line <= int(records.steps.line[at])
    ]
    return {
        "step": _number(records, at),
        "lost_ns": lost,
        "repeated_steps": again,
        "lines": [_row_line(records, at - 1), *told[:2], _row_line(records, at)],
    }


# -- start-up, servers, rates


def _parts(records: JobRecords, course: Course) -> list[LogPart]:
    grouped: dict[str, list[LogEvent]] = defaultdict(list)
    for one in records.events:
        if one.what == "part" and one.dur:
            grouped[one.name].append(one)
    parts: list[LogPart] = [
        # Ranks do the same at the same time: the longest counts.
        {
            "name": name.replace("_", " "),
            "dur_ns": max(one.dur or 0 for one in own),
            "count": len(own),
            "lines": [_line(records, own[0].line, own[0].source, own[0].text)],
        }
        for name, own in grouped.items()
    ]
    if course.warmup:
        steps = records.steps
        over = np.maximum(steps.dur[: course.warmup] - course.median, 0)
        parts.append(
            {
                "name": "first steps",
                "dur_ns": round(float(over.sum())),
                "count": course.warmup,
                "lines": [_row_line(records, 0)],
            }
        )
    return sorted(parts, key=lambda one: -one["dur_ns"])


def _server(records: JobRecords) -> LogServer | None:
    own = records.server
    if not own:
        return None

    def middle(name: str, busy: bool = False) -> float | None:
        values = own.get(name, np.empty(0))
        if busy and (values > 0).any():
            values = values[values > 0]
        return float(np.median(values)) if len(values) else None

    def most(name: str) -> float | None:
        values = own.get(name, np.empty(0))
        return float(values.max()) if len(values) else None

    preempted = [one for one in records.events if one.what == "preemption"]
    more = sum(one.dur or 0 for one in records.events if one.what == "preemption more")
    first = middle("time_to_first_token")
    return {
        "lines": max(len(values) for values in own.values()),
        "prompt_tokens_per_s": middle("prompt_tokens_per_s", busy=True),
        "generated_tokens_per_s": middle("generated_tokens_per_s", busy=True),
        "running": middle("running"),
        "waiting": middle("waiting"),
        "waiting_max": most("waiting"),
        "cache_used_frac": middle("cache_used"),
        "cache_used_max_frac": most("cache_used"),
        "prefix_hit_frac": middle("prefix_hit"),
        "preemptions": len(preempted) + more,
        "time_to_first_token_ns": None if first is None else round(first * 1e9),
    }


def _tokens(records: JobRecords, median: float) -> float | None:
    if "tokens_per_s" in records.figures:
        values = records.figures["tokens_per_s"][1]
        return float(np.median(values[len(values) // 5 :]))
    batch, length = (records.settings.get(name) for name in ("global_batch", "sequence_length"))
    return batch * length / (median / 1e9) if batch and length and median else None


def _mfu(records: JobRecords) -> float | None:
    if "mfu" not in records.figures:
        return None
    values = records.figures["mfu"][1]
    return min(float(np.median(values[len(values) // 5 :])), 1.0)


def _drawn(records: JobRecords) -> list[tuple[int, int]]:
    steps = records.steps
    if not len(steps):
        return []
    parts = np.array_split(np.arange(len(steps)), min(SHOWN, len(steps)))
    return [(_number(records, int(part[0])), round(float(np.median(steps.dur[part])))) for part in parts]


def _evidence(records: JobRecords, lost: LostTime) -> list[LogLine]:
    found = [_line(records, one.line, one.source, one.text or f"{one.what} line") for one in lost.marks]
    if len(records.steps):
        found += [_row_line(records, 0), _row_line(records, len(records.steps) - 1)]
    return found


# -- findings and advice


def _every(records_step: Iterable[Occurrence]) -> int | None:
    numbers = np.array(sorted({one.step for one in records_step if one.step is not None}))
    return period_of(numbers)


def _findings(section: JobLogSection, lost: LostTime) -> list[tuple[Finding, float, int]]:
    """With the share of the job and the ns that each costs, the costliest first; what is no loss has a share of 0."""
    total = section["total_ns"] or section["steps_ns"] or 0

    def share(cost: float) -> float:
        return cost / total if total else 0.0

    found: list[tuple[Finding, float, int]] = []
    left = section["steps"]
    for shift in section["shifts"]:
        behind = max(left - shift["step"], 0)
        cost = max(shift["to_ns"] - shift["from_ns"], 0) * behind
        beside = ", ".join(shift["beside"])
        found.append((words.LogShift(shift["step"], shift["from_ns"], shift["to_ns"], beside), share(cost), cost))
    if (growth := section["growth"]) is not None:
        cost = max((growth["last_ns"] - growth["first_ns"]) // 2, 0) * section["steps"]
        figure = None if growth["figure"] is None else FIGURES_TOLD[growth["figure"]]
        grown = words.LogGrowth(growth["first_ns"], growth["last_ns"], section["steps"], figure, growth["figure_times"])
        found.append((grown, share(cost), cost))
    if (long := section["long_steps"]) is not None:
        told = words.LogLongSteps(
            long["count"], long["cost_ns"], long["longest_ns"], long["period"], ", ".join(long["beside"])
        )
        found.append((told, share(long["cost_ns"]), long["cost_ns"]))
    if section["restarts"]:
        again = sum(one["repeated_steps"] for one in section["attempts"])
        cost = lost.restart + again * (section["step_ns"] or 0)
        known = any(one["lost_ns"] is not None for one in section["attempts"])
        restarts = words.LogRestarts(section["restarts"], lost.restart if known else None, again)
        found.append((restarts, share(cost), cost))
    if lost.pauses:
        cost = sum(ns for _, ns in lost.pauses)
        at, longest = max(lost.pauses, key=lambda one: one[1])
        del at
        found.append((words.LogPauses(len(lost.pauses), cost, longest, None), share(cost), cost))
    for late in section["late_ranks"]:
        cost = max(late["step_ns"] - late["others_ns"], 0) * section["steps"]
        found.append((words.LogLateRank(late["rank"], late["step_ns"], late["others_ns"]), share(cost), cost))
    overheads = (
        ("evaluation", section["evaluation_ns"], section["evaluations"], _every(lost.evaluations)),
        ("checkpoint", section["checkpoint_ns"], section["checkpoints"], _every(lost.checkpoints)),
        ("startup", section["startup_ns"] or 0, 1, None),
    )
    for kind, cost, count, every in overheads:
        if share(cost) >= WORTH:
            found.append((words.LogOverhead(kind, count, cost, share(cost), every), share(cost), cost))
    server = section["server"]
    if server is not None and ((server["waiting"] or 0) >= QUEUE or server["preemptions"]):
        queue = words.LogQueue(server["waiting"] or 0.0, server["cache_used_max_frac"], server["preemptions"])
        found.append((queue, 0.0, 0))
    return sorted(found, key=lambda one: -one[1])


_TROUBLE = (words.LogShift, words.LogGrowth, words.LogRestarts, words.LogLateRank, words.LogQueue)


def _is_trouble(finding: Finding) -> bool:
    if isinstance(finding, words.LogShift):
        return finding.to_ns > finding.from_ns
    return isinstance(finding, _TROUBLE)


def _ranks(finding: Finding) -> tuple[int, ...]:
    return (finding.rank,) if isinstance(finding, words.LogLateRank) else ()


def _advice(section: JobLogSection, lost: LostTime) -> list[LogAdvice]:
    name, total = section["format"], section["total_ns"]
    found: list[LogAdvice] = []

    def share(cost: int) -> float | None:
        return cost / total if total else None

    long = section["long_steps"]
    saves = section["checkpoint_ns"]
    if long is not None and "a checkpoint" in long["beside"] and not saves:
        saves = long["cost_ns"]
    if section["checkpoints"] and saves and (share(saves) or 0) >= 0.005:
        every = _every(lost.checkpoints)
        often = f" every {every:,} steps" if every else f" ({section['checkpoints']} times)"
        how = framework_options.CHECKPOINTS.get(
            name, "asynchronous checkpoints (torch.distributed.checkpoint.async_save)"
        )
        found.append(
            {
                "code": "async_checkpoint",
                "gain_frac": share(saves),
                "action": f"checkpoints{often} cost {units.share(share(saves) or 0)}: {how}",
            }
        )
    if (share(section["evaluation_ns"]) or 0) >= 0.02:
        how = framework_options.EVALUATIONS.get(name, "less often, or on fewer batches")
        cost = units.share(share(section["evaluation_ns"]) or 0)
        found.append(
            {
                "code": "fewer_evaluations",
                "gain_frac": share(section["evaluation_ns"]),
                "action": f"{units.plural(section['evaluations'], 'evaluation')} cost {cost}: {how}",
            }
        )
    if section["startup_ns"] and (share(section["startup_ns"]) or 0) >= 0.05:
        cost = units.share(share(section["startup_ns"]) or 0)
        how = framework_options.COMPILED.get(name, framework_options.ANY_COMPILED)
        found.append(
            {
                "code": "shorter_start",
                "gain_frac": share(section["startup_ns"]),
                "action": f"the start is {cost} of the job: {how}",
            }
        )
    repeated = sum(one["repeated_steps"] for one in section["attempts"])
    if repeated and section["step_ns"]:
        again = repeated * section["step_ns"]
        found.append(
            {
                "code": "checkpoint_more_often",
                "gain_frac": share(again),
                "action": f"{units.plural(repeated, 'step')} ran again after restarts ({units.duration(again)}): "
                "save more often, asynchronously",
            }
        )
    return sorted(found, key=lambda one: -(one["gain_frac"] or 0))


ANALYZER = RunAnalyzer(
    "job_log",
    run,
    (
        Need(
            "log of a job",
            "name the job's log",
            lambda trace: any(source.format == "step-log" for source in trace.sources),
            optional=True,
        ),
    ),
    (JOB_LOG, STEP_TIME),
)
