"""The verdict in one line, and what was analysed in another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION, Look
from gpuscope.catalogue.finding import headline, shows
from gpuscope.catalogue.straggler_sentences import always_last, reason_words
from gpuscope.catalogue.suggestion import BY_CODE, CAUSES, cause_label, cause_words
from gpuscope.report.view import main_finding, report_rows
from gpuscope.schema.document import Evidence, FindingEntry, RankEntry, Report, SuggestionEntry, UnpredictedEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import crop, plain_kernel
from gpuscope.words.vocabulary import BOUND, PARTS, VERDICT_SHARE, PartKey

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
    rows = [row for row in report_rows.causes(report) if row.class_name == verdict["bound_by"]]
    named = [row for i, row in enumerate(rows[:SUMMANDS]) if row.share_frac >= LEAST_SUMMAND or not i]
    words = [f"{_label(row)} {units.share(row.share_frac)}" for row in named]
    left = _tenths(verdict["share_frac"]) - sum(_tenths(row.share_frac) for row in named)
    if len(rows) > len(named) and left > 0:
        return [*words, f"smaller {left / 10:.1f} %"], 0
    return words, left if named else 0


def _label(row: report_rows.CauseRow) -> str:
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
    elif "job_log" in report and report["step_time"] is not None:
        log = report["job_log"]
        pieces += [log["format"], f"{units.plural(log['samples'], 'step time')}, median {_step_time(report)}"]
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


# The step of a rank as one bar by cause, and what the first change makes of it: the same on every page.

COMPUTE = "compute"
SEEN = 0.004
"""Of a bar is a piece that one sees: what is below it on every rank has no place in the legend."""
_ACCUSING = ("slow_worker", "slow_stage")
"""Findings whose ranks are at fault."""


@dataclass(frozen=True)
class Kind:
    """What a piece of a bar is: compute, or a cause."""

    code: str
    label: str
    look: Look
    part: PartKey


@dataclass(frozen=True)
class Changed:
    """The step as it is, and after the first change, ns; of a bound all below `after` is possible."""

    before: int
    after: int
    low: int
    high: int
    bound: bool


KINDS = (
    Kind(COMPUTE, COMPUTE, Look(PARTS[0].colour), "compute"),
    *sorted(
        (Kind(cause.code, cause.label, cause.look, cause.part) for cause in CAUSES),
        key=lambda kind: [part.key for part in PARTS].index(kind.part),
    ),
)
"""In the order of the bars: compute, communication, memory, idle."""


def pieces(entry: RankEntry) -> dict[str, int]:
    """Time by kind, ns: the parts of the judged window, which they sum to. What has no cause, or one that this version
    does not know, is unattributed."""
    stalls = entry["stall_ns"]
    found = {COMPUTE: entry["breakdown_ns"]["compute"]}
    for of_class in (stalls["cpu"], stalls["communication"], stalls["memory"]):
        found |= {code: ns for code, ns in of_class.items() if code in BY_CODE and code != UNATTRIBUTED}
    found[UNDIVIDED_COMMUNICATION] = stalls["communication"].get(UNATTRIBUTED, 0)
    found[UNATTRIBUTED] = max(entry["window_ns"] - sum(found.values()), 0)
    return found


def kinds(entries: Sequence[RankEntry]) -> list[Kind]:
    """Those that any of these ranks has."""
    present = {code for entry in entries for code, ns in pieces(entry).items() if ns}
    return [kind for kind in KINDS if kind.code in present]


def seen(entries: Sequence[RankEntry]) -> set[str]:
    """Codes of the pieces that can be told in any of these ranks' bars."""
    return {code for one in entries for code, ns in pieces(one).items() if ns > SEEN * one["window_ns"]}


def culprits(report: Report) -> list[int]:
    """Ranks at fault, the costliest first: those that the verdict's finding accuses, and those that make the others
    wait, again and again and for a share that is named."""
    step, main = report["step_time"], main_finding.main_finding(report)
    least = LEAST_SUMMAND * step["median_ns"] if step is not None else 0
    caused = {one["rank"]: one["root_wait_ns"] for one in report["stragglers"]}
    late = [one["rank"] for one in report["stragglers"] if one["recurrent"] and (one["per_step_ns"] or 0) >= least]
    if main is not None and main["code"] in _ACCUSING:
        late += main["ranks"]
    if main is not None and main["code"] == "straggler":
        late += main_finding.late_ranks(report, main)
    return sorted(set(late), key=lambda rank: (-caused.get(rank, 0), rank))


def changed(told: SuggestionEntry | UnpredictedEntry | None) -> Changed | None:
    """What the change of the first lines makes of the step; None where nothing is predicted."""
    found: Any = told  # which of the two it is, its keys tell
    if found is None:
        return None
    if "bound" in found:
        bound = found["bound"]
        low, before = bound["step_ns_low"], bound["step_ns_before"]
        return Changed(before, low, low, before, True)
    if "predicted" not in found or not found["predicted"]["step_ns_before"]:
        return None
    one = found["predicted"]
    return Changed(one["step_ns_before"], one["step_ns_after"], one["low_ns"], one["high_ns"], False)


# The second of the first lines: what shows that the fault lies where the first line says.

TELLING = 2 / 3
"""Share of the evidence that a name has which stands for all of it."""
MOST = 0.5
"""Share of a gap that an event must cover to be what the gap is about."""
_OPEN = BY_CODE[UNDIVIDED_COMMUNICATION].finding_code
TURNS = 3
"""Ranks that are named where none is late more often than the others."""
UNNAMED = "idle"
"""The name of evidence beside which nothing was recorded."""
LOADER = "enumerate(DataLoader)#"
"""How torch.profiler begins the names of all loaders."""


def why_it_is_so(report: Report) -> str:
    """Without a full stop; empty where nothing is known."""
    verdict, main = report["verdict"], main_finding.main_finding(report)
    if verdict["abstained"] or verdict["bound_by"] is None:
        if verdict.get("abstain_reason") == "no_device_events":
            return ""
        return lower(verdict.get("reason", verdict["why"])).rstrip(".")
    if startup := main_finding.startup(report):
        return shows(startup)
    if verdict["cause_abstained"] and verdict["bound_by"] != "communication":
        return "events are missing that would show why the device idles"
    if verdict["cause_abstained"] and (main is None or main["code"] == _OPEN):
        return "these files do not show whether ranks wait or transfer"
    if main is not None and main["code"] == "straggler":
        return _late(report, main)
    if reason := main_finding.reason(report):
        return shows(reason) if reason is main else lower(headline(reason))
    if (below := main_finding.leads_by_roof(report)) is not None:
        return shows(below)
    if found := _of_the_first_change(report, main):
        return found
    if main is None:
        return ""
    return _WORDS.get(main["code"], _beside)(report, main)


def most_beside(finding: FindingEntry, least: float = 0.0) -> str:
    """The name beside which most of a finding's time is lost; empty where that has less than this share of it."""
    spent: dict[str, int] = defaultdict(int)
    for evidence in finding["evidence"]:
        spent[evidence["name"] if _names(evidence) else ""] += evidence["dur_ns"]
    spent.pop(UNNAMED, None)
    most = max(spent, key=lambda name: spent[name], default="")
    in_all = sum(spent.values())
    # The longest spans are evidence; of many short ones they need not be like the others.
    like_all = len(spent) == 1 or not finding["cost_ns"] or in_all >= finding["cost_ns"] / 2
    if not most or (least and (spent[most] < least * in_all or not like_all)):
        return ""
    return plain_kernel(most).removeprefix(LOADER)  # its cause says that it is a loader


def _names(evidence: Evidence) -> bool:
    """Whether its event is what its gap is about: of one that covers the smaller part, most is not known."""
    return evidence.get("covered_frac", 1) >= MOST


def lower(text: str) -> str:
    """A sentence within another; `DDP` and `NCCL_ALGO` stay."""
    first = text.split(" ")[0]
    return text if first[1:] != first[1:].lower() else text[:1].lower() + text[1:]


def _late(report: Report, main: FindingEntry) -> str:
    if late := main_finding.late_ranks(report, main):
        return reason_words([one for one in report["stragglers"] if one["rank"] in late])
    known = next((one for one in report["stragglers"] if one["rank"] in main["ranks"][:1]), None)
    if len(main["ranks"]) == 1 and known is not None and always_last(known):
        return f"rank {known['rank']} came last in all {known['of_steps']} steps, too few to be sure: record more"
    if len(main["ranks"]) == 1:
        return f"most goes back to rank {main['ranks'][0]}, though no more often than by chance"
    caused = {one["rank"]: one["root_wait_ns"] for one in report["stragglers"]}
    in_all = sum(caused.values())
    first = sorted(caused, key=lambda rank: -caused[rank])[:TURNS]
    shares = [f"rank {rank} {units.whole_share(caused[rank] / in_all)}" for rank in first if caused[rank]]
    return f"{', '.join(shares)} of the waiting" if shares else ""


def _of_the_first_change(report: Report, main: FindingEntry | None) -> str:
    """What the first change rests on, where it answers what is wrong, or nothing but compute is."""
    untried: list[SuggestionEntry | UnpredictedEntry] = [
        one for one in report["advice"]["unpredicted"] if main is None or main_finding.answers(report, one)
    ]
    known = main_finding.first_answer(report)
    if known is None and main is not None and main["code"] in _WORDS:
        return ""  # what is wrong says more than why nobody knows what a change would gain
    first = known or next(iter(untried), None)
    if first is None:
        return ""
    if grounds := first.get("grounds", ""):
        return grounds
    answered = next((one for one in report["findings"] if one["code"] == first["finding"]), None)
    return "" if answered is None or answered["code"] in BY_CODE else lower(shows(answered))


def _beside(report: Report, main: FindingEntry) -> str:  # noqa: ARG001 - one of `_WORDS`
    awaited = sum(one["dur_ns"] for one in main["evidence"] if one.get("awaits"))
    if 2 * awaited > sum(one["dur_ns"] for one in main["evidence"]):
        return "nothing is recorded once the blocking calls have returned: it may wait for work from another process"
    cause = next((one for one in BY_CODE.values() if one.finding_code == main["code"]), None)
    if cause is None or not cause.located:
        return ""
    where = most_beside(main, TELLING)
    longest = max(main["evidence"], key=lambda one: one["dur_ns"], default=None)
    if longest is not None and not where and not _names(longest):
        return "no recorded event covers most of its longest gap"
    if any(plain_kernel(one["name"]) == where for one in main["evidence"] if one.get("between")):
        return f"most of it {where}"
    return f"most of it {'in' if cause.idle else 'is'} {where}" if where else ""


def _launched(report: Report, main: FindingEntry) -> str:
    """`76 kernels per step, the median runs 10.08 µs`."""
    launches = [one for one in report.get("launches", []) if one["rank"] in main["ranks"]]
    if not launches:
        return ""
    most = max(launches, key=lambda one: one["launches"])
    per_step = {one["rank"]: one["kernels_per_step"] for one in report.get("host_calls", []) if one["steps"]}
    number = per_step.get(most["rank"])
    many = f"{number:,.0f} kernels per {whole(report)}" if number else f"{most['launches']:,} launches in the window"
    return f"{many}, the median runs {units.duration(most['kernel_median_ns'])}"


def _small(report: Report, main: FindingEntry) -> str:  # noqa: ARG001 - one of `_WORDS`
    """`84 all_reduce in the recording, of 85.3 KiB each on average`."""
    # Where transfers are not all known, of the rest at least how long they took.
    by = "dur_ns" if any(one["transfer_ns"] is None for one in report["collectives"]) else "transfer_ns"
    found = max(report["collectives"], key=lambda one: one[by] or 0, default=None)  # type: ignore[literal-required]
    if found is None or not found["bytes"] or not found["count"]:
        return ""
    each = units.size(round(found["bytes"] / found["count"]))
    return f"{found['count']:,} {found['op']} in the recording, of {each} each on average"


def _transferred(report: Report, main: FindingEntry) -> str:
    """`all_reduce reaches 19.82 of 450 GB/s (18 × NVLink 4)`."""
    entries = [one for one in report.get("bandwidth", []) if one["busbw_gbps"] and one["peak_gbps"]]
    found = max(entries, key=lambda one: one["dur_ns"] or 0, default=None)
    if found is None:
        return _beside(report, main)
    link = f" ({found['link']})" if found["link"] else ""
    peak = units.bandwidth(found["peak_gbps"])
    return f"{found['op']} reaches {units.bandwidth(found['busbw_gbps'])} of {peak}{link}"


_WORDS: dict[str, Callable[[Report, FindingEntry], str]] = {
    "launch": _launched,
    "latency": _small,
    "bandwidth": _transferred,
}
"""Causes of which a figure says more than a name."""


# Why this verdict: the largest places that it rests on, and what would tip it.

SHOWN = 3
_CLASSES: tuple[Literal["cpu", "communication", "memory"], ...] = ("cpu", "communication", "memory")
_CALLED = {"cpu": "CPU stalls", "communication": "communication stalls", "memory": "memory stalls"}


@dataclass(frozen=True)
class Place:
    """One of the largest places."""

    rank: str
    step: str
    at: str
    lasts: str
    said: str
    """What ran there, and why it is evidence."""
    evidence: Evidence


def largest(report: Report, shown: int = SHOWN) -> list[Place]:
    """The largest places of what the first line says, the longest first; empty where nothing is said."""
    main = main_finding.main_finding(report)
    if main is None or report["verdict"]["abstained"]:
        return []
    longest = sorted(main["evidence"], key=lambda one: -one["dur_ns"])[:shown]
    return [_place(report, evidence) for evidence in longest]


def _place(report: Report, evidence: Evidence) -> Place:
    number, at = "", report_rows.place_ns(evidence, report_rows.starts(report))
    for step in report["steps"]:
        since = evidence["start_ns"] - step["start_ns"]
        if step["rank"] == evidence["rank"] and step["step"] is not None and 0 <= since < step["dur_ns"]:
            number = str(step["step"])
    note = f": {evidence['note']}" if evidence["note"] else ""
    return Place(
        rank=str(evidence["rank"]),
        step=number,
        at=units.NONE if at is None else units.offset(at),
        lasts=units.duration(evidence["dur_ns"]),
        said=plain_kernel(evidence["name"]) + note,
        evidence=evidence,
    )


def tipping(report: Report) -> str:
    """What would make it another verdict; empty where there is none, or only operations are known."""
    verdict = report["verdict"]
    window = sum(entry["window_ns"] for entry in report["ranks"])
    if verdict["abstained"] or verdict["bound_by"] is None or not window:
        return ""
    taken = {name: sum(sum(entry["stall_ns"][name].values()) for entry in report["ranks"]) for name in _CLASSES}
    line = units.whole_share(VERDICT_SHARE)
    others = [name for name in _CLASSES if name != verdict["bound_by"]]
    following = max(others, key=lambda name: taken[name])
    share = taken[following] / window
    if verdict["bound_by"] == "compute":
        return f"{BOUND[following]} if {_CALLED[following]} took {line} (now {units.share(share)})"
    own = f"if {_CALLED[verdict['bound_by']]} took less than"
    now = f"(now {units.share(verdict['share_frac'])})"
    if share < VERDICT_SHARE:
        return f"compute-bound {own} {line} {now}"
    return f"{BOUND[following]} {own} {units.share(share)} {now}"
