"""Reads the log of a job line by line into the tables `log_steps`, `log_events` and `log_figures`.

Only numbers of steps stay in memory, so that a log of gigabytes needs as little as its steps do.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuscope.analyzers.job_logs.line_shapes import Event, Said, format_of, may_tell, said_by, settings_of, shape_of
from gpuscope.analyzers.job_logs.mlperf_lines import MARK, Mlperf
from gpuscope.analyzers.job_logs.numbers_in_lines import stamp_ns
from gpuscope.sources.pytorch.log_signs import plain
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\].*?(?:\x07|\x1b\\)|[@-Z\\-_])|\x08+")
_MOST_EVENTS = 20_000
"""Events kept of one kind: a server may log preemptions by the million; they are counted all the same."""
_MOST_FIGURES = 2_000_000
"""Values kept of figures beside steps."""
_MOST_STEPS = 20_000_000
_TEXT = 200
"""Characters of an event's line that are kept as evidence."""
_LABELS_LOOKED_AT = 20_000
"""Lines on which the words of a framework are looked for."""
_EMBEDDED_RANK = re.compile(r"\[[Rr]ank[ :]?(\d{1,6})\]|\brank[=:](\d{1,6})\b")
_YEAR_NS = 365 * 86_400 * 10**9
_STARTS_AGAIN = 0.5
_STAMPED = 0.9
"""Of the lines with a step: from there on their time stamps are the log's clock, else its progress bar's."""
PRIORITY = (
    "time per iteration",
    "train_step_timing",
    "step time",
    "time per step",
    "s/step",
    "steps/s",
    "dt",
    "seconds",
    "time",
    "throughput",
    "tokens",
    "bar",
    "",
)
"""Of several that tell the time of the same steps, the first is taken: a bar's rate is smoothed and rounded."""


@dataclass
class _Series:
    """Step times told in one way."""

    rank: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))
    """ns of a step, or samples or tokens per second; 0 where the line has neither."""
    covers: array[int] = field(default_factory=lambda: array("q"))
    time: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))
    trains: int = 0

    def add(self, rank: int, step: int, value: float, covers: int, time: int, line: int) -> None:
        self.rank.append(rank)
        self.step.append(step)
        self.value.append(value)
        self.covers.append(covers)
        self.time.append(time)
        self.line.append(line)


@dataclass
class _Bar:
    """Where a progress bar stands."""

    at: int = -1
    elapsed: int = 0
    offset: int = 0
    """Steps of earlier rounds of the same bar."""
    clock: int = 0
    """ns of earlier rounds."""
    epoch: int | None = None


class LogReader:
    """Takes the lines of one file; `add` puts what they say into the tables."""

    def __init__(self, rank: int | None = None) -> None:
        self._own_rank = rank
        self.mlperf: Mlperf | None = None
        self._series: dict[str, _Series] = {}
        self._events: list[tuple[int, Event, str, int, int, int]] = []
        self._event_counts: Counter[str] = Counter()
        self._figures: dict[str, _Series] = {}
        self._figures_kept = 0
        self._bars: dict[tuple[int, str], _Bar] = {}
        self._formats: Counter[str] = Counter()
        self._settings: dict[str, float] = {}
        self._last_step: dict[int, int] = {}
        self._first: tuple[int, int] | None = None
        """(time, line) of the first line with a time stamp."""
        self._tail: deque[tuple[int, bytes]] = deque(maxlen=200)
        self._stamp = NA
        self._looked = 0
        self.evidence_of_training = 0
        self._first_epoch: int | None = None

    # -- lines

    def feed(self, raw: bytes, number: int) -> None:
        """Take a line."""
        self._tail.append((number, raw[-4096:] if len(raw) > 4096 else raw))
        if self._first is None and number <= _LABELS_LOOKED_AT:
            stamp = stamp_ns(raw[:400].decode(errors="replace"))
            if stamp is not None:
                self._first = (stamp, number)
        if not may_tell(raw):
            return
        text = raw.decode(errors="replace")
        if "\x1b" in text or "\x08" in text:
            text = _ESCAPES.sub("", text)
        for piece in text.split("\r") if "\r" in text else (text,):
            if piece.strip():
                self._piece(piece, number)

    def _piece(self, line: str, number: int) -> None:
        stamp = stamp_ns(line)
        line, rank, local = plain(line)
        rank = rank if rank is not None else local
        if stamp is None and (label := rank is not None):
            stamp = stamp_ns(line) if label else None
        if MARK in line:
            self.mlperf = self.mlperf or Mlperf()
            self.mlperf.feed(line, number, rank)
            return
        if self._looked < _LABELS_LOOKED_AT:
            self._looked += 1
            shape = shape_of(line)
            if (named := format_of(line, shape)) is not None:
                self._formats[named] += 1
            for name, value in settings_of(line, shape):
                self._settings[name] = max(value, self._settings.get(name, 0.0))
        said = said_by(line.strip())
        if said is None:
            return
        if rank is None:
            if self._own_rank is not None:
                rank = self._own_rank
            elif (embedded := _EMBEDDED_RANK.search(line)) is not None:
                rank = int(embedded[1] or embedded[2])
        self._take(said, line, number, NA if rank is None else rank, self._of_year(stamp))

    def _of_year(self, stamp: int | None) -> int:
        """A stamp; of a log without years one after New Year's counts on."""
        if stamp is None:
            return NA
        if self._stamp != NA and stamp < self._stamp - 300 * 86_400 * 10**9 and stamp < 2 * 30 * _YEAR_NS:
            stamp += _YEAR_NS
        self._stamp = stamp
        return stamp

    def _take(self, said: Said, line: str, number: int, rank: int, stamp: int) -> None:
        self.evidence_of_training += said.trains
        step, time = NA if said.step is None else said.step, stamp
        if said.bar is not None:
            placed = self._on_bar(said, rank)
            if placed is None:
                said.series = ""
                step = NA
            else:
                step, clock = placed
                time = stamp if stamp != NA else clock
        elif said.epoch is not None and said.of and said.step is not None:
            step = self._epochs(said.epoch) * said.of + said.step
        if (
            (said.series or (said.trains and step != NA))
            and said.series != "server"
            and not (said.bar and not said.series)
        ):
            self._add_step(said, rank, step, time, number)
        if said.series == "server":
            self._formats["server"] += 1
        for name, value in said.figures.items():
            if self._figures_kept < _MOST_FIGURES:
                self._figures_kept += 1
                self._figures.setdefault(name, _Series()).add(rank, step, value, NA, time, number)
        for event in said.events:
            self._event_counts[event.what] += 1
            if self._event_counts[event.what] <= _MOST_EVENTS:
                at = step if step != NA else self._last_step.get(rank, NA)
                self._events.append((rank, event, line.strip()[:_TEXT], at, stamp, number))

    def _epochs(self, epoch: int) -> int:
        """Epochs before this one; some count them from one."""
        if self._first_epoch is None:
            self._first_epoch = int(epoch == 1)
        return max(epoch - self._first_epoch, 0)

    def _add_step(self, said: Said, rank: int, step: int, time: int, number: int) -> None:
        if said.bar is None and step == NA:
            step = self._last_step.get(rank, -1) + 1 if said.series else NA
        series = said.series if said.bar is None else f"bar {said.bar[0]}|{said.bar[1]}"
        value = said.step_ns or said.per_second or 0.0
        own = self._series.setdefault(series, _Series())
        if len(own.step) < _MOST_STEPS:
            own.add(rank, step, value, NA, time, number)
            own.trains += said.trains
        self._last_step[rank] = step

    def _on_bar(self, said: Said, rank: int) -> tuple[int, int] | None:
        """(number of the step, clock) of a progress bar that has moved on since it was last drawn; None where not."""
        if said.bar is None or said.step is None:
            return None
        key = (rank, f"{said.bar[0]}|{said.bar[1]}")
        bar = self._bars.setdefault(key, _Bar())
        if said.step < bar.at or (said.epoch is not None and said.epoch != bar.epoch and bar.at >= 0):
            bar.clock += bar.elapsed
            if said.epoch is None and said.of and bar.at >= said.of:
                bar.offset += bar.at
            bar.at, bar.elapsed = -1, 0
        moved = said.step > max(bar.at, 0)
        bar.epoch = said.epoch
        bar.at = max(bar.at, said.step)
        bar.elapsed = max(bar.elapsed, said.elapsed_ns or 0)
        if not moved:
            return None
        step = said.step + bar.offset
        if said.epoch is not None and said.of:
            step += self._epochs(said.epoch) * said.of
        return step, bar.clock + bar.elapsed

    # -- tables

    @property
    def format(self) -> str:
        """The framework that wrote most of the log."""
        if self.mlperf is not None and (self.mlperf.timed or self.mlperf.marks):
            return "mlperf"
        served = self._formats["server"]
        for name in ("vllm", "sglang"):
            if served and self._formats[name]:
                return name
        if served and not self._kept_series():
            return "server"
        named = [name for name, _ in self._formats.most_common() if name not in ("server", "vllm", "sglang")]
        order = ("megatron-lm", "nemo", "torchtitan", "hf-trainer", "lightning", "deepspeed", "accelerate")
        for name in order:
            if name in named:
                return name
        return named[0] if named else "tqdm" if any(name.startswith("bar") for name in self._kept_series()) else "plain"

    @property
    def facts(self) -> dict[str, float]:
        """What the log says of the whole job."""
        return dict(self._settings)

    @property
    def has_steps(self) -> bool:
        """Whether there is a step time, a throughput, or a server's line."""
        if self.mlperf is not None and (self.mlperf.timed or self.mlperf.marks):
            return True
        return bool(self._kept_series()) or self._formats["server"] > 0

    @property
    def counted(self) -> int:
        """Lines so far that tell the time of a step, or a server's state, or MLPerf's marks."""
        of_mlperf = len(self.mlperf.timed) + len(self.mlperf.marks) if self.mlperf is not None else 0
        return of_mlperf + self._formats["server"] + sum(len(self._series[name].step) for name in self._kept_series())

    def _kept_series(self) -> list[str]:
        """The series that are steps of a training: their lines show it, or the log does elsewhere; the best first."""
        kept = []
        for name, own in self._series.items():
            count = len(own.step)
            if not own.trains and not self.evidence_of_training:
                continue
            if name.startswith("bar ") and not own.trains and not self._is_main_bar(name):
                continue
            if name == "" and count < 3:
                continue
            kept.append(name)
        return sorted(kept, key=lambda name: (_place(name), -len(self._series[name].step)))

    def _is_main_bar(self, name: str) -> bool:
        """Of bars without a description the one that draws the most, if it has more than a handful of steps."""
        unnamed = [other for other in self._series if other.startswith("bar |") or re.match(r"bar #?\|", other)]
        return name in unnamed and name == max(unnamed, key=lambda one: self._farthest(one))

    def _farthest(self, name: str) -> int:
        return max(self._series[name].step, default=0)

    def add(self, builder: TraceBuilder, source: int) -> None:
        """Put everything into the tables."""
        if self.mlperf is not None and (self.mlperf.timed or self.mlperf.marks):
            self._add_mlperf(builder, source, self.mlperf)
            self._add_events(builder, source, own_clock=False)
            return
        chosen = self._kept_series()
        own_clock = False
        if chosen:
            bars = [name for name in chosen if name.startswith("bar ")] if _place(chosen[0]) >= _BAR else []
            names = bars or chosen[:1]
            if _place(chosen[0]) >= _BAR and not bars:
                names = chosen[:1]
            own_clock = bool(bars) and self._first is None
            for name in names:
                self._add_series(builder, source, name)
            # Steps whose time nothing tells show by their time stamps how far the job got, and when.
            if names[0] != "" and "" in self._series and not bars:
                self._add_series(builder, source, "", timed=False)
        self._add_events(builder, source, own_clock=own_clock)
        self._add_figures(builder, source)

    def _add_series(self, builder: TraceBuilder, source: int, name: str, *, timed: bool = True) -> None:
        own, code = self._series[name], builder.names.code
        value = np.array(own.value, np.float64)
        time, step = np.array(own.time, np.int64), np.array(own.step, np.int64)
        series = "bar" if name.startswith("bar ") else name or "time stamps"
        if name == "throughput" and (batch := self._settings.get("global_batch")):
            dur = np.where(value > 0, batch / np.where(value > 0, value, 1.0) * 1e9, 0.0)
        elif name in ("throughput", "tokens"):
            dur = _calibrated(value, time, step)
            series = f"{name} by time stamps"
        else:
            dur = value
        keep = np.ones(len(dur), np.bool_) if timed else np.zeros(len(dur), np.bool_)
        whole = np.where((dur > 0) & (dur < 1e18) & keep, np.rint(np.clip(dur, 0, 1e18)), float(0)).astype(np.int64)
        builder.add(
            "log_steps",
            len(step),
            {
                "rank": np.array(own.rank, np.int64),
                "series": code(series if timed else "progress"),
                "step": step,
                "dur": np.where(whole > 0, whole, NA),
                "covers": np.array(own.covers, np.int64),
                "time": time,
                "line": np.array(own.line, np.int64),
                "source": source,
            },
        )

    def _add_events(self, builder: TraceBuilder, source: int, *, own_clock: bool) -> None:
        last = next(
            (
                (stamp, number)
                for number, raw in reversed(self._tail)
                if (stamp := stamp_ns(raw.decode(errors="replace"))) is not None
            ),
            None,
        )
        if not own_clock:
            for what, mark in (("first", self._first), ("last", last)):
                if mark is not None:
                    _event(builder, source, NA, Event(what), "", NA, mark[0], mark[1])
        for rank, event, text, step, time, number in self._events:
            _event(builder, source, rank, event, text, step, time, number)
        for what, count in self._event_counts.items():
            if count > _MOST_EVENTS:
                _event(builder, source, NA, Event(f"{what} more", "", float(count - _MOST_EVENTS)), "", NA, NA, 0)
        for name, value in self._settings.items():
            _figure_rows(builder, source, name, [NA], [value], [NA], [NA], [0])

    def _add_figures(self, builder: TraceBuilder, source: int) -> None:
        for name, own in self._figures.items():
            _figure_rows(builder, source, name, own.rank, own.value, own.step, own.time, own.line)

    def _add_mlperf(self, builder: TraceBuilder, source: int, read: Mlperf) -> None:
        code = builder.names.code
        rows = list(read.rows())
        builder.add(
            "log_steps",
            len(rows),
            {
                "rank": [NA if one.rank is None else one.rank for one, _, _ in rows],
                "series": [code(one.series) for one, _, _ in rows],
                "step": [NA if step is None else step for _, step, _ in rows],
                "dur": [round(min(ns, 9e18)) for _, _, ns in rows],
                "covers": [NA if one.covers is None else one.covers for one, _, _ in rows],
                "time": [one.time for one, _, _ in rows],
                "line": [one.line for one, _, _ in rows],
                "source": source,
            },
        )
        for mark, time, line, rank, text in read.marks:
            _event(builder, source, NA if rank is None else rank, Event(mark), text, NA, time, line)
        for name, seconds, time, line, text in read.parts:
            _event(builder, source, NA, Event("part", name, seconds * 1e9), text, NA, time, line)
        for name, value, line, time, step in read.figures:
            _figure_rows(builder, source, name, [NA], [value], [NA if step is None else int(step)], [time], [line])
        told = {"global_batch": read.batch, "steps_done": float(read.steps_done)}
        for key, name in (("max_sequence_length", "sequence_length"), ("gradient_accumulation_steps", "accumulation")):
            setting = read.settings.get(key)
            if isinstance(setting, int | float):
                told[name] = float(setting)
        for name, value in told.items():
            if value:
                _figure_rows(builder, source, name, [NA], [value], [NA], [NA], [0])


def _place(name: str) -> int:
    kind = "bar" if name.startswith("bar ") else name
    return PRIORITY.index(kind) if kind in PRIORITY else PRIORITY.index("step time")


_BAR = PRIORITY.index("bar")


def _calibrated(rate: Any, time: Any, step: Any) -> Any:
    """ns of a step from its rate, where how much a step holds is not logged: the time stamps tell that."""
    known = (time != NA) & (step != NA) & (rate > 0)
    zero = np.zeros(len(rate))
    if known.sum() < 4:
        return zero
    times, steps, rates = time[known], step[known], rate[known]
    passed, moved = np.diff(times), np.diff(steps)
    good = (passed > 0) & (moved > 0)
    if good.sum() < 3:
        return zero
    held = np.median(passed[good] / moved[good] * rates[1:][good])
    return np.where(rate > 0, held / np.where(rate > 0, rate, 1.0), 0.0)


def _event(
    builder: TraceBuilder, source: int, rank: int, event: Event, text: str, step: int, time: int, line: int
) -> None:
    code = builder.names.code
    builder.add(
        "log_events",
        1,
        {
            "rank": rank,
            "what": code(event.what),
            "text": code(text) if text else NO_NAME,
            "name": code(event.name) if event.name else NO_NAME,
            "step": step,
            "dur": NA if event.dur is None else round(min(max(event.dur, 0), 9e18)),
            "time": time,
            "line": line,
            "source": source,
        },
    )


def _figure_rows(
    builder: TraceBuilder,
    source: int,
    name: str,
    rank: Iterable[int],
    value: Iterable[float],
    step: Iterable[int],
    time: Iterable[int],
    line: Iterable[int],
) -> None:
    values = np.array(list(value), np.float64)
    values = np.rint(np.clip(np.nan_to_num(values), -9e12, 9e12) * 1e6).astype(np.int64)
    builder.add(
        "log_figures",
        len(values),
        {
            "rank": np.array(list(rank), np.int64),
            "figure": builder.names.code(name),
            "value": values,
            "step": np.array(list(step), np.int64),
            "time": np.array(list(time), np.int64),
            "line": np.array(list(line), np.int64),
            "source": source,
        },
    )
