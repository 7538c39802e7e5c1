"""Steps: found from annotations, else from the repetition of the kernels themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from gpuscope import when_used
from gpuscope.trace.frameworks import (
    Batch,
    Phase,
    attention_phase,
    batch_of,
    is_server_step,
    server_of,
    works_on_a_cache,
)
from gpuscope.trace.intervals import CAPTURE
from gpuscope.trace.kernel_categories import ATTENTION, is_optimizer_step, kernel_category
from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Array, Mask, Table, Times, among, blocks, distinct_values, rows_of_rank, those
from gpuscope.when_used import dataclass

# Steps of inference servers, each with its phase: from the ranges that servers name after their batches, else from
# the kernels of attention, which every step runs once per layer whatever its phase.

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


_PROFILER_STEP = when_used.pattern(r"ProfilerStep\s*#\s*(\d+)$")
_STEP_NAME = when_used.pattern(
    r"(?:^|[^a-z])(train(?:ing)?[ _]?step|step|iter(?:ation)?|batch)(?:[^a-z]|$)", re.IGNORECASE
)
_NOT_A_STEP = when_used.pattern(
    r"optimizer|optim|zero_grad|scheduler|Adam|SGD|forward|backward|load|fetch|copy", re.IGNORECASE
)
_OPTIMIZER_STEP = when_used.pattern(r"^Optimizer\.step#")
_NUMBER = when_used.pattern(r"\d+")

KERNEL_SEQUENCE = "repetition of the kernel sequence"
"""Basis of steps that were found on the device's clock, not the host's."""
MIN_PERIODS = 3
"""Rounds of accumulated gradients from which they are steps."""
_NEVER = np.iinfo(np.int64).max
_ENDS_OF, _OF_SERVER = "ends of ", "ranges of "
FEW_ANNOTATED = 2
"""Annotated steps in all that last as long as their annotations: of more, the device's own begins tell the length."""


@dataclass(frozen=True)
class FoundSteps:
    """Host-side steps of one rank: number, start and end of each, and where they come from."""

    step: Times
    start: Times
    end: Times
    basis: str
    batches: tuple[Batch, ...] = ()
    """Of each step of an inference server; empty for others."""


def find_steps(host: Table, device: Table, names: NamePool, rows: Mask, device_rows: Mask) -> FoundSteps | None:
    """The steps of one rank, whose rows the masks select; None where nothing repeats.

    Tried in order: ranges of an inference server; `ProfilerStep#N`; a range named like a step (NVTX or annotation) that
    repeats on one thread without overlap; a server's kernels; `Optimizer.step#…`, once per iteration; a family of
    ranges that differ by their numbers; the repetition of the kernel sequence. Where gradients are accumulated, the
    ranges up to an optimizer step are one step.
    """
    ranges = np.flatnonzero(rows & (host["category"] == Category.ANNOTATION))
    ranges = ranges[host["end"][ranges] > host["start"][ranges]]
    # Traces of 2020 and of Ascend record ProfilerStep as an operator.
    operators = np.flatnonzero(rows & (host["category"] == Category.OP))
    if (served := annotated(host, names, ranges)) is not None:
        return _of_server(served, f"{_OF_SERVER}{served.server}")
    both = np.concatenate((ranges, operators))
    del operators
    named = _profiler_steps(host, names, both) or _named_steps(host, names, ranges)
    if named is not None:
        return _of_updates(named, host, names, both)
    if (served := from_kernels(host, device, names, device_rows)) is not None:
        return _of_server(served, KERNEL_SEQUENCE)
    return (
        _marked_steps(host, names, both)
        or _numbered_ranges(host, device, names, ranges, device_rows)
        or _repeating_kernels(host, device, names, ranges, device_rows)
    )


def _of_server(found: ServerSteps, basis: str) -> FoundSteps:
    return FoundSteps(np.arange(len(found.start), dtype=np.int64), found.start, found.end, basis, found.batches)


def _profiler_steps(host: Table, names: NamePool, rows: Times) -> FoundSteps | None:
    picked = _profiler_step_rows(host, names, rows)
    if not len(picked):
        return None
    found = [_PROFILER_STEP.search(names[code]) for code in host["name"][picked].tolist()]
    step = np.array([int(match[1]) for match in found if match], np.int64)
    return _ordered(step, host["start"][picked], host["end"][picked], "ProfilerStep annotations")


def _profiler_step_rows(host: Table, names: NamePool, rows: Times) -> Times:
    """Which of these rows are steps as torch's profiler marks them."""
    numbers = [code for code in distinct_values(host["name"][rows]).tolist() if _PROFILER_STEP.search(names[code])]
    named = np.zeros(len(names) + 1, np.bool_)
    named[numbers] = True
    return those(rows, lambda rows: named[host["name"][rows]])


def past_the_last_step(host: Table, names: NamePool) -> tuple[Times, Times, Times]:
    """(rows of `host` that reach past the last `ProfilerStep#N` of their thread, where each of them ends, rows of
    Python frames that begin behind it).

    torch ends the last step's range as the recording stops. What the thread was in then (an optimizer's step whose hook
    stops it, the frames of the script) is closed only when the trace has been collected: that is the recorder's work.
    """
    found = _profiler_step_rows(host, names, np.arange(len(host)))
    found = found[among(host["category"][found], (Category.ANNOTATION, Category.OP))]
    reach, ends, behind = ([np.zeros(0, np.int64)] for _ in range(3))
    for rank in distinct_values(host["rank"][found]).tolist():
        own = found[host["rank"][found] == rank]
        last = int(own[np.argmax(host["end"][own])])
        end, low, high = int(host["end"][last]), *rows_of_rank(host, rank)
        late = low + np.flatnonzero(host["end"][low:high] > end)
        late = late[host["thread"][late] == host["thread"][last]]
        category, begun = host["category"][late], host["start"][late] < end
        over = late[begun & among(category, (Category.OP, Category.ANNOTATION, Category.PYTHON))]
        reach.append(over)
        ends.append(np.full(len(over), end, np.int64))
        behind.append(late[~begun & (category == Category.PYTHON)])
    return np.concatenate(reach), np.concatenate(ends), np.concatenate(behind)


def _named_steps(host: Table, names: NamePool, rows: Times) -> FoundSteps | None:
    """Ranges named like a step; of several such names, the one that covers most time."""
    groups: dict[tuple[str, int], list[int]] = {}
    label_of: dict[int, str] = {}
    for code in np.unique(host["name"][rows]).tolist():
        name = names[code]
        if _STEP_NAME.search(name) and not _NOT_A_STEP.search(name):
            label_of[code] = _NUMBER.sub("#", name)
    picked = rows[np.isin(host["name"][rows], list(label_of))]
    for row in picked.tolist():
        groups.setdefault((label_of[int(host["name"][row])], int(host["thread"][row])), []).append(row)
    best: FoundSteps | None = None
    for (label, _), members in groups.items():
        own = np.array(members)
        start, end = host["start"][own], host["end"][own]
        order = np.argsort(start, kind="stable")
        own, start, end = own[order], start[order], end[order]
        if len(own) < 2 or bool((start[1:] < end[:-1]).any()):
            continue
        if best is None or int((end - start).sum()) > int((best.end - best.start).sum()):
            best = FoundSteps(_numbers(own, host, names), start, end, f"ranges named {label!r}")
    return best


def _numbers(rows: Times, host: Table, names: NamePool) -> Times:
    """The step numbers in the ranges' names where each has one of its own, else 0, 1, 2…"""
    found = [_NUMBER.search(names[int(code)]) for code in host["name"][rows]]
    if all(found):
        numbers = np.array([int(match[0]) for match in found if match], dtype=object)
        if len(set(numbers)) == len(numbers) and max(numbers) < 2**62:
            return numbers.astype(np.int64)
    return np.arange(len(rows), dtype=np.int64)


def _of_updates(found: FoundSteps, host: Table, names: NamePool, rows: Times) -> FoundSteps:
    """The same steps, or one for every `period` of them where the optimizer steps at the end of every so many."""
    updating = names.matching(is_optimizer_step)
    updates = those(rows, lambda rows: updating[host["name"][rows]])
    holds = distinct_values(np.searchsorted(found.start, host["start"][updates], "right") - 1)
    holds = holds[holds >= 0]
    apart = np.diff(holds)
    if len(holds) < MIN_PERIODS or apart[0] < 2 or (apart != apart[0]).any():
        return found
    period = int(apart[0])
    first = np.arange((int(holds[0]) + 1) % period, len(found.start), period)  # what is before it began unrecorded
    last = np.minimum(first + period, len(found.start)) - 1
    basis = f"{found.basis}, {period} to an optimizer step"
    return FoundSteps(found.step[first], found.start[first], found.end[last], basis)


def _marked_steps(host: Table, names: NamePool, rows: Times) -> FoundSteps | None:
    """`Optimizer.step` ends an iteration: a step runs from the end of one to the end of the next."""
    codes = [code for code in np.unique(host["name"][rows]).tolist() if _OPTIMIZER_STEP.search(names[code])]
    if len(codes) != 1:  # none, or several optimizers: then one iteration holds several
        return None
    picked = rows[host["name"][rows] == codes[0]]
    ends = np.sort(host["end"][picked])
    if len(ends) < 2:
        return None
    first = int(host["start"][rows].min())
    starts = np.concatenate((np.array([min(first, int(ends[0]))], np.int64), ends[:-1]))
    return FoundSteps(np.arange(len(ends), dtype=np.int64), starts, ends, f"{_ENDS_OF}{names[codes[0]]!r}")


def _numbered_ranges(host: Table, device: Table, names: NamePool, rows: Times, device_rows: Mask) -> FoundSteps | None:
    from gpuscope.trace.kernel_repetition import steps_of_families

    found = steps_of_families(host, device, names, rows, device_rows)
    return FoundSteps(found.step, found.start, found.end, found.basis) if found else None


def _repeating_kernels(host: Table, device: Table, names: NamePool, ranges: Times, rows: Mask) -> FoundSteps | None:
    from gpuscope.trace.kernel_repetition import repeating_kernels

    found = repeating_kernels(host, device, names, ranges, rows)
    if found is None:
        return None
    basis = f"ranges named {found.label!r}" if found.label else KERNEL_SEQUENCE
    return FoundSteps(np.arange(len(found.start), dtype=np.int64), found.start, found.end, basis)


def _ordered(step: Times, start: Times, end: Times, basis: str) -> FoundSteps:
    order = np.argsort(start, kind="stable")
    step, start, end = step[order], start[order], end[order]
    # The same step can be annotated on several threads: keep its first row.
    _, first = np.unique(step, return_index=True)
    first.sort()
    return FoundSteps(step[first], start[first], end[first], basis)


def is_annotated(basis: str) -> bool:
    """Whether each step has a range of its own on the host, which says when it begins and ends there. A server's have
    not: it prepares a batch while the device still works on the one before."""
    return basis != KERNEL_SEQUENCE and not basis.startswith((_ENDS_OF, _OF_SERVER))


def device_steps(
    steps: Table, device: Table, host: Table, events: Times, window: tuple[int, int], basis: str
) -> list[tuple[int, int, int]]:
    """The steps of one rank as the device saw them: (step, start, end), tiling `window`.

    A device step runs from the first device event launched in host step k to the first launched in
    step k+1. What ran before the first step has the step number `NA`. `steps` are this rank's, `events`
    the rows of its device events; `basis` says what the steps were found from.

    Of one or two annotated steps in all the first begins with its annotation, if that is sooner, and the last lasts to
    the end of its annotation or of all that it launched: what they tile may be longer than `window`, and what ran
    behind them has the number `NA`, too.
    """
    launched = basis != KERNEL_SEQUENCE and bool(device.known("launch")[events].any())
    first, last = np.full(len(steps), _NEVER), np.full(len(steps), -_NEVER)
    for block in blocks(0, len(events)):
        _begin_and_end(first, last, steps, device, host, events[block], launched)
    low, high = window
    end = high
    if len(steps) <= FEW_ANNOTATED and is_annotated(basis) and bool((first != _NEVER).all()):
        first[0] = min(int(steps["start"][0]), int(first[0]))
        end = max(int(steps["end"][-1]), int(last[-1]))
        low, high = min(low, int(first[0])), max(high, end)
    tiles: list[tuple[int, int]] = []
    for step, start in zip(steps["step"].tolist(), first.tolist(), strict=True):
        if start != _NEVER and low <= start < end and (not tiles or start > tiles[-1][1]):
            tiles.append((step, start))
    if not tiles:
        return []
    if tiles[0][1] > low:
        tiles.insert(0, (NA, low))
    if end < high:
        tiles.append((NA, end))
    ends = [start for _, start in tiles[1:]] + [high]
    return [(step, start, end) for (step, start), end in zip(tiles, ends, strict=True)]


def _begin_and_end(
    first: Times, last: Times, steps: Table, device: Table, host: Table, events: Times, launched: bool
) -> None:
    """Lower `first` and raise `last`, the start of each step's first device event and the end of its last one, to what
    some more events say."""
    starts = device.at("start", events)
    launched_at, known = starts, np.ones(len(events), np.bool_)
    if launched:  # when an event whose launch was not recorded was launched is not known
        launch = device.at("launch", events)
        known = launch != NA
        launched_at = host["start"][np.where(known, launch, 0)]
    which = np.searchsorted(steps["start"], launched_at, "right") - 1
    inside = known & (which >= 0) & (launched_at < steps["end"][np.maximum(which, 0)])
    np.minimum.at(first, which[inside], starts[inside])
    np.maximum.at(last, which[inside], device.at("end", events)[inside])
