"""DistributedDataParallel's own options, and its hook that compresses gradients."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from typing import Any

from gpuscope.instrumented_runtime.record.applied.ledger import Family, Knob, Ledger, Wrapping, at_least, boolean
from gpuscope.instrumented_runtime.record.nsys_capture import power_sgd_hook

FLAGS = ("static_graph", "gradient_as_bucket_view", "find_unused_parameters")
START = 10
"""Steps that PowerSGD sends whole gradients first: few, since a trial run has few."""
MIB = 1 << 20


def buckets(value: str) -> list[float]:
    """MiB of all buckets, or of the first and of the others; none for DDP's default."""
    sizes = [] if value == "default" else [float(part) for part in value.split(",")]
    if len(sizes) > 2 or any(size <= 0 for size in sizes):
        raise ValueError(value)
    return sizes


def hook(value: str) -> tuple[str, int]:
    """A hook by its name, and PowerSGD's rank."""
    name, colon, rank = value.partition(":")
    if name not in ("fp16", "bf16", "powersgd") or (colon and name != "powersgd"):
        raise ValueError(value)
    return name, at_least(1)(rank) if colon else 32


class _Wrapped:
    """Edits the arguments of each DistributedDataParallel."""

    def __init__(self, ledger: Ledger, parameters: set[str]) -> None:
        self._ledger, self._parameters = ledger, parameters
        self._wanted = ledger.wanted("ddp.bucket_cap_mb", "ddp.broadcast_buffers", *(f"ddp.{name}" for name in FLAGS))
        self._hook = ledger.wanted("ddp.comm_hook").get("ddp.comm_hook")

    def edit(self, arguments: dict[str, Any], where: str) -> Iterator[str]:
        """Each where this torch has it."""
        for name, value in self._wanted.items():
            argument = name.removeprefix("ddp.")
            if argument == "bucket_cap_mb":
                if len(value) == 2 and "bucket_cap_mb_list" not in self._parameters:
                    self._ledger.refused(name, "this torch has no size for the first bucket", where)
                    continue
                arguments.pop("bucket_cap_mb_list", None)
                arguments["bucket_cap_mb"] = value[0] if len(value) == 1 else None
                if len(value) == 2:
                    arguments["bucket_cap_mb_list"] = value
            elif argument == "broadcast_buffers" and "forward_sync_buffers" in self._parameters:
                arguments.pop(argument, None)
                arguments["forward_sync_buffers"] = value
            else:
                arguments[argument] = value
            yield name

    def look(self, model: Any, where: str) -> None:
        """What is in effect; the hook comes later, if the script registers none."""
        for name in (*FLAGS, "broadcast_buffers"):
            self._ledger.seen(f"ddp.{name}", getattr(model, name), where)
        self._ledger.seen("ddp.bucket_cap_mb", _sizes(model), where)
        self._ledger.seen("ddp.buffers", len(list(model.module.buffers())), where)
        if self._hook is not None:
            model.register_forward_pre_hook(_FirstForward(self._ledger, self._hook, where))
        held = weakref.ref(model)
        self._ledger.at_end.append(lambda: self._look_at_hooks(held(), where))

    def _look_at_hooks(self, model: Any, where: str) -> None:
        hooks = getattr(model, "_comm_hooks", None)
        if hooks is not None:
            self._ledger.seen("ddp.comm_hook", _named(hooks[0][0]) if hooks else None, where)


def _sizes(model: Any) -> str:
    """The sizes of its buckets, as the knob spells them."""
    if sizes := getattr(model, "bucket_bytes_cap_list", None):
        return ",".join(f"{size / MIB:g}" for size in sizes)
    return "default" if getattr(model, "bucket_bytes_cap_default", False) else f"{model.bucket_bytes_cap / MIB:g}"


class _FirstForward:
    """Registers the hook before the first forward pass, by when the script has registered its own, if any; a class, so
    that a model that is pickled before can be."""

    def __init__(self, ledger: Ledger, wanted: tuple[str, int], where: str) -> None:
        self._ledger, self._wanted, self._where = ledger, wanted, where
        self._done = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()

    def __call__(self, model: Any, _inputs: object) -> None:
        if self._done:
            return
        self._done = True
        for key in [key for key, one in model._forward_pre_hooks.items() if one is self]:
            del model._forward_pre_hooks[key]
        try:
            self._register(model)
        except Exception as error:  # the job goes on without
            self._ledger.problem(repr(error))

    def _register(self, model: Any) -> None:
        own = [_named(one[0]) for one in getattr(model, "_comm_hooks", [])]
        if own:
            self._ledger.refused("ddp.comm_hook", f"the script registers {own[0]}", self._where)
        else:
            model.register_comm_hook(*_hook(model, *self._wanted))
            self._ledger.applied("ddp.comm_hook")


def _nothing() -> Any:
    return _FirstForward(Ledger({}, {}), ("", 0), "")


def _hook(model: Any, name: str, rank: int) -> tuple[Any, Any]:
    """State and function of a hook."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powersgd":
        group = model.process_group
        state: Any = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=START)
        return state, power_sgd_hook(dist.get_backend(group))
    return model.process_group, getattr(default_hooks, f"{name}_compress_hook")


def _named(function: Any) -> str:
    """A hook as the knob spells it, else by its own name."""
    name = getattr(function, "__name__", type(function).__name__)
    return {"fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16", "powerSGD_hook": "powersgd"}.get(name, name)


def _install(ledger: Ledger) -> None:
    import torch.distributed

    if not torch.distributed.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    wrapped = _Wrapped(ledger, set(inspect.signature(DistributedDataParallel.__init__).parameters))
    Wrapping(ledger, wrapped.edit, wrapped.look).around_init(DistributedDataParallel)


FAMILY = Family(
    "ddp",
    (
        Knob(
            name="ddp.bucket_cap_mb",
            takes="MiB, as 50, or 1,50 for a first bucket of 1 and others of 50, or default",
            read=buckets,
            alters="The order in which ring and tree algorithms add gradients, so their last bits.",
            shown_by="test_ddp.py",
        ),
        Knob(
            name="ddp.static_graph",
            takes="true or false",
            read=boolean,
            allow="static_graph",
            alters="Gradients are wrong or the job fails where the graph differs between steps.",
            shown_by="test_ddp.py",
        ),
        Knob(
            name="ddp.gradient_as_bucket_view",
            takes="true or false",
            read=boolean,
            alters="Nothing computed; code that replaces or detaches gradients in place fails.",
            shown_by="test_ddp.py",
        ),
        Knob(
            name="ddp.find_unused_parameters",
            takes="true or false",
            read=boolean,
            alters="Nothing computed; with false DDP stops the job where parameters are unused in a step.",
            shown_by="test_ddp.py",
        ),
        Knob(
            name="ddp.broadcast_buffers",
            takes="true or false",
            read=boolean,
            allow="buffers",
            alters="With false each rank keeps its own running statistics, which evaluation and checkpoints take.",
            shown_by="test_ddp.py",
        ),
        Knob(
            name="ddp.comm_hook",
            takes="fp16, bf16, powersgd, or powersgd:RANK",
            read=hook,
            allow="compression",
            alters=f"Gradients are rounded to 16 bits, or approximated from step {START} on.",
            shown_by="test_ddp.py",
        ),
    ),
    _install,
)
