"""Logs and tracker exports of trainers for reinforcement learning: the time of each role in each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.problems import reading, roles
from gpuscope.sources.by_role.metric_lines import MARKS, OF_A_TRAINER, LineReader, Placement, Row, of_table
from gpuscope.sources.by_role.timer_names import FIGURES, OUTSIDE, PART, STEP, Framework, Timer, framework_of
from gpuscope.sources.lines import lines
from gpuscope.sources.pytorch.process_log import ProcessText
from gpuscope.sources.source import Files, ReadOptions, Role, Source
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

ALONE = "timers of roles show what bounds a step, not what the GPUs do in it: add a trace of the ranks"
_TAIL = 1 << 20
_NS = 1_000_000_000
_LONGEST_S = 1e7
NAMES_TOLD = 6
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
    _pending: dict[str, float] = field(default_factory=dict)

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
            for name, value in found.items():
                self._pending[name] = self._pending.get(name, 0.0) + value
            if self.framework.step_key not in self._pending:
                return
            found, self._pending = self._pending, {}
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
                self.unknown[name] += 1
            elif not 0 <= value < _LONGEST_S:  # neither is what is not a number
                self.unreadable += 1
            else:
                found[name], self.known[name] = value, timer
        if framework.step_key not in found and "Total step time" in found:
            found[framework.step_key] = found.pop("Total step time")
            self.known[framework.step_key] = Timer("step", STEP)
        return found

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
        builder.problem(roles.STEPS_REPEATED, steps.repeated, file=path.name)
        names = ", ".join(name for name, _ in steps.unknown.most_common(NAMES_TOLD))
        builder.problem(roles.TIMERS_UNKNOWN, len(steps.unknown), file=path.name, names=names)


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
    builder.problem(roles.STEP_ASSUMED, int(assumed), file=path.name)
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
    return any(mark in text for mark in (*MARKS, *OF_A_TRAINER))


def _tail(path: Path) -> bytes:
    """The end of a file: a trainer's settings may fill its beginning. Nothing of a packed one."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL, 0))
        return file.read(_TAIL)


SOURCE = JobMetricsSource()
