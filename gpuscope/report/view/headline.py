"""The verdict in one line, and what was analysed in another."""

from __future__ import annotations

from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.cause_table import cause_label, cause_words
from gpuscope.report.view import arrangement
from gpuscope.schema.document import Report
from gpuscope.words import units
from gpuscope.words.units import crop
from gpuscope.words.vocabulary import BOUND

SUMMANDS = 2
"""Causes of a class that are named one by one."""
LEAST_SUMMAND = 0.01
"""The share from which they are."""
FEW = 10
"""Of fewer steps nine in ten are all."""
SAME = 0.01
"""Steps that differ by less are of one length."""
NAME = 60
"""Cells of a path or name within a sentence."""


def verdict_line(report: Report) -> str:
    """The verdict in one line; numbers as they stand in the report."""
    verdict = report["verdict"]
    bound_by = verdict["bound_by"]
    if verdict["abstained"] or bound_by is None:
        return "No verdict from this trace"
    share = f"{BOUND[bound_by]}, {units.whole_share(verdict['share_frac'])} of the {whole(report)}"
    # The share is the class's, so it stands before the cause.
    cause = f": {cause_label(verdict['cause'])}" if verdict["cause"] else ""
    return f"{share}{cause} - confidence {verdict['confidence']:.2g}"


def verdict_words(report: Report) -> str:
    """`CPU-bound: 28.6 % of the time = data loader 26.0 % + other host work 2.6 %`, so that one sees what adds up."""
    verdict = report["verdict"]
    bound_by = verdict["bound_by"]
    if verdict["abstained"] or bound_by is None:
        return "No verdict"
    share = units.share(verdict["share_frac"])
    takes = f"{share} of the time{_sum(report)}"
    if not report["ranks"] and verdict["cause"] == "pipeline_bubble":
        takes = f"pipeline bubble {share} of the stages' time"
    elif not report["ranks"] and "slowdown" in report:
        takes = f"stragglers make the step {report['slowdown']['total']:.3f} times as long ({share} of it)"
    return f"{BOUND[bound_by]}: {takes}"


def _sum(report: Report) -> str:
    """` = link bandwidth 5.1 % + smaller 0.2 %`: the causes of the verdict's class, which add up to its share."""
    words, left = _added(report)
    return f" = {' + '.join(words)}" + (" (rounded)" if left else "") if words else ""


def summands(report: Report) -> list[str]:
    """`link bandwidth 5.1 %`, `smaller 0.2 %`: the same, one by one."""
    return _added(report)[0]


def _added(report: Report) -> tuple[list[str], int]:
    """The causes with their shares, and by how many tenths of a per cent the sum of these is rounded."""
    verdict = report["verdict"]
    rows = [row for row in arrangement.causes(report) if row.class_name == verdict["bound_by"]]
    named = [row for i, row in enumerate(rows[:SUMMANDS]) if row.share_frac >= LEAST_SUMMAND or not i]
    words = [f"{_label(row)} {units.share(row.share_frac)}" for row in named]
    left = _tenths(verdict["share_frac"]) - sum(_tenths(row.share_frac) for row in named)
    if len(rows) > len(named) and left > 0:
        return [*words, f"smaller {left / 10:.1f} %"], 0
    return words, left if named else 0


def _label(row: arrangement.CauseRow) -> str:
    code = UNDIVIDED_COMMUNICATION if (row.class_name, row.cause) == ("communication", UNATTRIBUTED) else row.cause
    return cause_words(code)


def _tenths(share_frac: float) -> int:
    """Tenths of a per cent, as they are shown."""
    return round(10 * float(f"{100 * share_frac:.1f}"))


def whole(report: Report) -> str:
    """What shares are of."""
    stepped = any(entry["steps"] for entry in report["ranks"]) or (
        not report["ranks"] and ("slowdown" in report or "roles" in report)
    )
    return "step" if stepped else "window"


def on_cpu(report: Report) -> bool:
    """Whether no rank has a device: then its training thread counts as one."""
    return bool(report["ranks"]) and all(entry["device"] is None for entry in report["ranks"])


def context_line(report: Report) -> str:
    """What was analysed: ranks, device, window, steps and their basis."""
    entries, trace = report["ranks"], report["trace"]
    present, world = len(trace["ranks_present"]), trace["world_size"]
    pieces = [_files(report)]
    if present:
        pieces.append(f"{present} of {world} ranks" if world and world > present else units.plural(present, "rank"))
    pieces += trace["frameworks"] + [f"{kind} {size}" for kind, size in trace["parallelism"].items()]
    pieces += sorted({crop(entry["device_name"], NAME) for entry in entries if entry["device_name"]})
    pieces += [_cpu_only(report)] if on_cpu(report) else []
    steps = sorted({entry["steps"] for entry in entries})
    if entries and not steps[-1]:
        pieces.append("window " + _range([entry["window_ns"] for entry in entries]))
    if steps and steps[-1]:
        number = units.plural(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
        one = report["step_time"] is not None and report["step_time"]["steps"] == 1
        pieces.append(f"{number}{' of' if one else ', median'} {_step_time(report)}")
        pieces += [f"steps from {crop(report['steps_basis'], NAME)}"] if report["steps_basis"] else []
    elif entries:
        pieces.append("no steps found")
    elif "roles" in report and report["step_time"] is not None:
        logged, averaged = report["step_time"]["steps"], report["roles"].get("averaged", 1)
        of = f"{units.plural(logged, 'mean')} of {averaged} steps" if averaged > 1 else units.plural(logged, "step")
        pieces.append(f"{of}, median {_step_time(report)}")
    return " · ".join([*pieces, *_shared(report)])


def _cpu_only(report: Report) -> str:
    unused = any(one["code"] == "device_unused" for one in report["problems"])
    return "CPU only: nothing ran on the GPU" if unused else "CPU only: no GPU was used or recorded"


def _shared(report: Report) -> list[str]:
    """What `--share` replaced."""
    if (shared := report.get("shared")) is None:
        return []
    counts = ((shared["paths"], "path"), (shared["hosts"], "host"), (shared["users"], "user"))
    return [f"names replaced for sharing: {', '.join(units.plural(count, name) for count, name in counts)}"]


def _files(report: Report) -> str:
    sources = report["trace"]["sources"]
    formats = ", ".join(sorted({source["format"] for source in sources}))
    which = units.crop_path(sources[0]["path"], NAME) if len(sources) == 1 else units.plural(len(sources), "file")
    return f"{which} ({formats})" if formats else which


def _step_time(report: Report) -> str:
    """The median and, where steps differ visibly, how long nine in ten of them take at most; of few all there are."""
    spread = report["step_time"]
    if spread is None:
        return units.NONE
    median, p90 = units.duration(spread["median_ns"]), units.duration(spread["p90_ns"])
    if spread["steps"] < FEW:
        low, high = spread["min_ns"], spread["max_ns"]
        return f"{median} ({units.span(low, high, '–')})" if high > (1 + SAME) * low else median
    return median if median == p90 else f"{median} (p90 {p90})"


def _range(times: list[int]) -> str:
    low, high = units.duration(min(times)), units.duration(max(times))
    return low if low == high else f"{low} to {high}"
