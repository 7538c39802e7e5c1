"""What the work of each kernel needs at least on its device: the roof that it runs against.

Of an operation with known work that is the larger of its FLOPs at the peak of the precision the kernel computes in and
its bytes at the memory's bandwidth. Bytes that fit the last-level cache need not come from memory and set no floor. A
floor that exceeds the measurement shows that the work is counted wrongly: it is no floor then, and is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.device_time.operator_bytes import operator_bytes_range
from gpuscope.analyzers.device_time.operator_work import Work, device_models
from gpuscope.hardware.device_peaks import MODELS, SPARSE_TIMES, cache_bytes, memory_bandwidth, peaks_of
from gpuscope.hardware.link_rates import compute_capability
from gpuscope.schema.call_tree_section import Generation
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME, Codes, PerName
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Array, Mask, Times, constant, distinct, distinct_rows, is_constant
from gpuscope.trace.trace import Trace
from gpuscope.welch import median

# Generations of NVIDIA GPUs: by the model, or by what kernels were compiled for where that is not recorded.

_CAPABILITIES: tuple[tuple[int, Generation], ...] = (
    (100, "blackwell"),
    (90, "hopper"),
    (89, "ada"),
    (80, "ampere"),
    (75, "turing"),
    (70, "volta"),
)
_COMPILED_FOR: tuple[tuple[Generation, re.Pattern[str]], ...] = (
    ("blackwell", when_used.pattern(r"sm100_|cutlass\w*_sm100")),
    ("hopper", when_used.pattern(r"sm90_|nvjet_|cutlass\w*_sm90")),
    ("ada", when_used.pattern(r"sm89_")),
    ("ampere", when_used.pattern(r"ampere_|sm8[06]_|cutlass_80|s16816|s1688")),
    ("turing", when_used.pattern(r"turing_|sm75_|cutlass_75")),
    ("volta", when_used.pattern(r"volta_|sm70_|cutlass_70")),
)


def generation_of(model: str) -> Generation | None:
    """None for a model that is not known, or is no GPU with tensor cores."""
    capability = compute_capability(model) if model else None
    return next((name for least, name in _CAPABILITIES if capability is not None and capability >= least), None)


def compiled_for(kernels: Iterable[str]) -> Generation | None:
    """The newest that any of these kernels names; newer GPUs run kernels of older ones too."""
    names = list(kernels)
    return next((name for name, pattern in _COMPILED_FOR if any(pattern.search(text) for text in names)), None)


LIKELIEST: dict[Generation, str] = {
    "blackwell": "B200",
    "hopper": "H100",
    "ada": "L40S",
    "ampere": "A100",
    "turing": "T4",
    "volta": "V100",
}
"""Of each generation the model that most training jobs run on."""
_AMD = (
    (re.compile(r"gfx95\d"), "MI355X"),
    (re.compile(r"gfx90a"), "MI250X"),
    (re.compile(r"gfx942"), "MI300X"),
    (re.compile(r"^Cijk_|^hipLaunchKernel$|^hipModuleLaunchKernel$|ck_tile::|aiter"), "MI300X"),
)


def likeliest_model(names: Iterable[str]) -> str | None:
    """The model that a run most likely ran on, by the names of its kernels and calls; None where these don't tell."""
    texts = list(names)
    for pattern, model in _AMD:
        if any(pattern.search(text) for text in texts):
            return model
    generation = compiled_for(texts)
    return None if generation is None else LIKELIEST[generation]


def times_faster(generation: str, now: str, then: str) -> tuple[float, float, float] | None:
    """By how much the peak at one precision exceeds that at another, on the models of a generation whose peaks are
    known: least, median and most."""
    peaks = [peaks_of(model) for model in MODELS if generation_of(model) == generation]
    found = [own[then] / own[now] for own in peaks if now in own and then in own]
    return (min(found), median(found), max(found)) if found else None


PLAUSIBLE = 1.05
"""A floor above this many times the measurement is an error in the work. Up to it the device is faster than its data
sheet says, by its clocks or by the clock that timed the kernel, and its own best kernel is the peak."""
_ELEMENT = (
    (re.compile(r"OpaqueType<(?:\(unsigned int\))?(\d+)"), 0),
    (re.compile(r"bfloat16|bf16|half|c10::Half"), 2),
    (re.compile(r"\bfloat\b"), 4),
)
"""Bytes of an element by a kernel's template arguments; 0: the number found."""
_SPARSE = re.compile(r"sparse|spmma|_sp_gemm")
"""Kernels that multiply 2:4 sparse matrices, at twice the dense rate."""


@dataclass(frozen=True)
class Roofs:
    """Per device event of a trace, shape (n,)."""

    bytes: Array
    """That its operator moves at least, split over its kernels by time; 0 where not known."""
    known: Mask
    """Whether its work is known: its FLOPs, or its bytes and not only a range of them."""
    needed: Array
    """ns that its work needs at the peaks; 0 where it sets no floor."""
    floor: Times
    """The same in whole ns, no longer than it took."""
    by_memory: Mask
    """Whether its bytes need longer than its FLOPs."""
    cached: Mask
    """Whether its bytes are known and fit the last-level cache, or a part of them was found there, so that they set no
    floor."""
    operator: Times
    """The host event of the operator whose work is counted, that of its FLOPs where these are known; `NA` of others."""
    assumed: str | None
    """The model whose peaks are taken where no file tells the device: then there is no `floor`, on which more rests."""
    too_high: Mask
    """Whether its work would need longer than it took, by more than `PLAUSIBLE`: `needed` is 0 there."""


def kernel_roofs(trace: Trace, work: Work, precision: Array, names: Sequence[str]) -> Roofs:
    """Of all device events; `precision` is the place of each in `names`."""
    device = trace["device_events"]
    moved, whole, ranged, moving_operator = _bytes(trace)
    operator = np.where(work.operator != NA, work.operator, moving_operator)
    known = np.asarray((work.known | (moved > 0)) & ~ranged)
    off = constant(False, len(device), np.bool_)
    if is_constant(work.flops) and is_constant(moved):  # nothing is known of either
        none = constant(0, len(device), np.float64)
        return Roofs(none, known, none, constant(0, len(device), np.int64), off, off, operator, None, off)
    computing, moving = np.zeros((2, len(device)), np.float64)
    cached = np.zeros(len(device), np.bool_)
    spent = (device["end"] - device["start"]).astype(np.float64)
    sparse = trace.names.matching(lambda name: _SPARSE.search(name) is not None)[device["name"]]
    models, assumed = device_models(trace), None
    if not models and (assumed := likeliest_model(trace.names.names)) is not None:
        models = {(lane.rank, lane.device): assumed for lane in trace.lanes() if lane.device != NA}
    for (rank, number), model in models.items():
        own = (device["rank"] == rank) & (device["device"] == number)
        peaks, bandwidth = peaks_of(model), memory_bandwidth(model)
        rate = np.array([peak_rate(peaks, name) for name in names])[precision]
        counted = own & (work.flops > 0) & (rate > 0)
        times = np.where(sparse[counted], SPARSE_TIMES, 1)
        computing[counted] = work.flops[counted] / (rate[counted] * times) * 1e9
        if bandwidth:
            # Of somewhat more than the cache holds a part may have been found there, as the measurement then shows.
            held, cache = PLAUSIBLE * spent * bandwidth / 1e9, cache_bytes(model)
            fits = (whole <= cache) | ((moved > held) & (moved - np.minimum(cache, whole / 2) <= held))
            cached |= own & (moved > 0) & fits
            # Without a peak of its precision a product has no floor: its bytes alone would make it look slow.
            sized = own & (moved > 0) & ~cached & ((work.flops == 0) | counted)
            moving[sized] = moved[sized] / bandwidth * 1e9
    needed = np.maximum(computing, moving)
    too_high = needed > PLAUSIBLE * np.maximum(spent, 1)
    needed[too_high] = 0
    needed = np.where(needed > 0, _at_own_peak(device["rank"], device["device"], moving > computing, needed, spent), 0)
    floor = np.minimum(np.rint(needed).astype(np.int64), device["end"] - device["start"])
    if assumed is not None:
        # On another device than assumed some kernel is faster than this one could be.
        needed = constant(0, len(device), np.float64) if too_high.any() else needed
        floor, too_high = constant(0, len(device), np.int64), off
    return Roofs(moved, known & ~too_high, needed, floor, moving > computing, cached, operator, assumed, too_high)


def peak_rate(peaks: dict[str, float], name: str) -> float:
    """FLOP/s; of FP32 whose mode is not known TF32's, where there is one."""
    if name == "fp32 or tf32":
        return peaks.get("tf32", peaks.get("fp32", 0.0))
    return peaks.get(name, 0.0)


def _at_own_peak(rank: Array, number: Array, by_memory: Mask, needed: Array, spent: Array) -> Array:
    """Where a device's best kernel exceeds the data sheet's peak, what the others need at that one's rate."""
    key = (rank.astype(np.int64) * (int(number.max(initial=0)) + 2) + number + 1) * 2 + by_memory
    _, place = distinct(key)
    best = np.ones(int(place.max(initial=0)) + 1)
    np.maximum.at(best, place, needed / np.maximum(spent, 1))
    return np.asarray(needed / best[place])


def _bytes(trace: Trace) -> tuple[Array, Array, Mask, Times]:
    """Per device event its part of what its operator moves at least, the whole of that, and whether it is only the
    lower end of a range; and that operator, which is the innermost around its launch whose bytes can be counted."""
    device, host, shapes = trace["device_events"], trace["host_events"], trace["shapes"]
    none = constant(0, len(device), np.float64)
    nothing = none, none, constant(False, len(device), np.bool_), constant(NA, len(device), np.int64)
    if not len(shapes):
        return nothing
    linked = np.flatnonzero(device.known("launch") & (device["kind"] == Kind.COMPUTE) & (device["device"] != NA))
    own = np.flatnonzero(host["category"][shapes["event"]] == Category.OP)
    own = own[_countable(trace, own)] if len(linked) else own[:0]
    if not len(own):
        return nothing
    candidates = np.zeros(len(host), np.bool_)
    candidates[shapes["event"][own]] = True
    launch = device.at("launch", linked)
    operator = innermost(host, candidates, host["thread"][launch], host["start"][launch])
    linked, operator = linked[operator != NA], operator[operator != NA]
    least, most = _per_operator(trace, operator, device["name"][linked])
    spent = (device["end"] - device["start"])[linked].astype(np.float64)
    _, which = distinct(operator)
    all_of_it = np.bincount(which, spent)[which] if len(which) else spent
    moved, whole = np.zeros((2, len(device)), np.float64)
    ranged, found = np.zeros(len(device), np.bool_), np.full(len(device), NA, np.int64)
    found[linked] = operator
    helps = _helps(trace, operator, least)
    least, most = np.where(helps, 0.0, least), np.where(helps, 0.0, most)
    moved[linked] = np.where(all_of_it > 0, least * spent / np.maximum(all_of_it, 1), 0.0)
    whole[linked], ranged[linked] = least, most > least
    return moved, whole, ranged, found


def _helps(trace: Trace, operator: Times, least: Array) -> Mask:
    """Which kernels only prepare what an operator within theirs does: one that moves half of the bytes or more (a
    scalar filled by `aten::where`, which then calls itself)."""
    host = trace["host_events"]
    own, first, which = np.unique(operator, return_index=True, return_inverse=True)
    start, end, thread = (host[column][own] for column in ("start", "end", "thread"))
    order = np.lexsort((-end, start, thread))
    here, after = order[:-1], order[1:]
    count = least[first]
    holds = (thread[here] == thread[after]) & (end[after] <= end[here]) & (count[after] >= count[here] / 2)
    found = np.zeros(len(own), np.bool_)
    found[here] = holds
    return np.asarray(found[which])


_COLUMNS = ("dims", "types", "concrete", "strides")


def _countable(trace: Trace, rows: Times) -> Mask:
    """Which of the rows of `shapes` have bytes that can be counted, if only the size of an element is known."""
    shapes, names = trace["shapes"], trace.names
    columns = [trace["host_events"]["name"][shapes["event"][rows]], *(shapes[name][rows] for name in _COLUMNS)]
    first, which = distinct_rows(*columns)
    told = [
        operator_bytes_range(
            names[name], names[dims], _text(trace, types), 1, _text(trace, concrete), _text(trace, strides)
        )
        is not None
        for name, dims, types, concrete, strides in zip(*(column[first].tolist() for column in columns), strict=True)
    ]
    return np.array(told, np.bool_)[which] if told else np.zeros(0, np.bool_)


def _per_operator(trace: Trace, operator: Times, kernel: Codes) -> tuple[Array, Array]:
    """The least and the most bytes of the operator behind each kernel; 0 where they can't be counted."""
    host, shapes, names = trace["host_events"], trace["shapes"], trace.names
    place = np.empty(len(host), np.int32 if len(shapes) < 2**31 else np.int64)  # only those asked for are written
    place[shapes["event"]] = np.arange(len(shapes))
    row = place[operator]
    untold = names.matching(lambda text: text == "null" or "TensorList" in text)
    types = shapes["types"][row]
    untyped = np.where((types == NO_NAME) | untold[np.maximum(types, 0)], PerName(names, _element_of)(kernel), 0)
    columns = [host["name"][operator], *(shapes[name][row] for name in _COLUMNS), untyped]
    first, which = distinct_rows(*columns)
    told = [
        operator_bytes_range(
            names[name], names[dims], _text(trace, types), element, _text(trace, concrete), _text(trace, strides)
        )
        or (0, 0)
        for name, dims, types, concrete, strides, element in zip(
            *(column[first].tolist() for column in columns), strict=True
        )
    ]
    if not told:
        return np.zeros(0), np.zeros(0)
    least, most = np.array(told, np.float64).T
    return least[which], most[which]


def _text(trace: Trace, code: int) -> str:
    return "" if code == NO_NAME else trace.names[code]


def _element_of(kernel: str) -> int:
    """Bytes of an element by a kernel's template arguments; 0 where these do not say."""
    for pattern, size in _ELEMENT:
        if found := pattern.search(kernel):
            return size or int(found[1])
    return 0
