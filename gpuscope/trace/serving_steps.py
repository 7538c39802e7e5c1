"""Steps of inference servers, each with its phase: from the ranges that servers name after their batches, else from
the kernels of attention, which every step runs once per layer whatever its phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.graph_captures import CAPTURE
from gpuscope.trace.naming.kernel_categories import ATTENTION, kernel_category
from gpuscope.trace.naming.serving_names import (
    Batch,
    Phase,
    attention_phase,
    batch_of,
    is_server_step,
    server_of,
    works_on_a_cache,
)
from gpuscope.trace.schema import NA, Kind
from gpuscope.when_used import dataclass

ALIKE = 0.95
"""Share of the steps in which a kernel of attention must run as often as in the others that have it."""
FEWEST = 3
"""Repetitions from which kernels tell steps."""


@dataclass(frozen=True)
class ServerSteps:
    """Start, end and batch of each step, in order."""

    start: Times
    end: Times
    batches: tuple[Batch, ...]
    server: str = ""
    """Whose ranges they are; empty where there are none, and times are the device's."""


def annotated(host: Table, names: NamePool, ranges: Times) -> ServerSteps | None:
    """The steps that ranges of one rank name; one is enough."""
    rows = ranges[names.matching(is_server_step)[host["name"][ranges]]]
    if not len(rows):
        return None
    thread = host["thread"][rows]
    rows = rows[thread == np.bincount(thread).argmax()]
    rows = rows[np.lexsort((-host["end"][rows], host["start"][rows]))]
    ends = np.maximum.accumulate(host["end"][rows])
    rows = rows[np.append(True, host["start"][rows][1:] >= ends[:-1])]  # the outermost
    start, end = host["start"][rows], host["end"][rows]
    texts = [names[code] for code in host["name"][rows].tolist()]
    batches = [batch_of(text) or Batch(None) for text in texts]
    return ServerSteps(start, end, _captured(batches, host, names, start), server_of(texts[0]))


def from_kernels(host: Table, device: Table, names: NamePool, device_rows: Mask) -> ServerSteps | None:
    """The steps of a rank without such ranges; None where it is no server, or no kernel tells them apart."""
    kernels = np.flatnonzero(device_rows & (device["kind"] != Kind.MEMORY))
    if len(kernels) < 2 * FEWEST or not names.matching(works_on_a_cache)[device["name"][kernels]].any():
        return None
    attends = names.matching(lambda name: kernel_category(name) == ATTENTION)[device["name"][kernels]]
    attention = kernels[attends]
    if not len(attention) or any(
        "bwd" in names[code] or "backward" in names[code] for code in np.unique(device["name"][attention]).tolist()
    ):
        return None
    streams, counts = np.unique(device["stream"][kernels], return_counts=True)
    kernels = kernels[device["stream"][kernels] == streams[counts.argmax()]]
    begins = _begins(device, kernels, attention)
    if begins is None:
        return None
    start = device["start"][begins]
    end = np.append(start[1:], device["end"][kernels].max())
    launch = device.at("launch", begins)
    launched = np.where(launch != NA, host["start"][np.where(launch != NA, launch, 0)] if len(host) else NA, start)
    batches = [Batch(phase) for phase in _phases(host, device, names, attention, start)]
    return ServerSteps(start, end, _captured(batches, host, names, launched))


def _begins(device: Table, kernels: Times, attention: Times) -> Times | None:
    """The kernels that begin a step: those of a name between two of which every kernel of attention runs as often as
    between any other two, more than once; of several such names the rarest, and where it runs after the longest
    pause, the kernel behind that."""
    order = kernels[np.argsort(device["start"][kernels], kind="stable")]
    name, start = device["name"][order], device["start"][order]
    attends = np.isin(order, attention)
    _, which = np.unique(name[attends], return_inverse=True)
    codes, count = np.unique(name[~attends], return_counts=True)
    likely = (count >= FEWEST) & (2 * count <= len(which) + 2)
    for code in codes[likely][np.argsort(count[likely], kind="stable")].tolist():
        at = np.flatnonzero(name == code)
        if _once_per_step(start[at], start[attends], which):
            return order[_after_the_pause(device, order, at)]
    return None


def _once_per_step(marks: Times, attention: Times, which: Times) -> bool:
    """Whether between consecutive marks every kernel of attention runs equally often wherever it runs."""
    kinds = int(which.max(initial=0)) + 1
    place = np.searchsorted(marks, attention, "right") - 1
    inside = (place >= 0) & (place < len(marks) - 1)
    key = place[inside] * kinds + which[inside]
    counts = np.bincount(key, minlength=(len(marks) - 1) * kinds).reshape(-1, kinds)
    usual = np.array([np.median(column[column > 0]) if column.any() else 0 for column in counts.T])
    alike = ((counts == 0) | (counts == usual)).all(axis=1) & counts.any(axis=1)
    return bool(alike.mean() >= ALIKE and usual.max() > 1)


def _after_the_pause(device: Table, order: Times, at: Times) -> Times:
    """Places of the kernels that begin the steps, where one in each is known: as far from that as the longest pause."""
    length = int(np.diff(at).min())
    before = np.arange(length)
    places = np.maximum(at[1:, None] - before, 1)
    pause = device["start"][order[places]] - device["end"][order[places - 1]]
    back = int(np.median(pause, axis=0).argmax())
    moved = at - back
    return np.append(moved[moved >= 0], np.empty(0, np.int64)).astype(np.int64)


def _phases(host: Table, device: Table, names: NamePool, attention: Times, start: Times) -> list[Phase | None]:
    """By step: decode where graphs launch all its attention (servers capture no other step whole), else what the
    kernels' names say."""
    launch = device.at("launch", attention)
    graphs = names.matching(lambda name: "GraphLaunch" in name)
    captured = launch != NA
    captured[captured] = graphs[host["name"][launch[captured]]]
    place = np.searchsorted(start, device["start"][attention], "right") - 1

    def counted(wanted: Mask) -> list[int]:
        found: list[int] = np.bincount(place[wanted & (place >= 0)], minlength=len(start)).tolist()
        return found

    told = {
        phase: names.matching(partial(_is_for, phase))[device["name"][attention]] for phase in ("decode", "prefill")
    }
    columns = (counted(np.ones(len(place), np.bool_)), counted(captured), *(counted(own) for own in told.values()))
    return [_phase(*counts) for counts in zip(*columns, strict=True)]


def _is_for(phase: str, name: str) -> bool:
    return attention_phase(name) == phase


def _phase(attention: int, captured: int, decodes: int, prefills: int) -> Phase | None:
    if attention and captured == attention:
        return "decode"
    return ("mixed" if prefills else "decode") if decodes else "prefill" if prefills else None


def _captured(batches: Sequence[Batch], host: Table, names: NamePool, start: Times) -> tuple[Batch, ...]:
    """With the phase `capture` where a graph is captured before the next step begins on the host."""
    wanted: Array = names.matching(lambda name: name == CAPTURE)
    if not wanted.any():
        return tuple(batches)
    at = host["start"][wanted[host["name"]]]
    within = set((np.searchsorted(start, at, "right") - 1).tolist())
    return tuple(replace(one, phase="capture") if place in within else one for place, one in enumerate(batches))
