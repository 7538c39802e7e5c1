"""The model under torch.compile, in place: the same object, as the script holds it."""

from __future__ import annotations

import weakref
from typing import Any

from gpuscope.instrumented_runtime.record.applied.ledger import Family, Knob, Ledger, boolean, one_of

# Products of 32-bit floats at a lower precision inside.

NAME = "torch.float32_matmul_precision"


def _precision_install(ledger: Ledger) -> None:
    import torch

    value = ledger.wanted(NAME).get(NAME)
    if value is not None:
        own = torch.set_float32_matmul_precision
        own(value)
        ledger.applied(NAME)

        def set_float32_matmul_precision(precision: str) -> None:
            """The script's own choice gives way."""
            del precision
            own(value)

        torch.set_float32_matmul_precision = set_float32_matmul_precision
    ledger.at_end.append(lambda: _precision_look(ledger))


def _precision_look(ledger: Ledger) -> None:
    import torch

    ledger.seen(NAME, torch.get_float32_matmul_precision())
    ledger.seen("torch.cudnn_allow_tf32", torch.backends.cudnn.allow_tf32)


PRECISION_FAMILY = Family(
    "precision",
    (
        Knob(
            name=NAME,
            takes="highest, high (TF32) or medium",
            read=one_of("highest", "high", "medium"),
            allow="tf32",
            alters="Inputs of 32-bit products are rounded to 10 bits of mantissa, with medium to 7.",
            shown_by="test_process.py",
        ),
    ),
    _precision_install,
)


COMPILE, GRAPHS = "torch.compile", "cuda_graphs"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class _Models:
    """Watches the first step for the modules that the script itself calls, then compiles them."""

    def __init__(self, ledger: Ledger, mode: str, names: tuple[str, ...]) -> None:
        from torch.nn.modules import module

        self._ledger, self._mode, self._names = ledger, mode, names
        self._depth = 0
        self._outermost: list[weakref.ref[Any]] = []
        self._hooks = [
            module.register_module_forward_pre_hook(self._entered),
            module.register_module_forward_hook(self._left, always_call=True),
        ]
        ledger.at_step.append(self._after_step)

    def _entered(self, module: Any, inputs: object) -> None:
        del inputs
        import torch

        # A module without parameters (a loss) gains nothing of its own; without gradients it is no part of training.
        trains = not self._depth and module.training and torch.is_grad_enabled() and _has_parameters(module)
        if trains and not any(one() is module for one in self._outermost):
            self._outermost.append(weakref.ref(module))
        self._depth += 1

    def _left(self, _module: Any, _inputs: object, _output: object) -> None:
        self._depth -= 1

    def _after_step(self, _step: int) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        models = [model for one in self._outermost if (model := one()) is not None]
        self._outermost = []
        for model in models:
            self._compile(model)

    def _compile(self, model: Any) -> None:
        import torch
        import torch._dynamo

        name = type(model).__name__
        if model._compiled_call_impl is not None or isinstance(model, torch._dynamo.OptimizedModule):
            self._refuse(f"{name} is compiled already")
        elif "cuda_graphs" in self._names and any(one.device.type != "cuda" for one in model.parameters()):
            self._refuse(f"{name} is not on a GPU")
        else:
            torch._dynamo.config.suppress_errors = True  # what can't be compiled runs as it is
            model.compile(mode=self._mode)
            self._ledger.seen(COMPILE, self._mode, name)
            for knob in self._names:
                self._ledger.applied(knob)

    def _refuse(self, why: str) -> None:
        for knob in self._names:
            self._ledger.refused(knob, why)


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None


def _install(ledger: Ledger) -> None:
    wanted = ledger.wanted(COMPILE, GRAPHS)
    names = tuple(name for name, value in wanted.items() if value)
    if names:
        _Models(ledger, "reduce-overhead" if wanted.get(GRAPHS) else wanted[COMPILE], names)
    ledger.at_end.append(lambda: _look(ledger))


def _look(ledger: Ledger) -> None:
    """How many graphs were compiled, by whomever; without Dynamo none were."""
    import sys

    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    ledger.seen("torch.compiled_graphs", counters.get("stats", {}).get("unique_graphs", 0))


COMPILED_FAMILY = Family(
    "compiled",
    (
        Knob(
            name=COMPILE,
            takes="default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs",
            read=one_of(*MODES),
            allow="compile",
            alters="Rounding of fused operations and the random numbers of dropout; the second step compiles.",
            shown_by="test_compiled.py",
        ),
        Knob(
            name=GRAPHS,
            takes="true or false",
            read=boolean,
            allow="compile",
            alters="As torch.compile's reduce-overhead, which it is; memory of each captured graph stays taken.",
            shown_by="test_compiled.py",
        ),
    ),
    _install,
)


FAMILIES = (COMPILED_FAMILY, PRECISION_FAMILY)
