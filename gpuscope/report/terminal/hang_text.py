"""The section `hang` in the terminal: the first cause, who waited where, what is certain and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.catalogue.findings.roles import RoleGrowth
from gpuscope.catalogue.hang_sentences import DIFFER, DOING, NO_HANG, SOURCES, not_hung, same_causes
from gpuscope.catalogue.suggestion import cause_label
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import call_tree
from gpuscope.report.view.call_tree import By
from gpuscope.schema.call_tree_section import PlaceEntry, ServingPhase, ServingSection
from gpuscope.schema.document import ProblemEntry, Report
from gpuscope.schema.memory_section import Hang, HangLast, HangOperation
from gpuscope.schema.provenance import RoleGain, RolePool, RolesSection
from gpuscope.words import units
from gpuscope.words.vocabulary import CLASSES, LABELS

# The section `roles` in words: a step by role, idle GPUs, the rollout's tail, and what is bounded, not predicted.

FAINT = 0.001
"""The share below which a role has no row."""
STALENESS = {
    "staleness_mean": "versions of the weights between rollout and use, mean",
    "staleness_max": "the most",
    "stale_in_all": "stale samples used in all",
    "stale_dropped_in_all": "stale samples dropped in all",
}


def roles_text_section(report: Report, writer: Writer) -> None:
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


# The section `serving` in words: an inference server's steps by phase, and how long requests wait for tokens.

SERVERS = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}
HEAD = ("steps", "step", "comp.", "comm.", "mem.", "idle", "CPU", "gap", "tokens/s")
"""Of `row`."""
BATCHES_SHOWN = 8


def serving_text_section(report: Report, writer: Writer) -> None:
    """Nothing of other programs."""
    if "serving" not in report:
        return
    serving = report["serving"]
    writer.heading("Serving by phase")
    writer.rows((f"<{HEAD[0]}", *(f">{name}" for name in HEAD[1:])), map(row, serving["phases"]))
    for sentence in serving_text_sentences(serving):
        writer.line(sentence, hang=2)


def row(one: ServingPhase) -> list[str]:
    """The cells of one phase, as `HEAD` names them."""
    parts = one["breakdown_ns"]
    columns = (parts["compute"], parts["exposed_communication"], parts["exposed_memory"], parts["idle"])
    spent = max(sum(columns), 1)
    rate = one["tokens_per_s"]
    return [
        f"{one['steps']} {one['phase'] or 'unknown'}",
        units.duration(one["step_ns"]),
        *(units.share(part / spent) for part in (*columns, one["cpu_ns"])),
        units.duration(one["gap_ns"]),
        units.NONE if rate is None else units.count(round(rate)),
    ]


def serving_text_sentences(serving: ServingSection, *, waits: bool = True) -> list[str]:
    """What bounds each phase, its batch, its work and roofs; `waits` for tokens; batches that run without graphs."""
    told = [sentence for one in serving["phases"] for sentence in _of_phase(one)]
    told += _waits(serving) if waits else ()
    eager = [one for one in serving["batches"] if one["graphed_frac"] < 0.5]
    replayed = [one for one in serving["batches"] if one["graphed_frac"] >= 0.5]
    for one in eager[:BATCHES_SHOWN] if replayed else ():
        told.append(
            f"decode of {one['requests']} requests runs without graphs: {units.duration(one['step_ns'])}, of which "
            f"{units.duration(one['launch_ns'])} wait for launches"
        )
    if serving["captured"]:
        told.append(f"graphs captured for {', '.join(map(str, serving['captured']))}")
    return told


def _of_phase(one: ServingPhase) -> Iterator[str]:
    name = one["phase"] or "steps of unknown phase"
    bound = one["bound_by"]
    by = "compute" if bound == "compute" else CLASSES[bound]
    cause = f", most of it {cause_label(one['cause'])}" if one["cause"] else ""
    batch = [
        f"{units.count(round(number))} {what}"
        for number, what in (
            (one["prefill_requests"], "prompts"),
            (one["prefill_tokens"], "tokens of prompts"),
            (one["decode_requests"], "requests that decode"),
        )
        if number
    ]
    means = f"; per step {', '.join(batch)}" if batch and one["phase"] != "capture" else ""
    yield f"{name}: bound by {by} ({units.share(one['cause_frac'])}{cause}){means}"
    if one["launches"]:
        graphs = f", {one['graphs']:.0f} of them graphs with {units.share(one['graphed_frac'])} of its kernels"
        host = f"; the host is done in {units.duration(one['host_ns'])}" if one["host_ns"] is not None else ""
        yield (
            f"  {one['launches']:.0f} launches per step{graphs if one['graphs'] else ', none of them a graph'}: "
            f"{units.duration(one['call_ns'])} in the calls{host}"
        )
    spent = sum(part["dur_ns"] for part in one["work"])
    if spent:
        yield "  kernels: " + ", ".join(
            f"{part['kind']} {units.share(part['dur_ns'] / spent)}"
            + (f" ({units.share(part['floor_frac'])} of its roof)" if part["floor_frac"] is not None else "")
            for part in one["work"]
        )


def _waits(serving: ServingSection) -> Iterator[str]:
    interval, first = serving["token_interval"], serving["first_token"]
    if interval is not None:
        alone = serving["decode_alone_ns"]
        than = f"; {units.duration(alone)} where nothing but decode runs" if alone is not None else ""
        spread = (
            f" (90th percentile {units.duration(interval['p90_ns'])}, longest {units.duration(interval['max_ns'])})"
            if interval["count"] > 1
            else ""
        )
        yield f"time per token: {units.duration(interval['median_ns'])}{spread}{than}"
    if first is not None:
        yield (
            f"first token of a prompt that fits one step: {units.duration(first['median_ns'])}, without waiting for "
            "its turn"
        )


# `--by`: where in the program device time, exposed communication and idle time arise, as a table or a tree.

Shown = By | Literal["tree"]
ROWS = 20
LEAST_FRAC = 0.01
"""Share of device and idle time from which a place stands in the tree, where no number of rows is asked for."""
_NONE = {
    "line": "no line of your own around it",
    "module": "no module around it",
    "operator": "no operator around it",
    "kernel": "idle time and communication without a kernel",
}
_RECORD = {
    "line": "Record Python stacks to see lines: torch.profiler.profile(with_stack=True).",
    "module": "Record modules to see them: torch.profiler.profile(with_stack=True, with_modules=True).",
}
_RECORD_BY_NSYS = {
    "line": "Record call stacks to see lines: nsys profile --sample=process-tree --cudabacktrace=all "
    "--python-sampling=true --python-backtrace=cuda.",
    "module": "Record modules to see them: ranges of your own, or nsys profile --pytorch=functions-trace.",
    "operator": "Record operators to see them: nsys profile --pytorch=autograd-nvtx.",
}
"""The same for reports of nsys, which has the flags on Python since 2023.4 and those on PyTorch since 2024.5."""


def places_text_render(report: Report, writer: Writer, by: Shown, shown: int | None) -> None:
    """Print the table or the tree, its `shown` first rows."""
    entries = report.get("call_tree", [])
    if not entries:
        writer.line("No place of the program is known: no host events were recorded that launches could be tied to.")
        return
    if by == "tree":
        _tree(entries, writer, shown)
        return
    _table(report, entries, writer, by, shown or ROWS)


def _table(report: Report, entries: Sequence[PlaceEntry], writer: Writer, by: By, shown: int) -> None:
    rows = call_tree.rows(entries, by)
    everything = sum(row.device_ns for row in rows)
    writer.heading(f"By {by} (sums over ranks)")
    cells = []
    for row in rows[:shown]:
        share = row.device_ns / everything if everything else 0.0
        times = (row.device_ns, row.exposed_communication_ns, row.idle_ns)
        device, exposed, idle = (units.duration(ns) if ns else units.NONE for ns in times)
        cells.append((device, units.share(share), exposed, idle, row.name or _NONE[by]))
    writer.rows((">device", ">share", ">exposed comm.", ">idle", f"~{by}"), cells)
    if len(rows) > shown:
        writer.line(f"{len(rows) - shown} more: --top {len(rows)}")
    known = call_tree.covered(entries, by)
    if known is not None and known < 1:
        writer.line(f"{units.share(known)} of the device time has a {by} around its launch.")
    by_nsys = all(source["format"].startswith("nsys") for source in report["trace"]["sources"])
    record = (_RECORD_BY_NSYS if by_nsys else _RECORD).get(by)
    if not known and record:
        writer.line(record)


def _tree(entries: Sequence[PlaceEntry], writer: Writer, shown: int | None) -> None:
    """Every place with what it and all below it take."""
    within = call_tree.inclusive(entries)
    depth: dict[int | None, int] = {None: -1}
    for entry in entries:
        depth[entry["id"]] = depth[entry["parent"]] + 1
    everything = sum(within[entry["id"]][0] + within[entry["id"]][2] for entry in entries if entry["parent"] is None)
    least = LEAST_FRAC * everything if shown is None else 0
    kept = [entry for entry in entries if within[entry["id"]][0] + within[entry["id"]][2] >= least][:shown]
    writer.heading("By place (with all below it, sums over ranks)")
    rows = [
        (
            *(units.duration(ns) if ns else units.NONE for ns in within[entry["id"]]),
            f"{'  ' * depth[entry['id']]}{entry['name']}",
        )
        for entry in kept
    ]
    writer.rows((">device", ">exposed comm.", ">idle", "~place"), rows)
    if len(kept) < len(entries):
        writer.line(f"{len(entries) - len(kept)} smaller ones: --top {len(entries)}")


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
