"""Steps that people measured, layout by layout, beside the planner's: `python -m benchmarks.planner --measured FILE…`.

A file is a CSV with a row a layout, comments after `#`. Its columns say what it is of: `step_ms`, `hidden`, … are
vTrain's measurements (VIA-Research/vTrain, arXiv:2312.12391: Megatron-LM of 2022 on A100 hosts), `benchmark`, `gpu`,
`step_s`, … rows of MLPerf Training.

Of vTrain's rows a third, whole groups drawn by name, was never used to choose a constant of the planner
(`never_fitted`); of MLPerf's none was. A group is all layouts of one model on as many GPUs at one global batch.
"""

from __future__ import annotations

import csv
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.analyzers.planning.candidates import Question, least_recomputed, range_of
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.plan_memory import FULL, GRAPHS, Layout, Rates
from gpuscope.analyzers.planning.step_estimate import estimate
from gpuscope.analyzers.planning.transformer import model_named
from gpuscope.errors import InputError

VTRAIN_VOCABULARY = 51_200
VTRAIN_GPU = "A100 80GB"
HOST_GPUS = 8
MLPERF_MODELS = {"llama31_8b": "llama-3-8b", "llama31_405b": "llama-3-405b", "llama2_70b_lora": "llama-2-70b"}
FIRST = 3
"""Layouts of which one is to be the quickest measured of its group."""


@dataclass(frozen=True)
class Row:
    """A measured layout: seconds of its step, estimated, and the range of the estimate."""

    group: str
    measured: float
    estimated: float
    low: float
    high: float
    never_fitted: bool

    @property
    def error(self) -> float:
        """Of the measured step."""
        return abs(self.estimated / self.measured - 1)


def rows(path: Path) -> list[Row]:
    """Every row of a file. Raises `InputError` for columns of neither kind."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    given = list(csv.DictReader(lines))
    if given and {"step_ms", "hidden", "tensor"} <= set(given[0]):
        return [_vtrain(row) for row in given]
    if given and {"step_s", "benchmark", "gpu"} <= set(given[0]):
        return list(_mlperf(given))
    raise InputError(f"{path}: holds no columns of measured layouts", hint="see benchmarks/measured_steps.py")


def _vtrain(row: Mapping[str, str]) -> Row:
    """As its configurations say: activations checkpointed, gradients reduced after the backward pass in one piece."""
    own = {key: int(value) for key, value in row.items() if key != "step_ms"}
    model = model_named(
        f"layers={own['layers']},width={own['hidden']},heads={own['heads']},ffn={4 * own['hidden']},"
        f"vocabulary={VTRAIN_VOCABULARY},sequence={own['sequence']},tied=1"
    )
    hosts = max(own["gpus"] // HOST_GPUS, 1)
    cluster = cluster_of(f"{hosts}x{own['gpus'] // hosts}x{VTRAIN_GPU}")
    layout = Layout(own["data"], own["tensor"], own["pipeline"], micro_batch=own["micro_batch"], recompute=FULL)
    question = Question(model, cluster, own["global_batch"], Rates(early_megatron=True, overlap_frac=0.0))
    group = " ".join(row[key] for key in ("hidden", "heads", "layers", "sequence", "gpus", "global_batch"))
    return _row(question, layout, float(row["step_ms"]) / 1e3, group, zlib.crc32(group.encode()) % 3 == 0)


def _mlperf(given: Sequence[Mapping[str, str]]) -> Iterator[Row]:
    """As submitted: Megatron-LM with a distributed optimizer, steps captured as CUDA graphs."""
    for row in given:
        sizes = {key: int(row[key]) for key in ("tensor", "pipeline", "context", "chunks", "micro_batch")}
        gpus = int(row["hosts"]) * int(row["gpus_per_host"])
        joined = int(row["nvlink_domain"])
        domain = f",nvlink_domain={joined}" if joined > int(row["gpus_per_host"]) else ""
        cluster = cluster_of(f"{row['hosts']}x{row['gpus_per_host']}x{row['gpu']}{domain}")
        model = model_named(MLPERF_MODELS[row["benchmark"]], int(row["sequence"]))
        data = gpus // (sizes["tensor"] * sizes["pipeline"] * sizes["context"])
        question = Question(model, cluster, int(row["global_batch"]), Rates(launched=GRAPHS), row["precision"])
        layout = least_recomputed(question, Layout(data, zero=1, **sizes)).layout
        group = " ".join(row[key] for key in ("benchmark", "gpu", "hosts", "global_batch"))
        yield _row(question, layout, float(row["step_s"]), group, True)


def _row(question: Question, layout: Layout, measured: float, group: str, never_fitted: bool) -> Row:
    made = estimate(question.model, question.cluster, layout, question.batch, question.rates, question.precision)
    low, high = (end / 1e9 for end in range_of(question, layout))
    return Row(group, measured, made.seconds, low, high, never_fitted)


def summary(name: str, measured: Sequence[Row]) -> dict[str, Any]:
    """A row of the table: errors and regrets as shares of the measured step.

    `regret` is how much longer the layout that we put first took than the quickest of its group, in the median and
    `regret_p90`; `first_three` the share of groups whose quickest layout is among our first three.
    """
    errors = [row.error for row in measured]
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in measured:
        groups[row.group].append(row)
    compared = [sorted(group, key=lambda row: row.estimated) for group in groups.values() if len(group) > 1]
    quickest = [min(row.measured for row in group) for group in compared]
    regrets = [group[0].measured / best - 1 for group, best in zip(compared, quickest, strict=True)]
    among = [min(row.measured for row in group[:FIRST]) <= best for group, best in zip(compared, quickest, strict=True)]
    return {
        "file": name,
        "rows": len(measured),
        "median_error": _quantile(errors, 0.5),
        "p90_error": _quantile(errors, 0.9),
        "in_range": float(np.mean([row.low <= row.measured <= row.high for row in measured])),
        "regret": _quantile(regrets, 0.5),
        "regret_p90": _quantile(regrets, 0.9),
        "groups": len(compared),
        "first_three": float(np.mean(among)) if among else None,
    }


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def summaries(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a file, and one of its rows that no constant was chosen by where these are not all."""
    found = []
    for path in paths:
        measured = rows(path)
        found.append(summary(path.name, measured))
        kept_back = [row for row in measured if row.never_fitted]
        if 0 < len(kept_back) < len(measured):
            found.append(summary(f"{path.name}, never fitted", kept_back))
    return found


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """As Markdown."""
    heads = ("file", "rows", "median error", "p90", "in range", "groups", "quickest among first 3", "regret", "p90")
    keys = ("median_error", "p90_error", "in_range", "groups", "first_three", "regret", "regret_p90")

    def cell(value: Any) -> str:
        return "–" if value is None else f"{value:.1%}" if isinstance(value, float) else str(value)

    lines = [[row["file"], str(row["rows"]), *(cell(row[key]) for key in keys)] for row in found]
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines)]
