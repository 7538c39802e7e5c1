"""The metrics on the lines of a trainer's console log, of a tracker's JSON lines, or of a table as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from gpuscope import when_used
from gpuscope.sources.by_role.timer_names import FIGURES, STEP_KEYS
from gpuscope.sources.lines import json_object
from gpuscope.when_used import dataclass

MARKS = (
    b"timing_s/",
    b"timing/train/",
    b"timing/make_experience",
    b"timing/generation",
    b"perf/rollout_time",
    b"perf/train_time",
    b"perf/step_time",
    b"profiling/Time taken: ",
    b"Total step time: ",
)
"""What stands in a log with timers of roles."""
OF_A_TRAINER = (b"verl.trainer.main_ppo", b"training/global_step:", b"openrlhf.cli.train_ppo", b"GRPOTrainer")
"""What stands in such a trainer's log even where it has no timers."""

_NUMBER = r"-?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WRAPPED = rf"(?:np\.\w+\(|tensor\()?({_NUMBER})\)?"
_ANSI = when_used.pattern(r"\x1b\[[0-9;]*[A-Za-z]")
_VERL = when_used.pattern(r"\bstep:(\d+) - (.*)")
_VALUE = when_used.pattern(rf"^{_WRAPPED}$")
_DICT = when_used.pattern(r"(?:(\w[\w ]*?) (\d+): )?(\{.*)")
_ITEM = when_used.pattern(rf"['\"]([^'\"]+)['\"]:\s*['\"]?{_WRAPPED}")
_HEADING = when_used.pattern(r"\bStep (\d+)/\d+")
_BULLET = when_used.pattern(rf"•\s*([\w/ ]+?): ({_NUMBER})(s\b)?")
_COUNTED = frozenset({"perf", "rollout"})
"""What slime writes before the metrics of a rollout; others (`eval 3:`, `step 12:`) count something else."""


@dataclass
class Row:
    """Metrics that belong together, and the step they are of, where that is told."""

    step: int | None
    metrics: dict[str, float] = field(default_factory=dict)
    unreadable: int = 0


class LineReader:
    """Takes the lines one by one; gives what is complete."""

    def __init__(self) -> None:
        self._block: Row | None = None

    def feed(self, line: str) -> Iterator[Row]:
        """The rows that a line completes."""
        for text in _ANSI.sub("", line).split("\r"):
            if text.lstrip().startswith("{") and (found := json_object(text.strip().encode())) is not None:
                yield _of_object(found)
            elif (match := _VERL.search(text)) is not None:
                yield _of_items(int(match[1]), match[2])
            elif (bullet := _BULLET.search(text)) is not None:
                yield from self._bullet(*bullet.groups())
            elif (heading := _HEADING.search(text)) is not None:
                yield from self.rest()
                self._block = Row(int(heading[1]))
            elif (match := _DICT.search(text)) is not None and _ITEM.search(match[3]):
                yield from _of_dict(match)

    def rest(self) -> Iterator[Row]:
        """What is left at the end."""
        if self._block is not None and self._block.metrics:
            yield self._block
        self._block = None

    def _bullet(self, name: str, value: str, seconds: str | None) -> Iterator[Row]:
        """A line of NeMo-RL's list of timers, the step's own first."""
        key = f"timing/train/{name}" if seconds else name
        if self._block is not None and name == "Total step time" and key in self._block.metrics:
            yield from self.rest()
        if seconds or name in FIGURES:
            self._block = self._block or Row(None)
            self._block.metrics[key] = float(value)


def _of_items(step: int, text: str) -> Row:
    row = Row(step)
    for item in re.split(r" - (?=\D)", text):
        key, sign, value = item.strip().partition(":")
        if (match := _VALUE.match(value.strip())) is not None:
            row.metrics[key] = float(match[1])
        elif sign:
            row.unreadable += key.startswith("timing_s/")
    return row


def _of_dict(match: re.Match[str]) -> Iterator[Row]:
    said = (match[1] or "").lower()
    if match[2] is None or said.split(" ")[-1] in _COUNTED or said.endswith("global step"):
        step = None if match[2] is None else int(match[2])
        yield Row(step, {key: float(value) for key, value in _ITEM.findall(match[3])})


def _of_object(found: Mapping[str, Any]) -> Row:
    """A JSON line: metrics by name, or within `data` as verl's file logger writes them."""
    data = found.get("data")
    flat = {**found, **data} if isinstance(data, dict) else found
    return _numbered({key: number for key, value in flat.items() if (number := _number(value)) is not None})


def _number(value: Any) -> float | None:
    """Of a value, which transformers 5 writes as text."""
    if isinstance(value, int | float):
        return value
    match = _VALUE.match(value.strip()) if isinstance(value, str) else None
    return None if match is None else float(match[1])


def _numbered(metrics: dict[str, float]) -> Row:
    told = (metrics[key] for key in STEP_KEYS if key in metrics and float(metrics[key]).is_integer())
    step = next(told, None)
    return Row(None if step is None else int(step), metrics)


def of_table(lines: Iterable[str]) -> Iterator[Row]:
    """The rows of a CSV whose columns are metrics; W&B puts the run's name before one, and adds `__MIN` and `__MAX`."""
    import csv

    for cells in csv.DictReader(lines):
        row: dict[str, float] = {}
        for column, cell in cells.items():
            if column and isinstance(cell, str) and not column.endswith(("__MIN", "__MAX")):
                match = _VALUE.match(cell.strip())
                if match is not None:
                    row[column.rpartition(" - ")[2]] = float(match[1])
        yield _numbered(row)


_GPUS = {
    "trainer_per_node": r"trainer\.n_gpus_per_node|actor[._-]num[_-]gpus[_-]per[_-]node|(?<!\w)cluster\.gpus_per_node",
    "trainer_nodes": r"trainer\.nnodes|actor[._-]num[_-]nodes|cluster\.num_nodes",
    "rollout_per_node": r"(?<![\w.])rollout\.n_gpus_per_node|generation\.colocated\.resources\.gpus_per_node",
    "rollout_nodes": r"(?<![\w.])rollout\.nnodes|generation\.colocated\.resources\.num_nodes",
    "rollout": r"rollout[_-]num[_-]gpus(?![_-])",
    "engines": r"vllm[._-]num[_-]engines",
    "engine_size": r"vllm[._-]tensor[_-]parallel[_-]size",
}
_SETTING = when_used.pattern(
    "|".join(rf"(?P<{name}>(?:{pattern})['\"]?[\s.=:]+(\d+))" for name, pattern in _GPUS.items())
)
_COLOCATED = when_used.pattern(
    r"colocate[._]all|--colocate\b|hybrid_engine['\"]?[=:]\s*True|colocated\.enabled=[Tt]rue"
)
_SEPARATE = when_used.pattern(
    r"hybrid_engine['\"]?[=:]\s*False|colocated\.enabled=[Ff]alse|one_step_off_policy|fully_async_policy"
)


class Placement:
    """GPUs by role, as far as the lines of a log tell them (a command, settings)."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._colocated: bool | None = None

    def feed(self, line: str) -> None:
        """Look at a line."""
        if "gpus" in line or "nnodes" in line or "vllm" in line or "num_nodes" in line or "num-nodes" in line:
            for match in _SETTING.finditer(line):
                self._told[match.lastgroup or ""] = int(re.split(r"[\s.=:]+", match[0])[-1])
        if "olocate" in line or "hybrid_engine" in line or "policy" in line:
            if _COLOCATED.search(line):
                self._colocated = True
            elif _SEPARATE.search(line):
                self._colocated = False

    def figures(self) -> dict[str, int]:
        """`gpus_trainer`, `gpus_rollout` and whether they are the same ones (`colocated`, 1 or 0)."""
        told, found = self._told, dict[str, int]()
        if "trainer_per_node" in told:
            found["gpus_trainer"] = told["trainer_per_node"] * told.get("trainer_nodes", 1)
        if "rollout_per_node" in told:
            found["gpus_rollout"] = told["rollout_per_node"] * told.get("rollout_nodes", 1)
        elif "rollout" in told:
            found["gpus_rollout"] = told["rollout"]
        elif "engines" in told:
            found["gpus_rollout"] = told["engines"] * told.get("engine_size", 1)
        if self._colocated is not None:
            found["colocated"] = int(self._colocated)
        elif "gpus_rollout" in found and "gpus_trainer" in found:
            found["colocated"] = 0
        return found
