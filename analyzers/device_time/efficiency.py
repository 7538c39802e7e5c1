"""MFU from the trace alone: the FLOPs of the operators in each step, against the peak of the device.

MFU of a step = Σ FLOPs at a precision / peak at that precision, over precisions, / step time: with one precision the
usual FLOPs / step time / peak. The FLOPs are those of matrix products, convolutions and attention whose shapes were
recorded, outside the optimizer (`flops.py`). HFU counts all of them, MFU not what was computed again
(`recomputation.py`). `coverage_frac` says how much of the time of such kernels that is, so that gaps show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, EVIDENCE, FileAnalyzer, Result, entries_of_devices
from gpuscope.analyzers.base.evidence import shown_by
from gpuscope.analyzers.base.lanes import EFFICIENCY, LaneView, StepWindow, bounds, computing, step_at
from gpuscope.analyzers.device_time.attention_flops import is_checkpointed
from gpuscope.analyzers.device_time.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.operator_work import SINGLE_UNKNOWN, device_models, is_multiplying
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.compute import FewBlocks
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.schema.document import EfficiencyEntry, FindingEntry, StepEfficiency
from gpuscope.trace.intervals import Spans, intersect, subtract, union
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Kernels launched on so few blocks that most of the device idles while they run.

_OF_LIBRARY = when_used.pattern(
    r"\bat(_cuda)?::|\bcub::|thrust::|cutlass|cudnn|cublas|cufft|gemm|flash_(fwd|bwd)|\bTensile\b"
)


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `few_blocks` per lane."""
    result = Result(FEW_BLOCKS_ANALYZER.name)
    if len(trace["small_grids"]):
        for view in lanes:
            result.findings += _few_blocks_of_lane(trace, view)
    return result


def _few_blocks_of_lane(trace: Trace, view: LaneView) -> list[FindingEntry]:
    device, grids = trace["device_events"], trace["small_grids"]
    rows = computing(trace, view)
    few = np.isin(rows, grids["event"])
    if not few.any():
        return []
    lost = intersect(subtract(_covered(trace, rows[few]), _covered(trace, rows[~few])), view.judged_spans).total
    share = lost / max(view.judged_spans.total, 1)
    if share < MIN_SHARE:
        return []
    rows = rows[few]
    lasts = device["end"][rows] - device["start"][rows]
    codes, which = np.unique(device["name"][rows], return_inverse=True)
    most = int(np.argmax(np.bincount(which, lasts)))
    own = rows[which == most]
    place = int(np.flatnonzero(grids["event"] == own[np.argmax(lasts[which == most])])[0])
    name = trace.names[int(codes[most])]
    blocks, threads = int(grids["blocks"][place]), int(grids["threads"][place])
    words = FewBlocks(name, blocks, threads, len(own), _OF_LIBRARY.search(name) is not None, share)
    evidence = [shown_by(trace, "device_events", row) for row in own[:EVIDENCE].tolist()]
    steps = len(view.judged_steps)
    return [made(words, ranks=[view.lane.rank], share=share, cost_ns=lost, mean_ns=lost // steps, evidence=evidence)]


def _covered(trace: Trace, rows: Times) -> Spans:
    device = trace["device_events"]
    return union(device["start"][rows], device["end"][rows])


FEW_BLOCKS_ANALYZER = FileAnalyzer("few_blocks", run, (DEVICE_EVENTS,))


HOW_SHAPES = (
    "torch.profiler.profile(record_shapes=True) records them, under nsys "
    "torch.autograd.profiler.emit_nvtx(record_shapes=True)"
)

UNTOLD = "activations are computed again, and the trace does not show which products that repeats"


@dataclass(frozen=True)
class _Products:
    """The multiplying kernels that started in the steps judged: step (index), time, and what of their work is known."""

    step: Times
    duration: Times
    known: Mask
    flops: Array
    again: Array
    """Of `flops` those that were computed before."""
    counted: Times
    """Places of those that have FLOPs."""
    precision: list[str | None]
    """Of these."""

    @property
    def runs_again(self) -> bool:
        """Whether operators of the forward pass run in the backward pass too (activation checkpointing)."""
        return bool(((self.again > 0) & (self.again == self.flops)).any())

    @cached_property
    def sums(self) -> dict[str | None, float]:
        """FLOPs by precision, the most first; empty where none are known."""
        sums: dict[str | None, float] = {}
        for flops, precision in zip(self.flops[self.counted].tolist(), self.precision, strict=True):
            sums[precision] = sums.get(precision, 0.0) + flops
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def ideal(self, peaks: dict[str, float]) -> tuple[Array, Array]:
        """Seconds that each kernel's work would take at the peak of its precision, 0 where that is not known; and
        those without what was computed before."""
        rates = np.full(len(self.flops), np.inf)
        rates[self.counted] = [peaks.get(precision or "", np.inf) for precision in self.precision]
        return self.flops / rates, (self.flops - self.again) / rates


def _of_lane(trace: Trace, view: LaneView) -> Iterator[EfficiencyEntry]:
    device = trace["device_events"]
    computes = device.at("kind", view.rows) == Kind.COMPUTE
    if not computes.any():
        return
    rows = view.rows[computes & is_multiplying(kernel_facts(trace).category[view.rows])]
    steps = view.judged_steps
    found = _products(trace, rows, steps)
    model = device_models(trace).get(view.key, "")
    peaks = peaks_of(model)
    sums = found.sums
    needed, of_the_model = found.ideal(peaks)
    told = found.runs_again or not is_checkpointed(trace)
    spent = sum(step.end - step.start for step in steps)
    flops = float(found.flops.sum())
    coverage = _coverage(found, peaks)
    yield {
        "rank": view.lane.rank,
        "device": view.lane.device,
        "device_name": model or None,
        "mfu": _used(float(of_the_model.sum()), spent) if told else None,
        "hfu": _used(float(needed.sum()), spent),
        "checkpointed": found.runs_again,
        "flops_per_step": flops / len(steps) if flops and steps[0].step != NA else None,
        "flops_per_s": flops / spent * 1e9 if flops and spent else None,
        "precisions": [
            {"precision": precision, "flops": round(one), "peak_flops_per_s": peaks.get(precision or "")}
            for precision, one in sums.items()
        ],
        "coverage_frac": coverage,
        "why": _why(found, model, peaks, coverage) or ("" if told else UNTOLD),
        "steps": _steps(steps, found, of_the_model, told),
    }


def _used(seconds: float, spent: int) -> float | None:
    """The share of the peak that work takes which needs so many seconds at the peak, in `spent` ns."""
    return seconds * 1e9 / spent if seconds and spent > 0 else None


def _steps(steps: Sequence[StepWindow], found: _Products, ideal: Array, told: bool) -> list[StepEfficiency]:
    flops, needed = (np.bincount(found.step, weights, len(steps)) for weights in (found.flops, ideal))
    return [
        {
            "step": None if step.step == NA else step.step,
            "dur_ns": step.end - step.start,
            "flops": round(one),
            "mfu": _used(seconds, step.end - step.start) if told else None,
        }
        for step, one, seconds in zip(steps, flops.tolist(), needed.tolist(), strict=True)
    ]


def _products(trace: Trace, rows: Times, steps: Sequence[StepWindow]) -> _Products:
    """Of kernels `rows`, which multiply; steps follow each other."""
    device = trace["device_events"]
    facts = kernel_facts(trace)
    work = facts.work
    start = device["start"][rows]
    step = step_at(*bounds(steps), start)
    chosen = np.flatnonzero(step != NA)
    picked = rows[chosen]
    counted = np.flatnonzero(work.flops[picked])
    return _Products(
        step[chosen],
        (device["end"][rows] - start)[chosen],
        work.known[picked],
        work.flops[picked],
        work.again[picked],
        counted,
        [work.precisions[code] for code in work.precision[picked[counted]].tolist()],
    )


def _coverage(found: _Products, peaks: dict[str, float]) -> float | None:
    """Share of the multiplying kernels' time whose FLOPs are known, at a precision that has a peak.

    A helper (split-K sum) has no FLOPs of its own and counts with its operator's kernels. None where none ran.
    """
    whole = int(found.duration.sum())
    known = found.known
    if peaks:
        known = known.copy()
        known[found.counted] &= np.array([precision in peaks for precision in found.precision], np.bool_)
    return int(found.duration[known].sum()) / whole if whole else None


def _why(found: _Products, model: str, peaks: dict[str, float], coverage: float | None) -> str:
    """Why there is no MFU, or how much it leaves out; empty where it counts all."""
    if not len(found.step):
        return "no matrix product, convolution or attention ran on the device"
    precisions = set(found.sums)
    if not precisions:
        return f"no operator that launched these kernels has recorded shapes; {HOW_SHAPES}"
    if not model:
        return "the model of the device is not recorded, so its peak is unknown"
    if not peaks:
        return f"no peak is known for {model!r}"
    lacking = [_no_peak(precision, model) for precision in sorted(precisions - set(peaks), key=str)]
    if coverage is not None and coverage < 0.995:
        lacking.insert(0, f"counts {coverage * 100:.0f} % of the time of matrix products, convolutions and attention")
    return "; ".join(lacking)


def _no_peak(precision: str | None, model: str) -> str:
    if precision == SINGLE_UNKNOWN:
        return "some inputs are float32, and whether they were multiplied as TF32 or FP32 is not recorded"
    if precision is None:
        return "some products' precision is not recorded"
    return f"no peak at {precision} is known for {model!r}"


EFFICIENCY_ANALYZER = FileAnalyzer(
    "efficiency", entries_of_devices("efficiency", EFFICIENCY, _of_lane), (DEVICE_EVENTS,), (EFFICIENCY,)
)


ANALYZERS = (EFFICIENCY_ANALYZER, FEW_BLOCKS_ANALYZER)
