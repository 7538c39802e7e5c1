"""The second of the first lines: what shows that the fault lies where the first line says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.cause_table import BY_CODE
from gpuscope.catalogue.finding import headline, shows
from gpuscope.catalogue.straggler_sentences import reason_words
from gpuscope.report.view import blame
from gpuscope.report.view.headline import whole
from gpuscope.schema.document import Evidence, FindingEntry, Report, SuggestionEntry, UnpredictedEntry
from gpuscope.words import units
from gpuscope.words.short_kernels import plain_kernel

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
    verdict, main = report["verdict"], blame.main_finding(report)
    if verdict["abstained"] or verdict["bound_by"] is None:
        if verdict.get("abstain_reason") == "no_device_events":
            return ""
        return lower(verdict.get("reason", verdict["why"])).rstrip(".")
    if startup := blame.startup(report):
        return shows(startup)
    if verdict["cause_abstained"] and verdict["bound_by"] != "communication":
        return "events are missing that would show why the device idles"
    if verdict["cause_abstained"] and (main is None or main["code"] == _OPEN):
        return "these files do not show whether ranks wait or transfer"
    if main is not None and main["code"] == "straggler":
        return _late(report, main)
    if reason := blame.reason(report):
        return shows(reason) if reason is main else lower(headline(reason))
    if (below := blame.leads_by_roof(report)) is not None:
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
    if late := blame.late_ranks(report, main):
        return reason_words([one for one in report["stragglers"] if one["rank"] in late])
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
        one for one in report["advice"]["unpredicted"] if main is None or blame.answers(report, one)
    ]
    known = blame.first_answer(report)
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
    each = units.memory(round(found["bytes"] / found["count"]))
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
