"""The first causes by all sources: those of the dumps with what their ranks did instead, else those the others tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuscope.analyzers.hangs import evidence as network_errors
from gpuscope.analyzers.hangs import timed_out
from gpuscope.analyzers.hangs.evidence import WAITING, Evidence
from gpuscope.analyzers.hangs.rank_states import Job
from gpuscope.analyzers.hangs.timed_out import Awaited
from gpuscope.catalogue import hang_sentences as words
from gpuscope.schema.memory_section import HangCause, HangContradiction, Reason

_ORDER: tuple[Reason, ...] = (
    "killed",
    "out_of_memory_host",
    "out_of_memory",
    "gpu_error",
    "program_error",
    "driver_error",
    "crashed",
    "exited",
    "stopped",
    "debugger",
    "unresponsive",
    "blocked_call",
    "compiling",
    "data_loader",
    "storage",
    "rendezvous",
    "gil",
    "device_wait",
    "lock",
    "host_code",
    "network",
)
_SEEN = frozenset({"debugger", "compiling", "data_loader", "storage", "rendezvous"})
"""What a stack shows outright: other code may do anything, and a wait for a device or lock says not for what."""
_UNLIKELY = frozenset({"device_wait", "lock", "host_code"})
_Why = tuple[Reason, bool, str]
"""Reason, whether it is certain, and where."""


def causes(
    job: Job, of_dumps: Sequence[HangCause], evidence: Evidence, awaited: Awaited, healthy: bool
) -> list[HangCause]:
    """First cause first: the certain ones, then by how much their reason explains."""
    if of_dumps and not all(cause["kind"] == "transfer" for cause in of_dumps):
        found = [_with_reason(job, cause, evidence) for cause in of_dumps]
    elif healthy and not evidence.timed_out:
        found = []
    else:
        came = {cause["rank"] for cause in of_dumps}
        found = _without_dumps(job, evidence, awaited, came)
        found = found or [_with_reason(job, cause, evidence) for cause in of_dumps]
    return sorted(found, key=_place)


def _place(cause: HangCause) -> tuple[bool, int, int]:
    reason = cause.get("reason")
    return not cause["certain"], _ORDER.index(reason) if reason else len(_ORDER), cause["rank"]


def _with_reason(job: Job, cause: HangCause, evidence: Evidence) -> HangCause:
    """A cause that the dumps tell, and what its rank did. A mismatch is its own reason, a ring needs none."""
    rank, kind = cause["rank"], cause["kind"]
    if kind in ("mismatch", "circular"):
        return cause
    gone = evidence.gone(rank)
    if kind == "no_dump" and gone not in (None, "unresponsive"):
        cause = {**cause, "certain": True}
    if _waits(rank, evidence) and not gone and kind == "never_arrived":
        return {**cause, "certain": False}
    why = _why(rank, evidence)
    if kind == "transfer" and why is not None and why[0] in _UNLIKELY:
        why = None  # every rank has come to the operation: what hosts do meanwhile is no reason
    if kind == "no_dump" and why is not None and why[0] in ("host_code", "lock") and evidence.answers(rank):
        why = "gil", False, why[2]  # it lives, and no thread of Python wrote a dump
    return cause if why is None else _detailed(_explained(cause, why, job.ranks), evidence)


def _waits(rank: int, evidence: Evidence) -> bool:
    host = evidence.hosts.get(rank)
    return host is not None and host.doing == "collective"


def _why(rank: int, evidence: Evidence) -> _Why | None:
    """What a rank did instead: how it ended, its process's state, its stack, its open compilation, in this order."""
    gone, host, own = evidence.gone(rank), evidence.hosts.get(rank), evidence.of(rank)
    place = host.place if host is not None else ""
    if gone is not None:
        return gone, gone != "unresponsive", place or evidence.places.get((rank, gone), "")
    if host is not None and host.doing in _SEEN:
        return host.doing, True, place  # type: ignore[return-value] # _SEEN holds reasons alone
    if "debugger" in own:
        return "debugger", True, place
    if (compiling := evidence.compiling.get(rank)) is not None and (host is None or host.doing in _UNLIKELY):
        return "compiling", False, compiling.place or compiling.function
    if "storage" in own:
        return "storage", False, place
    if rank in evidence.stuck():
        return "blocked_call", False, place
    if "gil" in own and rank not in {one.rank for one in evidence.waited}:
        return "gil", False, place
    if host is not None and host.doing not in WAITING:
        return host.doing, False, place  # type: ignore[return-value]
    return None


def _explained(cause: HangCause, why: _Why, dumped: Sequence[int]) -> HangCause:
    reason, certain, place = why
    known = certain and cause["certain"]
    told = f"{cause['why']}; {words.did(reason, place)}" if cause["rank"] in dumped or cause["why"] else ""
    return {
        **cause,
        "why": told or words.did(reason, place),
        "reason": reason,
        "reason_certain": known,
        "place": place or None,
        "remedy": words.REMEDIES[reason],
    }


def _detailed(cause: HangCause, evidence: Evidence) -> HangCause:
    """A cause whose log line holds figures that decide what to do: those of memory, or of the network."""
    sign = evidence.of(cause["rank"]).get("out_of_memory")
    if cause.get("reason") != "out_of_memory" or sign is None or (shortage := timed_out.read(sign["text"])) is None:
        return cause
    return {**cause, "why": f"{cause['why']}: {shortage.why()}", "remedy": shortage.remedy()}


def _without_dumps(job: Job, evidence: Evidence, awaited: Awaited, came: set[int]) -> list[HangCause]:
    """By the first kind of evidence that names ranks, the strongest first; `came` are ranks whose dumps hold the
    operation that all wait in."""

    def waited(job: Job, evidence: Evidence) -> Iterable[HangCause]:
        return _waited(job, evidence, awaited, came)

    kinds = (_mismatched, _gone, _named_network, waited, _behind, _elsewhere, _still_compiling, _network)
    return next((ranks for found in kinds if (ranks := list(found(job, evidence)))), [])


def _named_network(job: Job, evidence: Evidence) -> Iterable[HangCause]:
    """Errors of the network that explain why operations did not end in time."""
    return _network(job, evidence) if evidence.waited else ()


def _waited(job: Job, evidence: Evidence, awaited: Awaited, came: set[int]) -> Iterable[HangCause]:
    """Whom ranks waited for until their time was up. torch's own naming of lagging ranks goes before a guess."""
    guessed = all(cause["kind"] in ("silent", "other_group", "circular") for cause in awaited.causes)
    if guessed and any(sign["sign"] == "lagging" for sign in evidence.signs):
        return
    for cause in awaited.causes:
        if cause["kind"] == "silent" and cause["rank"] in came:
            continue
        own = {
            **cause,
            "certain": cause["certain"] and not (cause["kind"] == "behind" and _waits(cause["rank"], evidence)),
        }
        reason = _why(cause["rank"], evidence) if cause["kind"] in ("behind", "silent") else None
        yield own if reason is None else _explained(own, reason, job.ranks)  # type: ignore[arg-type, misc]


def _mismatched(_: Job, evidence: Evidence) -> Iterable[HangCause]:
    """torch's own check (`TORCH_DISTRIBUTED_DEBUG=DETAIL`) names what two ranks called."""
    called: dict[str, list[int]] = defaultdict(list)
    for sign in evidence.signs:
        if sign["sign"] == "mismatch" and sign["rank"] is not None and sign["rank"] not in called[sign["text"]]:
            called[sign["text"]].append(sign["rank"])
    total = sum(map(len, called.values()))
    most = max(called.values(), key=len, default=[])
    majority = 2 * len(most) > total
    for text, ranks in called.items() if len(called) > 1 else ():
        for rank in ranks if ranks is not most or not majority else ():
            others = next(other for other in called if other != text and (not majority or called[other] is most))
            why = words.called(text, others)
            yield {"rank": rank, "kind": "mismatch", "certain": majority, "why": why, "remedy": words.MISMATCH}


def _gone(_: Job, evidence: Evidence) -> Iterable[HangCause]:
    for rank in sorted(evidence.ranks):
        if evidence.gone(rank) is not None and (why := _why(rank, evidence)) is not None:
            certain = why[1] and not evidence.answers(rank)
            cause = _explained({"rank": rank, "kind": "gone", "certain": certain, "why": ""}, why, ())
            yield _detailed(cause, evidence)


def _behind(job: Job, evidence: Evidence) -> Iterable[HangCause]:
    """By what the watchdog logged when others had waited too long, else a snapshot of RAS."""
    watchdog, ras = evidence.behind("watchdog"), evidence.behind("ras")
    lagging = {sign["rank"] for sign in evidence.signs if sign["sign"] == "lagging" and sign["rank"] is not None}
    for rank in sorted(watchdog or lagging or ras):
        certain = rank in watchdog and not _waits(rank, evidence)
        told = watchdog.get(rank) or ras.get(rank)
        why = (
            words.LAGGING
            if told is None
            else words.behind(told[0].launched or 0, told[1], told[0].told_by, _ahead(evidence, told[0].group, told[1]))
        )
        cause: HangCause = {"rank": rank, "kind": "behind", "certain": certain, "why": why}
        reason = _why(rank, evidence)
        yield cause if reason is None else _explained(cause, reason, job.ranks)


def _ahead(evidence: Evidence, group: str, most: int) -> list[int]:
    """The ranks that had launched most, where they are fewer than the others."""
    own = {one.rank: one.launched for one in evidence.progress if one.group == group and one.rank is not None}
    ahead = sorted(rank for rank, launched in own.items() if launched == most)
    return ahead if 2 * len(ahead) < len(own) else []


def _elsewhere(job: Job, evidence: Evidence) -> Iterable[HangCause]:
    """Ranks that are not in a collective while others may be; without any, those missing in the row of ranks."""
    hosts = set(evidence.hosts)
    others = {rank: why for rank in sorted(hosts) if (why := _why(rank, evidence)) is not None}
    likely = {rank: why for rank, why in others.items() if why[0] not in _UNLIKELY} or others
    waiting = hosts - set(likely)
    for rank, why in likely.items() if waiting else ():
        cause: HangCause = {"rank": rank, "kind": "elsewhere", "certain": False, "why": words.elsewhere(waiting)}
        yield _explained(cause, why, job.ranks)
    for rank in sorted(set(range(max(hosts, default=0))) - hosts) if not likely else ():
        yield {"rank": rank, "kind": "no_dump", "certain": False, "why": words.no_stack(waiting)}


def _still_compiling(_: Job, evidence: Evidence) -> Iterable[HangCause]:
    """Ranks whose compile log ends in a compilation, where those of others do not."""
    ranks = set(evidence.compiling)
    for rank in sorted(ranks) if ranks < evidence.compile_logs or len(ranks) == 1 else ():
        if (why := _why(rank, evidence)) is not None:
            yield _explained({"rank": rank, "kind": "elsewhere", "certain": False, "why": ""}, why, ())


def _network(_: Job, evidence: Evidence) -> Iterable[HangCause]:
    """Ranks that logged an error of the network."""
    ranks = {sign["rank"] for sign in evidence.signs if sign["sign"] == "network"}
    for rank in sorted(rank for rank in ranks if rank is not None):
        yield network_errors.cause(evidence.network, rank, evidence.of(rank)["network"]["text"])


def contradictions(found: Sequence[HangCause], evidence: Evidence) -> list[HangContradiction]:
    """Where sources disagree about a first cause."""
    told: list[HangContradiction] = []
    behind = evidence.behind("ras")
    counted = {one.rank for one in evidence.progress if one.told_by == "ras" and one.launched is not None}
    for cause in found:
        rank, gone = cause["rank"], evidence.gone(cause["rank"])
        if cause["kind"] in ("never_arrived", "behind") and not gone and _waits(rank, evidence):
            told.append({"rank": rank, "kind": "waits_in_collective", "what": words.waits_in_collective(rank)})
        if gone not in (
            None,
            "unresponsive",
            "stopped",
            "gpu_error",
            "driver_error",
            "program_error",
        ) and evidence.answers(rank):
            told.append({"rank": rank, "kind": "answers_though_gone", "what": words.answers_though_gone(rank)})
        if cause["kind"] == "never_arrived" and rank in counted and rank not in behind:
            told.append({"rank": rank, "kind": "ras_not_behind", "what": words.ras_not_behind(rank)})
    return told
