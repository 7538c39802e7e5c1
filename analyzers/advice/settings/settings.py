"""All settings that rules may propose, by name."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings import nccl_settings, other_settings, torch_settings
from gpuscope.analyzers.advice.settings.known import Known, settings_of

TABLES = (
    torch_settings,
    nccl_settings,
    other_settings,
    other_settings,
    other_settings,
    other_settings,
    other_settings,
    other_settings,
)
KNOWN: dict[str, Known] = {one.name: one for table in TABLES for one in settings_of(table)}
