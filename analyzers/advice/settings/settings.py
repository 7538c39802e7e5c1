"""All settings that rules may propose, by name."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings import (
    deepspeed_settings,
    megatron_settings,
    nccl_settings,
    other_settings,
    torch_settings,
)
from gpuscope.analyzers.advice.settings.known import Known

KNOWN: dict[str, Known] = {
    name: known
    for module in (torch_settings, nccl_settings, deepspeed_settings, megatron_settings, other_settings)
    for name, known in module.SETTINGS.items()
}
