"""The model, layout and batch of a recorded run: from its manifest, or as the user gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.layout import Layout
from gpuscope.errors import InputError, UsageError
from gpuscope.sources.run_manifest import machine_of, training_of

_SIZES = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "zero": "zero",
    "chunks": "chunks",
    "micro_batch": "micro_batch",
    "overlap": "overlap",
    "gradients": "gradients",
}
_ZERO = {"zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}


@dataclass(frozen=True)
class Job:
    """What ran: `batch` in sequences per step, `processors` of the host that ran it on a CPU, else 0."""

    model: Model
    layout: Layout
    batch: int
    processors: int
    memory: int
    """Bytes of that host."""


def job_of(folder: Path, model: Model | None, layout: str | None, world: int) -> Job:
    """The job of a run folder. What is given goes before what the manifest says.

    Raises `InputError` where neither tells the model or the layout, `UsageError` for a layout that is none.
    """
    training = training_of(folder)
    own = model or (_model(training) if training else None)
    if own is None:
        raise InputError(f"{folder} does not say what model it trained", hint="name it with --model")
    if layout is not None:
        spread, batch = given_layout(layout, world)
    elif training is not None:
        spread, batch = _recorded(training, world)
    else:
        raise InputError(
            f"{folder} does not say how the model was spread",
            hint="give --layout tp=2,pp=4,zero=1,micro_batch=1,batch=512 (batch: sequences per step of that run)",
        )
    if batch % (spread.data * spread.micro_batch):
        raise UsageError(f"a batch of {batch} is no multiple of dp {spread.data} x micro-batch {spread.micro_batch}")
    processors, memory = machine_of(folder)
    return Job(own, spread, batch, processors, memory)


def _model(training: Mapping[str, Any]) -> Model:
    """Of `gpuscope train`: a GPT with feed-forward parts four times as wide, and an output layer of its own."""
    own, sequence = training["config"]["model"], training["config"]["data"]["sequence"]
    width = own["width"]
    return Model(
        own["layers"],
        width,
        own["heads"],
        4 * width,
        own["vocabulary"],
        sequence,
        experts=own.get("experts", 0),
        experts_per_token=own.get("experts_per_token", 2),
    )


def _recorded(training: Mapping[str, Any], world: int) -> tuple[Layout, int]:
    config, mesh = training["config"], training["mesh"]
    data = mesh.get("replicate", 1) * mesh.get("shard", 1) * mesh.get("ep", 1)
    pipeline, context, tensor = mesh.get("pp", 1), mesh.get("cp", 1), mesh.get("tp", 1)
    if data * pipeline * context * tensor != world:
        raise InputError(f"the manifest's mesh is of {data * pipeline * context * tensor} ranks, the run of {world}")
    micro = config.get("pipeline", {}).get("micro_batches", 1) if pipeline > 1 else 1
    accumulate = config.get("optimizer", {}).get("accumulate", 1) or 1
    batch = config["data"]["batch"]
    zero = _ZERO.get(str(config["parallel"].get("data", "")), 0)
    hybrid = mesh.get("shard", 1) if config["parallel"].get("data") == "hsdp" else 0
    layout = Layout(
        data,
        tensor,
        pipeline,
        context,
        mesh.get("ep", 1),
        zero,
        max(batch // micro, 1),
        chunks=config.get("pipeline", {}).get("stages_per_rank", 1) if pipeline > 1 else 1,
        shard=hybrid,
    )
    return layout, batch * data * accumulate


def given_layout(text: str, world: int) -> tuple[Layout, int]:
    """A layout of so many ranks and its batch, as a user writes them: `tp=2,pp=4,zero=1,micro_batch=1,batch=512`.

    Raises `UsageError` where it is none.
    """
    values: dict[str, int] = {}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        if (key not in _SIZES and key != "batch") or not (value.isascii() and value.isdecimal() and int(value) >= 0):
            raise UsageError(
                f"--layout: {pair!r} is no part of a layout", hint=f"NUMBERs of {', '.join(_SIZES)}, batch"
            )
        values[key] = int(value)
    if not values.get("batch"):
        raise UsageError("--layout lacks batch", hint="batch=512: sequences per step of the recorded run")
    batch = values.pop("batch")
    rest = values.get("tp", 1) * values.get("pp", 1) * values.get("cp", 1)
    if rest < 1 or world % rest:
        raise UsageError(f"--layout: {text} does not divide {world} ranks")
    sizes = {_SIZES[key]: value for key, value in values.items()}
    layout = Layout(**{"data": world // rest, **sizes})  # type: ignore[arg-type]
    if (
        layout.data * rest != world
        or min(sizes.get(key, 1) for key in _SIZES.values() if key not in ("zero", "overlap")) < 1
    ):
        raise UsageError(f"--layout: {text} is not of {world} ranks")
    return layout, batch
