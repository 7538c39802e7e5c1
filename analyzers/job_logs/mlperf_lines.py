"""MLPerf's lines (`:::MLLOG {…}`): marks, step times and settings, whatever a submitter writes around them.

The step that metadata name counts steps with some submitters and samples with others; a mean over a block of steps
stands beside single steps under the same key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MARK = ":::MLLOG"
_DECODER = json.JSONDecoder()
_CUMULATIVE = ("eval_start", "block_stop", "epoch_stop", "run_stop")
"""Marks whose metadata tell how far the run has got."""
SINGLE, BLOCK, THROUGHPUT = "train_step_time", "train_step_time (mean of a block)", "throughput"


@dataclass
class Timed:
    """A step time, or a throughput in place of one, as a line has it."""

    series: str
    value: float
    """Seconds of a step, or samples per second."""
    step: float | None
    """As logged: a number of steps or of samples."""
    samples: float | None
    """How far the run had got, in samples, where the line says so."""
    time: int
    line: int
    rank: int | None
    covers: int | None = None


@dataclass
class Mlperf:
    """What the lines of a run say so far."""

    timed: list[Timed] = field(default_factory=list)
    marks: list[tuple[str, int, int, int | None, str]] = field(default_factory=list)
    """(mark, ns since 1970, line, rank, text)."""
    parts: list[tuple[str, float, int, int, str]] = field(default_factory=list)
    """(part of the start-up, seconds, ns since 1970, line, text)."""
    figures: list[tuple[str, float, int, int, float | None]] = field(default_factory=list)
    """(figure, value, line, ns since 1970, step as logged)."""
    settings: dict[str, Any] = field(default_factory=dict)
    unreadable: int = 0
    _done: float = 0.0
    """Steps done, as the marks tell."""
    _pending: list[Timed] = field(default_factory=list)
    _running: bool = False

    @property
    def batch(self) -> float:
        """Samples of a step; 0 where it is not logged."""
        value = self.settings.get("global_batch_size")
        return float(value) if isinstance(value, int | float) and value > 0 else 0.0

    @property
    def steps_done(self) -> int:
        """Steps of the whole run."""
        return round(self._done)

    def feed(self, line: str, number: int, rank: int | None) -> None:
        """Take a line that holds the mark; several ranks may have written into it."""
        for piece in line.split(MARK)[1:]:
            try:
                entry, _ = _DECODER.raw_decode(piece.strip())
                key, time = str(entry["key"]), _ns(entry["time_ms"])
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
                self.unreadable += 1
                continue
            meta = entry.get("metadata")
            self._entry(key, entry.get("value"), meta if isinstance(meta, dict) else {}, time, number, rank, piece)

    def _entry(
        self, key: str, value: Any, meta: dict[str, Any], time: int, line: int, rank: int | None, text: str
    ) -> None:
        if key in ("tracked_stats", "train_step_time", "throughput"):
            self._stats({key: value} if not isinstance(value, dict) else value, meta, time, line, rank, text)
            return
        if key.endswith(("_start", "_stop")):
            self.marks.append((key, time, line, rank, text.strip()[:160]))
            self._running = self._running or key == "run_start"
        elif not isinstance(value, dict | list):
            self.settings.setdefault(key, value)
        if key in _CUMULATIVE:
            self._far(meta, key)

    def _far(self, meta: dict[str, Any], key: str) -> None:
        samples, step, epoch = (_figure(meta.get(name)) for name in ("samples_count", "step", "epoch_num"))
        done = self._done
        if step is not None and (samples is None or not self.batch or step * self.batch <= 1.5 * max(samples, step)):
            done = step
        elif samples and self.batch:
            done = samples / self.batch
        elif (
            epoch is not None and epoch < 1000 and self.batch and (whole := _figure(self.settings.get("train_samples")))
        ):
            done = epoch * whole / self.batch
        if done > self._done or key == "run_stop":
            for one in self._pending:
                one.covers = max(round((done - self._done) / len(self._pending)), 1)
            self._pending = []
            self._done = max(done, self._done)

    def _stats(
        self, stats: dict[str, Any], meta: dict[str, Any], time: int, line: int, rank: int | None, text: str
    ) -> None:
        step, samples = _figure(meta.get("step")), _figure(meta.get("samples_count"))
        own, rate = _figure(stats.get("train_step_time")), _figure(stats.get("throughput"))
        if own:
            # A mean of a block stands beside its throughput, or says only how many samples the block has.
            single = step is not None and (step > 0 or rate is None)
            timed = Timed(SINGLE if single and rate is None else BLOCK, own, step, samples, time, line, rank)
        elif rate:
            timed = Timed(THROUGHPUT, rate, step, samples, time, line, rank)
        else:
            timed = None
        if timed is not None:
            self.timed.append(timed)
            if timed.series != SINGLE:
                self._pending.append(timed)
        for name, value in stats.items():
            figure = _figure(value)
            if figure is None:
                continue
            if name.endswith("_time") and not self._running:
                self.parts.append((name.removesuffix("_time"), figure, time, line, text.strip()[:160]))
            elif name in _FIGURES:
                self.figures.append((_FIGURES[name], figure, line, time, step))

    def rows(self) -> Iterator[tuple[Timed, int | None, float]]:
        """Each step time with its number in steps and its ns; a throughput by the global batch."""
        farthest = max((one.step for one in self.timed if one.step is not None), default=0.0)
        in_samples = bool(self.batch) and self.batch > 1 and bool(self._done) and farthest > 1.5 * self._done + 1
        for one in self.timed:
            step = one.step
            if step is not None and in_samples:
                step /= self.batch
            if one.series == BLOCK or (one.series == THROUGHPUT and not float(step or 0.5).is_integer()):
                step = None
            if one.series == THROUGHPUT:
                if not self.batch:
                    continue
                yield one, None if step is None else round(step), self.batch / one.value * 1e9
            else:
                yield one, None if step is None else round(step), one.value * 1e9


_FIGURES = {
    "reduced_train_loss": "loss",
    "train_loss": "loss",
    "max_memory_usage": "memory",
    "lr": "lr",
    "grad_norm": "grad_norm",
}


def _ns(time_ms: Any) -> int:
    """Milliseconds since 1970 in ns, exactly where they are whole."""
    whole = int(time_ms)
    return whole * 1_000_000 + round((float(time_ms) - whole) * 1e6)


def _figure(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 else None  # neither is what is not a number
