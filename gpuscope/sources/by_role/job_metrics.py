"""Logs and tracker exports of trainers for reinforcement learning: the time of each role in each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import job, reading
from gpuscope.sources.by_role.timer_names import (
    COUNTS_ROWS,
    FIGURES,
    MARKS,
    OF_A_TRAINER,
    OUTSIDE,
    PART,
    STEP,
    TRAINING_STEP_KEYS,
    Framework,
    LineReader,
    Placement,
    Row,
    Timer,
    framework_of,
    of_table,
)
from gpuscope.sources.pytorch.process_log import ProcessText
from gpuscope.sources.source import Files, ReadOptions, Role, Source, lines
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

ALONE = "timers of roles show what bounds a step, not what the GPUs do in it: add a trace of the ranks"
_TAIL = 1 << 20
_NS = 1_000_000_000
_LONGEST_S = 1e7
_STEP_TIME = when_used.pattern(rb"""(?:["']|\btrain/)step_time\b""")
_OF_RESPONSES = when_used.pattern(rb"""completions/m\w+_length|["']reward["']|\btrain/reward\b""")
"""TRL's console log and its event file have the time of a step beside what the responses were like, and no timer."""
NAMES_TOLD = 6
_ROUNDED = 0.01
"""By what part timers may add up to more than their step: logs round them."""
RECORD = "verl logs timing_s/… with trainer.logger=[console,file]; name its console log or its JSON lines"


@dataclass
class _Steps:
    """What was read: per step its timers in s by name and what else it says."""

    framework: Framework | None = None
    timers: dict[int, dict[str, float]] = field(default_factory=dict)
    figures: dict[int, dict[str, float]] = field(default_factory=dict)
    known: dict[str, Timer] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    repeated: int = 0
    averaged: int = 0
    """Over how many steps rows are means, the most of all rows."""
    _pending: dict[str, float] = field(default_factory=dict)
    _since: list[tuple[str, float]] = field(default_factory=list)
    """What was timed since the last timer that ends a stretch of the step."""
    _calls: int = 0
    """Of the timer that each step has as often."""
    _calls_per_step: float | None = None
    _last_number: int | None = None

    def add(self, row: Row) -> None:
        """Take a row; rows of a framework whose timers come one by one wait for the step's own."""
        self.unreadable += row.unreadable
        self.framework = self.framework or framework_of(row.metrics)
        if self.framework is None:
            return
        found = self._times(row.metrics, self.framework)
        own = {FIGURES[key]: value for key, value in row.metrics.items() if key in FIGURES and math.isfinite(value)}
        number = row.step
        if self.framework.adds_up:
            for name in row.metrics:
                self._time_call(name, found, self.framework)
            if self.framework.step_key not in self._pending:
                return
            found, steps = self._mean_step(row, self.framework)
            own["steps_averaged"] = steps
            self.averaged = max(self.averaged, steps)
        if number is None:
            number = max(self.timers, default=0) + bool(found)
        before = self.timers.get(number, {})
        self.repeated += self.framework.step_key in before and self.framework.step_key in found
        if found:
            self.timers[number] = {**before, **found}
        self.figures.setdefault(number, {}).update(own)

    def _times(self, metrics: Mapping[str, float], framework: Framework) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric, value in metrics.items():
            told = framework.timer(metric)
            if told is None:
                continue
            name, timer = told
            if timer is None:
                if framework.adds_up:
                    self._since.append((name, value))
                else:
                    self.unknown[name] += 1
            elif not 0 <= value < _LONGEST_S:  # neither is what is not a number
                self.unreadable += 1
            else:
                found[name], self.known[name] = value, timer
        if framework.step_key not in found and "Total step time" in found:
            found[framework.step_key] = found.pop("Total step time")
            self.known[framework.step_key] = Timer("step", STEP)
        return found

    def _time_call(self, metric: str, found: Mapping[str, float], framework: Framework) -> None:
        """Add a call to the step; what ran within a longer one that is known counts once, there."""
        name, timer = framework.timer(metric) or ("", None)
        if timer is None or name not in found:
            return
        self._pending[name] = self._pending.get(name, 0.0) + found[name]
        self._calls += name == framework.counted
        if name not in framework.holds:
            self._since.append((name, found[name]))
            return
        within = framework.holds[name]
        for other, value in self._since:
            if other not in self.known:
                if not within:
                    self.unknown[other] += 1
            elif within == "log_probs" and self.known[other].role == within and timer.place == PART:
                self._pending[other] -= value
        self._since = []

    def _mean_step(self, row: Row, framework: Framework) -> tuple[dict[str, float], int]:
        """The timers of one step since the last row with a step's time, which is the mean of all steps in between; and
        how many these are."""
        for other, _ in self._since:
            if other not in self.known:
                self.unknown[other] += 1
        spent = {name: value for name, value in self._pending.items() if value > 0 or name == framework.step_key}
        steps = self._steps_between(row, spent, framework)
        key, calls = framework.step_key, self._calls
        self._pending, self._since, self._calls = {}, [], 0
        if calls:
            self._calls_per_step = calls / steps
        self._last_number = _training_step(row)
        return {name: value if name == key else value / steps for name, value in spent.items()}, steps

    def _steps_between(self, row: Row, spent: Mapping[str, float], framework: Framework) -> int:
        """By the number of the training step, where rows have it; of the first such row, which may follow a restart,
        by calls; else the fewest steps in which the calls fit."""
        number, calls = _training_step(row), self._calls
        if number is not None and self._last_number is not None and number > self._last_number:
            return number - self._last_number
        if not calls:
            return 1
        if self._calls_per_step:
            return max(round(calls / self._calls_per_step), 1)
        parts = sum(value for name, value in spent.items() if self.known[name].place == PART)
        most = spent[framework.step_key] * (1 + _ROUNDED)
        possible = [steps for steps in range(1, calls + 1) if calls % steps == 0]
        if number in possible and parts <= number * most:
            return number
        return next((steps for steps in possible if parts <= steps * most), 1)

    @property
    def asynchronous(self) -> bool:
        """Whether verl's trainer takes rollouts that ran before: its `gen` is then the wait for them."""
        return not self.known.keys().isdisjoint(("sync_rollout_weights", "param_sync", "timing_s/param_sync"))


class JobMetricsSource(Source):
    """Reads `role_times` and `role_figures`."""

    name = "rl-metrics"
    files = Files(
        Role.RECORD, (".log", ".txt", ".out", ".err", ".jsonl", ".csv"), one_per_rank=False, hangs=True, alone=ALONE
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        """A timer of such a trainer near its beginning or end, or its command."""
        if _is_event_file(head):
            return _is_telling(head) or _is_telling(_tail(path))
        if path.is_dir() or path.suffix == ".py" or b"\0" in head or head.lstrip()[:1] in (b"[", b"<"):
            return False
        if _is_telling(head):
            return True
        return len(head) >= 1 << 16 and _is_telling(_tail(path))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a file. Raises `InputError` where no step in it has a timer of a role."""
        steps, placement, process = _Steps(), Placement(), ProcessText(path)
        for row in _rows(path, builder, options, placement, process):
            steps.add(row)
        framework = steps.framework
        if framework is None or not steps.timers:
            raise InputError(f"{path}: holds no step with timers of its roles", hint=RECORD)
        source = builder.source(path, self.name, framework.name, sum(map(len, steps.timers.values())), {})
        process.add(builder, source)
        cut = _add_times(builder, steps, framework, path)
        for number, own in steps.figures.items():
            _add_figures(builder, number, own)
        _add_figures(builder, NA, placement.figures())
        builder.problem(reading.RECORD_UNREADABLE, cut, file=path.name, what="steps without their own time")
        builder.problem(reading.RECORD_UNREADABLE, steps.unreadable, file=path.name, what="timers")
        builder.problem(job.STEPS_REPEATED, steps.repeated, file=path.name)
        names = ", ".join(name for name, _ in steps.unknown.most_common(NAMES_TOLD))
        builder.problem(job.TIMERS_UNKNOWN, len(steps.unknown), file=path.name, names=names)


def _training_step(row: Row) -> int | None:
    """The number of the training step that a row is of; None where only rows are counted."""
    value = next((row.metrics[key] for key in TRAINING_STEP_KEYS if key in row.metrics), None)
    if value is not None and float(value).is_integer():
        return int(value)
    return None if not COUNTS_ROWS.isdisjoint(row.metrics) else row.step


def _rows(
    path: Path, builder: TraceBuilder, options: ReadOptions, placement: Placement, process: ProcessText
) -> Iterator[Row]:
    with path.open("rb") as file:
        if _is_event_file(file.read(64)):
            from gpuscope.sources.by_role.tensorboard_events import rows  # protobuf: not at every start

            yield from rows(path, options, builder)
            return
    text = (line.decode(errors="replace") for line in lines(path, options, builder))
    if path.suffix == ".csv":
        yield from of_table(text)
        return
    reader = LineReader()
    for number, line in enumerate(text, 1):
        placement.feed(line)
        process.feed(line, number)
        yield from reader.feed(line)
    yield from reader.rest()


def _add_times(builder: TraceBuilder, steps: _Steps, framework: Framework, path: Path) -> int:
    """The rows of all steps that are whole; how many are not."""
    code, key, cut = builder.names.code, framework.step_key, 0
    assumed = not any(key in own for own in steps.timers.values())
    for number, own in sorted(steps.timers.items()):
        if not assumed and key not in own:
            cut += 1
            continue
        timed = [(name, steps.known[name], value) for name, value in own.items()]
        if assumed:
            parts = sum(value for _, timer, value in timed if timer.place == PART)
            timed.append((key, Timer("step", STEP), parts))
        columns = {
            "step": [number] * len(timed),
            "role": [code(_role(name, timer, steps)) for name, timer, _ in timed],
            "timer": [code(name) for name, _, _ in timed],
            "place": [_place(name, timer, own, key, steps) for name, timer, _ in timed],
            "dur": [round(value * _NS) for _, _, value in timed],
        }
        builder.add("role_times", len(timed), columns)
    builder.problem(job.STEP_ASSUMED, int(assumed), file=path.name)
    return cut


def _role(name: str, timer: Timer, steps: _Steps) -> str:
    return "waiting" if name == "gen" and steps.asynchronous else timer.role


def _place(name: str, timer: Timer, own: Mapping[str, float], key: str, steps: _Steps) -> int:
    """Validation lies within the step in older versions of verl, behind it in newer ones: as the times add up."""
    if timer.place != OUTSIDE or timer.role == "other" or key not in own:
        return timer.place
    inside = sum(value for other, value in own.items() if steps.known[other].place == PART) + own[name]
    return PART if inside <= own[key] else timer.place


def _add_figures(builder: TraceBuilder, number: int, own: Mapping[str, float]) -> None:
    code = builder.names.code
    columns = {
        "step": [number] * len(own),
        "figure": [code(name) for name in own],
        "value": [round(value * 1e6) for value in own.values()],
    }
    builder.add("role_figures", len(own), columns)


def _is_event_file(head: bytes) -> bool:
    """TensorBoard's first event holds the version of the format."""
    return b"brain.Event:2" in head[:64]


def _is_telling(text: bytes) -> bool:
    return any(mark in text for mark in (*MARKS, *OF_A_TRAINER)) or (
        _STEP_TIME.search(text) is not None and _OF_RESPONSES.search(text) is not None
    )


def _tail(path: Path) -> bytes:
    """The end of a file: a trainer's settings may fill its beginning. Nothing of a packed one."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL, 0))
        return file.read(_TAIL)


SOURCE = JobMetricsSource()
