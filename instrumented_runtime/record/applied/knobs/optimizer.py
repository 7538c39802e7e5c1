"""torch.optim's implementations: one kernel, one per operation over all parameters, or one per parameter."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from gpuscope.catalogue.finding import FUSED_ON_SHARDED
from gpuscope.instrumented_runtime.record.applied.ledger import Family, Knob, Ledger, Wrapping, boolean

NAMES = ("fused", "foreach")


class _Optimizers:
    """Edits the arguments of each optimizer that has the implementation."""

    def __init__(self, ledger: Ledger, kind: type) -> None:
        self._ledger, self._kind = ledger, kind
        self._has = set(inspect.signature(kind.__init__).parameters)  # type: ignore[misc]
        self._wanted = ledger.wanted(*(f"optimizer.{name}" for name in NAMES))

    def prepare(self, arguments: dict[str, Any]) -> None:
        """Only where something is to be changed."""
        if self._wanted:
            _read_once(arguments)

    def edit(self, arguments: dict[str, Any], where: str) -> Iterator[str]:
        """One implementation excludes the other."""
        for name, value in self._wanted.items():
            argument = name.removeprefix("optimizer.")
            if why := self._refused(argument, arguments, on=value):
                self._ledger.refused(name, why, where)
                continue
            arguments[argument] = value
            other = NAMES[1 - NAMES.index(argument)]
            if value and arguments.get(other):
                arguments[other] = None
            yield name

    def _refused(self, argument: str, arguments: dict[str, Any], *, on: bool) -> str:
        if argument not in self._has:
            return f"this optimizer has no {argument}"
        groups = _groups(arguments.get("params"))
        if any(argument in group for group in groups):
            return "the script sets it per group of parameters"
        if on and arguments.get("differentiable"):
            return "it is differentiable"
        tensors = [tensor for group in groups for tensor in group["params"]]
        if not on or argument != "fused":
            return ""
        if self._kind.__name__ not in FUSED_ON_SHARDED and any(hasattr(tensor, "_local_tensor") for tensor in tensors):
            return f"torch has no fused {self._kind.__name__} for sharded parameters"
        return _not_fusable(tensors)

    def look(self, optimizer: Any, where: str) -> None:
        """What is in effect."""
        self._ledger.seen("optimizer.class", type(optimizer).__name__, where)
        for name in NAMES:
            if name in optimizer.defaults:
                self._ledger.seen(f"optimizer.{name}", optimizer.defaults[name], where)


def _read_once(arguments: dict[str, Any]) -> None:
    """Iterators over parameters become lists, as the optimizer makes them anyway: they are looked at twice."""
    import torch

    params = arguments.get("params")
    if isinstance(params, torch.Tensor) or params is None:  # torch tells that this is wrong
        return
    arguments["params"] = list(params)
    for group in arguments["params"]:
        if isinstance(group, dict) and not isinstance(group["params"], torch.Tensor):
            group["params"] = list(group["params"])


def _groups(params: Any) -> list[dict[str, Any]]:
    """The groups of parameters, each with a list of tensors."""
    import torch

    groups = params if params and isinstance(params[0], dict) else [{"params": params}]
    found = []
    for group in groups:
        own = [group["params"]] if isinstance(group["params"], torch.Tensor) else group["params"]
        found.append({**group, "params": [one[1] if isinstance(one, tuple) else one for one in own]})
    return found


def _not_fusable(tensors: list[Any]) -> str:
    """Why there is no fused kernel for these parameters; empty where there is."""
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    devices = set(_get_fused_kernels_supported_devices())
    if other := sorted({tensor.device.type for tensor in tensors} - devices):
        return f"no fused kernel for parameters on {other[0]}"
    return "" if all(tensor.is_floating_point() for tensor in tensors) else "parameters that are not floating point"


def _install(ledger: Ledger) -> None:
    import torch

    found = {one for one in vars(torch.optim).values() if inspect.isclass(one)}
    for kind in sorted(found, key=lambda one: one.__name__):
        if issubclass(kind, torch.optim.Optimizer):
            optimizers = _Optimizers(ledger, kind)
            Wrapping(ledger, optimizers.edit, optimizers.look, retry=True, prepare=optimizers.prepare).around_init(kind)


FAMILY = Family(
    "optimizer",
    (
        Knob(
            name="optimizer.fused",
            takes="true or false",
            read=boolean,
            alters="The last bits of the parameters: the same operations, rounded in another order.",
            shown_by="test_optimizer.py",
        ),
        Knob(
            name="optimizer.foreach",
            takes="true or false",
            read=boolean,
            alters="Nothing computed but for last bits; with true temporary memory of the size of the parameters.",
            shown_by="test_optimizer.py",
        ),
    ),
    _install,
)
