"""The report as JSON: keys in the order the schema declares, and never a NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpuscope.schema.document import SCHEMA_VERSION, Report


def dumps(report: Report) -> str:
    """The document of `--json`, indented, without a trailing newline.

    Numbers that JSON has no word for (NaN, infinities) become null; a lone surrogate, as invalid UTF-8 in
    a name leaves it, stays as its escape, so the text is always plain ASCII.
    """
    ordered = {key: report[key] for key in Report.__annotations__ if key in report}  # type: ignore[literal-required]
    return _text(ordered | report)  # keys of a later schema follow


def dumps_jobs(documents: Sequence[Mapping[str, Any]]) -> str:
    """The document of `--json` for a folder with jobs of several roles: `documents` are reports with their `role`."""
    return _text({"schema_version": SCHEMA_VERSION, "jobs": list(documents)})


def _text(document: dict[str, Any]) -> str:
    finite = _finite(document)
    # Indented by msgspec, since Python's own encoder is several times slower with `indent`.
    try:
        return msgspec.json.format(json.dumps(finite, allow_nan=False), indent=2)
    except msgspec.DecodeError:  # a lone surrogate
        return json.dumps(finite, allow_nan=False, indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | bool | int) or value is None:
        return value
    # numpy's scalars: their Python counterpart.
    return _finite(value.item())
