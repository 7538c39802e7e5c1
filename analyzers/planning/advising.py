"""`gpuscope.advise`: a model and a cluster in, the ways to spread the one over the other out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.analyzers.planning import deepspeed, torchtitan
from gpuscope.analyzers.planning.candidates import Question
from gpuscope.analyzers.planning.cluster import Cluster, cluster_of
from gpuscope.analyzers.planning.deepspeed import Setup, Values
from gpuscope.analyzers.planning.plan import plan
from gpuscope.analyzers.planning.plan_memory import LAUNCHED, Rates, with_bench, with_link
from gpuscope.analyzers.planning.torchtitan import FRAMEWORKS
from gpuscope.analyzers.planning.transformer import Model, is_file, model_named, read_values
from gpuscope.errors import InputError, UsageError
from gpuscope.report.section_tables import SectionTables
from gpuscope.schema.plan_document import Plan, PlanCalibration, PlanChange, PlanEntry, PlanRule

if TYPE_CHECKING:
    import pandas as pd


# A framework's configuration file: whose it is, what it asks for, and what of it is wrong.

_YAML = (".yaml", ".yml")


def values_of(path: Path) -> Values:
    """The settings of a TOML, JSON or YAML file. Raises `InputError` where it is none, or of no framework known."""
    found = Values(path, _yaml(path) if path.suffix in _YAML else read_values(path))
    if not _framework(found):
        raise InputError(
            f"{path} is no configuration of DeepSpeed, torchtitan or Accelerate",
            hint=f"they have {', '.join(deepspeed.MARKS)}; parallelism and training; or {deepspeed.KIND}",
        )
    return found


def named_model(values: Values) -> str:
    """The model that the file names; empty where it names none."""
    return torchtitan.model_of(values) if _framework(values) == "torchtitan" else ""


def setup_of(values: Values, gpus: int, model: Model) -> Setup:
    """What the file asks for."""
    framework = _framework(values)
    if framework == "torchtitan":
        return torchtitan.read(values, gpus, model.layers, model.experts > 0)
    if framework == "accelerate":
        return deepspeed.accelerate_read(values, gpus)
    return deepspeed.read(values, gpus)


def _framework(values: Values) -> str:
    parts = values.parts
    if deepspeed.KIND in parts:
        return "accelerate"
    if parts & {*deepspeed.MARKS}:
        return "deepspeed"
    return "torchtitan" if parts & {"parallelism", "training"} else ""


def _yaml(path: Path) -> dict[str, Any]:
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise InputError(f"{path}: reading YAML needs PyYAML", hint="pip install pyyaml, or save it as JSON") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no named values")
    return {str(key): value for key, value in found.items()}


SECTIONS: dict[str, type] = {
    "candidates": PlanEntry,
    "nearest": PlanEntry,
    "rules": PlanRule,
    "sensitivity": PlanChange,
}
"""Sections of the document that are tables, and what a row of each holds."""
TOKENS = 4 << 20
"""Of a step where neither a batch nor tokens are given: what Llama 2 (arXiv:2307.09288, section 2.2) trained with."""


@dataclass(frozen=True, repr=False)
class ParallelismPlan:
    """What `gpuscope.advise` found."""

    document: Plan
    """The document of `gpuscope advise --json` as a dict: every key is in docs/planning.md; bytes, and times in ns."""

    @property
    def best(self) -> PlanEntry | None:
        """The first candidate; None where no layout fits the GPUs' memory."""
        return self.document["candidates"][0] if self.document["candidates"] else None

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """`candidates`, `nearest`, `rules` and `sensitivity` as DataFrames, nested keys dotted
        (`memory_bytes.optimizer`)."""
        return SectionTables(self.document, SECTIONS)

    def __repr__(self) -> str:
        own = self.document
        best = self.best
        return (
            f"ParallelismPlan({own['model']['name']} on {own['cluster']['name']}: "
            f"{best['name'] if best is not None else 'nothing fits'}; {own['feasible']} of {own['considered']} fit)"
        )


def advise(
    model: str | None = None,
    cluster: str | None = None,
    *,
    run: str | Path | None = None,
    bench: str | Path | None = None,
    link_gbps: float | None = None,
    layout: str | None = None,
    config: str | Path | None = None,
    sequence: int | None = None,
    global_batch: int | None = None,
    tokens: int | None = None,
    network: str | None = None,
    ports: int | None = None,
    gpu_memory: float | None = None,
    precision: str | None = None,
    framework: str | None = None,
    lossy: bool = False,
    limit: int = 5,
    launch: str | None = None,
    nvlink_domain: int | None = None,
) -> ParallelismPlan:
    """Say which parallelisms fit a model on a cluster, the quickest first, and of those that the estimate can't tell
    apart the simplest.

    `model` is a preset (`llama-3-8b`), `layers=32,width=4096,…`, a preset with parts changed, or a file of these or of
    Transformers' configuration; `cluster` is `8xH100`, `16x8xH100` for 16 hosts, one with figures changed
    (`8xH100,power_limit_w=500`), or a file. With `run`, a folder that
    gpuscope recorded, what was measured there replaces what is assumed, and `model` and `cluster` default to the run's;
    `layout` says how the run was spread (`tp=2,pp=4,batch=512`) where its manifest does not.

    `bench`, a file of `gpuscope bench collectives --json` or of nccl-tests, replaces the links' usual rates, and
    `link_gbps` that between hosts, in GB/s per GPU.

    `config` is a configuration of DeepSpeed (`ds_config.json`), torchtitan (TOML, or the JSON it saves) or Accelerate:
    it is estimated beside the candidates (`document["given"]`), with its settings that contradict each other or have no
    effect. Its batch, sequence, precision and, for torchtitan, model count where none is given.

    `sequence` is in tokens (default: the model's), `global_batch` in sequences per step or `tokens` in tokens (default:
    4 Mi), `network` the link of a port (`ib_ndr`; default: the GPU's usual one), `ports` those of a host (default: one
    per GPU), `gpu_memory` in GB of a GPU (default: its data sheet's), `precision` `bf16` (default), `fp8` or `fp4`,
    `limit` the number of candidates kept. `framework` (`torchtitan`, `megatron`, `deepspeed` or `accelerate`) leaves
    the layouts that it can run. `lossy` takes gradients in bf16 and also considers ZeRO++, which sends in
    fewer bits. `launch` is how kernels are launched: `eager` (default), `compiled` or `graphs`; `nvlink_domain` how
    many GPUs NVLink joins, where those are several hosts.

    Raises `UsageError` or `InputError` for a model, cluster, network or run that is not known or not possible, or a
    batch that no layout divides.
    """
    _refuse_odd(
        global_batch=global_batch,
        tokens=tokens,
        gpu_memory=gpu_memory,
        limit=limit,
        ports=ports,
        sequence=sequence,
        link_gbps=link_gbps,
        nvlink_domain=nvlink_domain,
    )
    if launch not in (None, *LAUNCHED):
        raise UsageError(f"launch={launch} is none of {', '.join(LAUNCHED)}")
    if nvlink_domain is not None and cluster is not None:
        cluster = _with_domain(cluster, nvlink_domain)
    if framework not in (None, *FRAMEWORKS):
        raise UsageError(f"framework={framework} is none of {', '.join(FRAMEWORKS)}")
    values = values_of(Path(config)) if config is not None else None
    model = model or (named_model(values) if values is not None else "") or None
    links = _Links(bench, link_gbps)
    shape, machines, rates, found = _inputs(model, cluster, run, sequence, network, gpu_memory, ports, layout, links)
    rates = replace(rates, launched=launch or rates.launched)
    setup = setup_of(values, machines.gpus, shape) if values is not None else None
    if setup is not None:
        shape = replace(shape, sequence=sequence or setup.sequence or shape.sequence)
        global_batch = global_batch if global_batch is not None or tokens is not None else setup.batch
    batch = global_batch if global_batch is not None else _batch(shape, machines, tokens)
    question = Question(shape, machines, batch, rates, _precision(precision, setup, machines), lossy, framework or "")
    given = (str(config), setup) if setup is not None else None
    return ParallelismPlan(plan(question, model or str(run), limit, found, links.told, given))


def _with_domain(cluster: str, gpus: int) -> str:
    """Raises `UsageError` where the cluster is a file, which says it itself."""
    if is_file(cluster):
        raise UsageError("nvlink_domain is a field of the cluster's file", hint=f"write nvlink_domain = {gpus} there")
    return f"{cluster},nvlink_domain={gpus}"


def _precision(asked: str | None, setup: Setup | None, machines: Cluster) -> str:
    """Raises `UsageError` for one that there is not, or that the GPUs have not."""
    if asked not in (None, "bf16", "fp8", "fp4"):
        raise UsageError(f"precision={asked} is none of bf16, fp8 and fp4")
    precision = asked or (setup.precision if setup is not None else "bf16")
    if precision not in machines.peaks:
        raise UsageError(
            f"{machines.gpu} has no {precision} peak", hint=f"give {precision}_tflops in the cluster's file"
        )
    return precision


def _refuse_odd(**numbers: float | None) -> None:
    """Raise `UsageError` for numbers that can't be, or say the same twice."""
    for name, value in numbers.items():
        least = 1e-6 if name == "link_gbps" else 1
        if value is not None and not value >= least:
            raise UsageError(f"{name}={value} must be at least {least}")
    if numbers["global_batch"] is not None and numbers["tokens"] is not None:
        raise UsageError("global_batch and tokens say the same twice", hint="give one of them")


@dataclass
class _Links:
    """What the user measured of the links, for the cluster that is planned for."""

    bench: str | Path | None
    gbps: float | None
    told: list[str] = field(default_factory=list)

    def on(self, machines: Cluster) -> Cluster:
        """The cluster with these links."""
        if self.bench is not None:
            machines, self.told = with_bench(machines, Path(self.bench))
        return machines if self.gbps is None else with_link(machines, self.gbps)


def _inputs(
    model: str | None,
    cluster: str | None,
    run: str | Path | None,
    sequence: int | None,
    network: str | None,
    gpu_memory: float | None,
    ports: int | None,
    layout: str | None,
    links: _Links,
) -> tuple[Model, Cluster, Rates, PlanCalibration | None]:
    shape = model_named(model, sequence) if model is not None else None
    on_cpu = re.fullmatch(r"([1-9]\d{0,4})xCPU", cluster or "") if run is not None else None
    machines = links.on(cluster_of(cluster, network, gpu_memory, ports)) if cluster and not on_cpu else None
    if run is not None:
        from gpuscope.analyzers.planning.calibrating import calibrated

        processes = int(on_cpu[1]) if on_cpu else None
        own, planned, rates, told = calibrated(Path(run), shape, machines, layout, processes)
        machines = planned if machines is not None else links.on(planned)
        return shape or (replace(own, sequence=sequence) if sequence else own), machines, rates, told
    if layout is not None:
        raise UsageError("a layout is that of a recorded run", hint="name the run with --from")
    if shape is None or machines is None:
        raise UsageError(
            f"{'a model' if shape is None else 'a cluster'} is missing",
            hint="--model llama-3-8b --cluster 8xH100, or --from a recorded run",
        )
    return shape, machines, Rates(), None


def _batch(model: Model, cluster: Cluster, tokens: int | None) -> int:
    """Sequences of so many tokens, just as many as the user says; by default about `TOKENS`, a multiple of the GPUs
    where there are enough. Raises `UsageError` where the tokens are no whole number of sequences."""
    if tokens is None:
        wanted = max(TOKENS // model.sequence, 1)
        return max(round(wanted / cluster.gpus), 1) * cluster.gpus if wanted >= cluster.gpus else wanted
    if tokens % model.sequence:
        below, above = tokens // model.sequence * model.sequence, -(-tokens // model.sequence) * model.sequence
        raise UsageError(
            f"{tokens:,} tokens are no whole number of sequences of {model.sequence:,}",
            hint=f"--tokens {below} or {above}" if below else f"--tokens {above}",
        )
    return tokens // model.sequence
