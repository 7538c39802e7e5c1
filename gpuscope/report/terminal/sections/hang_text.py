"""The section `hang` in the terminal: the first cause, who waited where, what is certain and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.catalogue.hang_reasons import DOING, SOURCES
from gpuscope.catalogue.hang_sentences import DIFFER, NO_HANG, not_hung, same_causes
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import ProblemEntry, Report
from gpuscope.schema.hang_section import Hang, HangLast, HangOperation
from gpuscope.words import units

OPERATIONS_SHOWN = 8
LAST_SHOWN = 16
FRAMES_SHOWN = 4
HOST_FRAMES_SHOWN = 8
SIGNS_SHOWN = 6
SIGN_WIDTH = 480
"""Cells of the longest line of a log."""
RANKS_SHOWN = 20
"""Characters of the longest list of ranks in a table."""
_REASONS = {
    "absent": "",
    "unknown": "not recorded",
    "no_dump": "no dump",
    "blocked": "blocked before it",
    "mismatch": "called a different operation",
}


def render(report: Report, writer: Writer) -> None:
    """The whole text of `gpuscope hang`: the section, and what the files lost."""
    if "hang" not in report:
        writer.line("Nothing in these files tells of a hang.")
        return
    hung = report["hang"]["hung"]
    ended = [] if hung else [one for one in report["problems"] if one["code"] in ("run_failed", "run_ended_early")]
    differ = [cause["kind"] for cause in report["hang"]["first_cause"]][:1] == ["mismatch"]
    headline = (DIFFER if differ else "The job hung") if hung else not_hung(report["hang"])
    writer.line(writer.text(headline, "bold green" if headline == NO_HANG and not ended else "bold red"))
    _problems(ended, writer)
    section(report["hang"], writer)
    _problems([one for one in report["problems"] if one not in ended], writer)


def _problems(problems: Sequence[ProblemEntry], writer: Writer) -> None:
    for problem in problems:
        writer.line(f"{problem['severity'].replace('_', ' ')}: {problem['message']}", hang=2)


def section(hang: Hang, writer: Writer) -> None:
    """First cause, operations waited in, mismatches, last operations, certain and uncertain."""
    if hang["first_cause"]:
        writer.heading("First cause")
        for (why, certain), ranks in same_causes(hang).items():
            writer.line(
                writer.text(rank_list(ranks), "bold red"), f"{'' if certain else ' (not certain)'}  {why}", hang=4
            )
        remedies = _remedies(hang)
        for remedy, whose in remedies.items():
            writer.line(
                writer.text("next  ", "bold"),
                f"{f'{whose}: ' if len(remedies) > 1 else ''}{remedy}",
                hang=6,
            )
        if hang["only_waited"]:
            writer.line(f"only waited: {units.ranks(hang['only_waited'])}")
    _sources(hang, writer)
    _operations(hang["operations"], writer)
    _mismatches(hang, writer)
    _hosts(hang, writer)
    if hang["hung"] and any(entry["op"] is not None for entry in hang["last"]):
        _last(hang, writer)
    for title, sentences in (
        ("Certain", hang["certain"]),
        ("Not certain", hang["uncertain"]),
        ("Contradictions", [one["what"] for one in hang.get("contradictions", [])]),
    ):
        if sentences:
            writer.heading(title)
            for sentence in sentences:
                writer.line("- ", sentence, hang=2)


def _remedies(hang: Hang) -> dict[str, str]:
    """What to do next, each once, with the ranks that it is for."""
    found: dict[str, list[int]] = {}
    for cause in hang["first_cause"]:
        if (remedy := cause.get("remedy")) is not None:
            found.setdefault(remedy, []).append(cause["rank"])
    return {remedy: rank_list(ranks) for remedy, ranks in found.items()}


def _sources(hang: Hang, writer: Writer) -> None:
    """What was read, and how to get what is missing."""
    read = [one for one in hang.get("sources", []) if one["ranks"]]
    if read:
        told = "; ".join(f"{SOURCES[one['source']]} of {units.ranks(one['ranks'])}" for one in read)
        writer.line(writer.text(f"read: {told}", "dim"), hang=6)
    for one in hang.get("sources", []):
        if one["missing"]:
            missing = f"{SOURCES[one['source']]} of {units.ranks(one['missing'])}"
            writer.line(writer.text("missing: ", "dim"), f"{missing}: {one['how']}", hang=9)


def _hosts(hang: Hang, writer: Writer) -> None:
    """What the ranks' main threads were doing, the first causes' with their stacks, and the lines of logs on them."""
    first = {cause["rank"] for cause in hang["first_cause"]}
    groups: dict[tuple[str, str], list[int]] = {}
    for host in hang.get("hosts", []):
        groups.setdefault((DOING[host["doing"]], host["place"] or units.NONE), []).append(host["rank"])
    if groups:
        writer.heading("What the ranks' main threads were doing")
        ordered = sorted(groups.items(), key=lambda item: not first & set(item[1]))
        writer.rows(("<ranks", "<", "~at"), [(_some(ranks), doing, place) for (doing, place), ranks in ordered])
    for host in hang.get("hosts", []):
        if host["rank"] in first:
            writer.line(f"rank {host['rank']}'s stack, innermost first:")
            for frame in host["frames"][:HOST_FRAMES_SHOWN]:
                writer.line(frame.replace("\t", "  "), indent=4, hang=2)
    signs = [one for one in hang.get("signs", []) if one["sign"] != "alive"]
    signs.sort(key=lambda one: one["rank"] not in first)
    if signs:
        writer.heading("What the logs say")
        for sign in signs[:SIGNS_SHOWN]:
            of = "" if sign["rank"] is None else f"rank {sign['rank']}: "
            writer.line(f"{of}{units.crop(sign['text'], SIGN_WIDTH)} ({sign['file']}:{sign['line']})", hang=4)
        writer.more(len(signs) - SIGNS_SHOWN)


def _operations(operations: list[HangOperation], writer: Writer) -> None:
    if not operations:
        return
    writer.heading("Waits by operation")
    rows = [
        (
            entry["op"],
            str(entry["seq"]),
            f"{entry['group']} {entry['description'] or ''}".rstrip(),
            _some(entry["waiting"]),
            _some(entry["awaited"]),
            _REASONS[entry["reason"]],
        )
        for entry in operations[:OPERATIONS_SHOWN]
    ]
    writer.rows(("~operation", ">number", "~group", "<waiting", "<for", "<"), rows)
    writer.more(len(operations) - OPERATIONS_SHOWN)


def _some(ranks: list[int]) -> str:
    text = units.ranks(ranks)
    return text if len(text) <= RANKS_SHOWN else f"{len(ranks)} ranks"


def _mismatches(hang: Hang, writer: Writer) -> None:
    if not hang["mismatches"]:
        return
    writer.heading(DIFFER)
    for mismatch in hang["mismatches"]:
        number = "" if mismatch["seq"] is None else f"number {mismatch['seq']} of "
        described = f" ({mismatch['description']})" if mismatch["description"] else ""
        writer.line(f"{number}group {mismatch['group']}{described}: another {mismatch['what'].rstrip('s')}")
        for variant in mismatch["variants"]:
            writer.line(f"ranks {units.ranks(variant['ranks'])}: {variant['called']}", indent=2, hang=4)


def _last(hang: Hang, writer: Writer) -> None:
    """The last operation of each rank: of the first cause with frames, of the others where room is."""
    first = {cause["rank"] for cause in hang["first_cause"]}
    writer.heading("Last operation each rank enqueued")
    ordered = sorted(hang["last"], key=lambda entry: (entry["rank"] not in first, entry["rank"]))
    titles = (">rank", "~operation", ">number", "~group", "<state", ">in flight")
    writer.rows(titles, map(_cells, ordered[:LAST_SHOWN]))
    writer.more(len(ordered) - LAST_SHOWN)
    for entry in ordered:
        if entry["rank"] in first and entry["frames"]:
            writer.line(f"rank {entry['rank']} enqueued it from:")
            own = [frame for frame in entry["frames"] if "/torch/" not in frame] or entry["frames"]
            for frame in own[:FRAMES_SHOWN]:
                writer.line(frame, indent=4, hang=2)


def _cells(entry: HangLast) -> tuple[str, ...]:
    if entry["op"] is None:
        return str(entry["rank"]), "none recorded", units.NONE, units.NONE, units.NONE, "0"
    group = f"{entry['group']} {entry['description'] or ''}".rstrip()
    state = entry["state"] or units.NONE
    return str(entry["rank"]), entry["op"], str(entry["seq"]), group, state, str(entry["in_flight"])
