"""The timers by which trainers for reinforcement learning log a step, and which of them contain which.

From the sources: verl `trainer/ppo/ray_trainer.py`, `experimental/one_step_off_policy`, `fully_async_policy`; OpenRLHF
`trainer/ppo_trainer.py`, `ppo_trainer_async.py`; NeMo-RL `algorithms/grpo.py`; slime `utils/train_metric_utils.py`,
`ray/rollout.py`; TRL `trainer/grpo_trainer.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

from gpuscope import when_used
from gpuscope.sources.source import json_object
from gpuscope.trace.schema import RolePlace
from gpuscope.when_used import dataclass

STEP, PART, NESTED, BESIDE, OUTSIDE = RolePlace


@dataclass(frozen=True)
class Timer:
    """A timer's role, and where its time lies in the step."""

    role: str
    place: RolePlace = PART


@dataclass(frozen=True)
class Framework:
    """How one framework names its timers."""

    name: str
    key: re.Pattern[str]
    """Matches a metric that is a time of a step; group 1 is the timer's name."""
    timers: Mapping[str, Timer]
    nested: re.Pattern[str]
    """Names of timers within others, besides those listed."""
    step_key: str
    """The timer of the step, without which a step was cut off."""
    adds_up: bool = False
    """Whether a step's timers come one by one before it, several of a name added up; the step's own time may then be
    the mean of several steps (`logging_steps`)."""
    holds: Mapping[str, Literal["unknown", "log_probs", ""]] = field(default_factory=dict)
    """Of such a framework the timers that end a stretch of the step, and what was timed since the last of them lies
    within them: timers of no known role; those and log-probs; nothing."""
    counted: str = ""
    """The timer of which each step has the same number of calls."""

    def timer(self, metric: str) -> tuple[str, Timer | None] | None:
        """A metric's timer: its name and, where it is known, its role; None for what is no timer."""
        match = self.key.match(metric)
        if match is None:
            return None
        name = match[match.lastindex or 0]
        if name in self.timers:
            return name, self.timers[name]
        return name, Timer("other", NESTED) if self.nested.search(name) else None


_VERL = {
    "step": Timer("step", STEP),
    "gen": Timer("rollout"),
    "gen_max": Timer("rollout"),
    "wait_prev_gen": Timer("waiting"),
    "generate_async": Timer("rollout", BESIDE),
    "reward": Timer("reward"),
    "rm": Timer("reward"),
    "old_log_prob": Timer("log_probs"),
    "log_prob": Timer("log_probs"),
    "ref": Timer("reference"),
    "values": Timer("values"),
    "adv": Timer("advantages"),
    "update_critic": Timer("update_critic"),
    "update_actor": Timer("update_actor"),
    "update_weights": Timer("weight_sync"),
    "sync_rollout_weights": Timer("weight_sync"),
    "param_sync": Timer("weight_sync"),
    "timing_s/param_sync": Timer("weight_sync"),
    "save_checkpoint": Timer("checkpoint"),
    "testing": Timer("validation", OUTSIDE),
    "dump_rollout_generations": Timer("other"),
    "start_profile": Timer("other", OUTSIDE),
    "stop_profile": Timer("other", OUTSIDE),
}
_OPENRLHF = {
    "step_total": Timer("step", STEP),
    "generation": Timer("rollout"),
    "make_experience": Timer("experience"),
    "ppo_train": Timer("update_actor"),
    "broadcast": Timer("weight_sync"),
}
_NEMO = {
    "total_step_time": Timer("step", STEP),
    "Total step time": Timer("step", STEP),
    "data_processing": Timer("data"),
    "prepare_for_generation": Timer("weight_sync"),
    "prepare_for_generation/total": Timer("weight_sync"),
    "weight_sync": Timer("weight_sync"),
    "generation": Timer("rollout"),
    "exposed_generation": Timer("waiting"),
    "reward_calculation": Timer("reward"),
    "logprob_inference_prep": Timer("log_probs"),
    "policy_and_reference_logprobs": Timer("log_probs"),
    "policy_logprobs": Timer("log_probs", NESTED),
    "reference_logprobs": Timer("reference", NESTED),
    "advantage_calculation": Timer("advantages"),
    "value_inference": Timer("values"),
    "value_training": Timer("update_critic"),
    "training_prep": Timer("update_actor"),
    "policy_training": Timer("update_actor"),
    "checkpointing": Timer("checkpoint"),
    "validation": Timer("validation"),
}
_SLIME = {
    "step": Timer("step", STEP),
    "rollout": Timer("rollout"),
    "train_wait": Timer("waiting", NESTED),
    "train": Timer("update_actor", NESTED),
    "log_probs": Timer("log_probs"),
    "ref_log_probs": Timer("reference"),
    "actor_train": Timer("update_actor"),
    "critic_train": Timer("update_critic"),
    "update_weights": Timer("weight_sync"),
    "data_preprocess": Timer("data"),
    "sleep": Timer("other"),
    "wake_up": Timer("other"),
    "save_model": Timer("checkpoint"),
}
_TRL = {
    "step_time": Timer("step", STEP),
    "vLLM.generate": Timer("rollout"),
    "generate": Timer("rollout"),
    "transformers.generate": Timer("rollout"),
    "_calculate_rewards": Timer("reward"),
    "_get_per_token_logps_and_entropies": Timer("log_probs"),
    "_get_per_token_logps": Timer("log_probs"),
    "compute_loss": Timer("update_actor"),
    "_move_model_to_vllm": Timer("weight_sync"),
    "sync_weights": Timer("weight_sync"),
}

FRAMEWORKS = (
    Framework(
        "verl",
        when_used.pattern(r"timing_s/(.+)"),
        _VERL,
        when_used.pattern(r"^(?:agent_loop/|generation_timing/|generate_sequences|reshard|reward_loop/|split_)"),
        "step",
    ),
    Framework(
        "nemo-rl",
        when_used.pattern(r"timing/train/(.+?)(?<!_per_gpu)$"),
        _NEMO,
        when_used.pattern(r"^(?:prepare_for_generation|generation|idle|weight_sync)/|_unix_s$"),
        "total_step_time",
    ),
    Framework(
        "openrlhf",
        when_used.pattern(r"timing/(?!train/)(.+)"),
        _OPENRLHF,
        when_used.pattern(r"^broadcast_|_idle_wait$"),
        "step_total",
    ),
    Framework("slime", when_used.pattern(r"perf/(\w+)_time$"), _SLIME, when_used.pattern(r"^update_weights_"), "step"),
    Framework(
        "trl",
        when_used.pattern(r"(?:train/)?(step_time)$|profiling/Time taken: \w+\.(.+)"),
        _TRL,
        when_used.pattern(r"^(?:_prepare_inputs|_generate|training_step)"),
        "step_time",
        adds_up=True,
        holds={"_calculate_rewards": "unknown", "_prepare_inputs": "", "compute_loss": "log_probs"},
        counted="compute_loss",
    ),
)

FIGURES = {
    "response_length/mean": "response_length_mean",
    "response_length/max": "response_length_max",
    "response_length/clip_ratio": "response_clipped",
    "prompt_length/mean": "prompt_length_mean",
    "timing_s/agent_loop/generate_sequences/mean": "request_s_mean",
    "timing_s/agent_loop/generate_sequences/max": "request_s_max",
    "timing_s/generation_timing/max": "replica_s_max",
    "timing_s/generation_timing/min": "replica_s_min",
    "perf/total_num_tokens": "tokens",
    "perf/throughput": "tokens_per_s_and_gpu",
    "fully_async/staleness/response_staleness_mean": "staleness_mean",
    "fully_async/staleness/response_staleness_max": "staleness_max",
    "fully_async/count/stale_trajectory_processed": "stale_in_all",
    "fully_async/count/dropped_stale_samples": "stale_dropped_in_all",
    "fully_async/rollouter/idle_ratio": "rollout_idle",
    "rollout/response_len/mean": "response_length_mean",
    "rollout/response_len/max": "response_length_max",
    "rollout/truncated_ratio": "response_clipped",
    "rollout/response_lengths": "response_length_mean",
    "response_length": "response_length_mean",
    "rollout/response_length_mean": "response_length_mean",
    "completions/mean_length": "response_length_mean",
    "completions/max_length": "response_length_max",
    "completions/clipped_ratio": "response_clipped",
    "train/completions/mean_length": "response_length_mean",
    "train/completions/max_length": "response_length_max",
    "train/completions/clipped_ratio": "response_clipped",
    "train/mean_gen_tokens_per_sample": "response_length_mean",
    "train/max_gen_tokens_per_sample": "response_length_max",
    "Mean Generation Length": "response_length_mean",
    "train/avg_trajectory_age": "staleness_mean",
    "Avg Trajectory Age": "staleness_mean",
}
"""Metrics beside the timers, by the frameworks' names."""

TRAINING_STEP_KEYS = ("training/global_step", "train/global_step", "global_step")
COUNTS_ROWS = frozenset({"_step", "Step"})
"""What numbers the rows of a table, however many steps lie between them."""
STEP_KEYS = (*TRAINING_STEP_KEYS, "rollout/step", "step", "_step", "Step")
"""Metrics that number a row, the one that counts training steps first."""


def framework_of(metrics: Mapping[str, float]) -> Framework | None:
    """The framework whose timers are among the metrics of a row."""
    for framework in FRAMEWORKS:
        found = (framework.timer(metric) for metric in metrics)
        if any(one is not None and one[1] is not None for one in found):
            return framework
    return None


# The metrics on the lines of a trainer's console log, of a tracker's JSON lines, or of a table as CSV.

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
_METRIC_LINES_VERL = when_used.pattern(r"\bstep:(\d+) - (.*)")
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
            elif (match := _METRIC_LINES_VERL.search(text)) is not None:
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
