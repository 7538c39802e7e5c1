"""Products of 32-bit floats at a lower precision inside."""

from __future__ import annotations

from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob, one_of
from gpuscope.instrumented_runtime.record.applied.ledger import Ledger

NAME = "torch.float32_matmul_precision"


def _install(ledger: Ledger) -> None:
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
    ledger.at_end.append(lambda: _look(ledger))


def _look(ledger: Ledger) -> None:
    import torch

    ledger.seen(NAME, torch.get_float32_matmul_precision())
    ledger.seen("torch.cudnn_allow_tf32", torch.backends.cudnn.allow_tf32)


FAMILY = Family(
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
    _install,
)
