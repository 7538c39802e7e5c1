"""Reports read back from the file that `gpuscope analyze --json` wrote."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from gpuscope.errors import InputError
from gpuscope.report.older_reports import OLDEST, brought_up, is_readable
from gpuscope.schema.document import SCHEMA_VERSION, Report

_HEAD = 1 << 16


def read_report(path: Path, needed: Collection[str]) -> Report | None:
    """The report in a file, recognised by its head whatever the order of its keys; None where it is something else.

    Raises `InputError` for one that is cut off, of another schema, or without a key that the caller needs: what later
    versions added may be missing from an older file.
    """
    if not path.is_file():
        return None
    with path.open("rb") as handle:
        head = handle.read(_HEAD)
    if head.lstrip()[:1] != b"{" or b'"gpuscope_version"' not in head:
        return None
    try:
        document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: report is cut off or damaged, not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: no report of gpuscope analyze", hint="gpuscope analyze --json writes one")
    version = document.get("schema_version")
    if not is_readable(version):
        raise InputError(
            f"{path}: {f'a report of schema {version}' if version else 'no report of gpuscope analyze'}",
            hint=f"this gpuscope reads schemas {OLDEST} to {SCHEMA_VERSION}; analyse the trace again",
        )
    missing = sorted(set(needed) - set(document))
    if missing:
        raise InputError(f"{path}: a report without {', '.join(missing)}", hint="analyse the trace again")
    document = brought_up(document)
    _check_types(document, path)
    return cast(Report, document)


def _check_types(document: dict[str, Any], path: Path) -> None:
    """Raise `InputError` where a section is not of its declared type."""
    for name, kind in get_type_hints(Report).items():
        if name not in document:
            continue
        try:
            msgspec.convert(document[name], kind)
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: {name}: {error}", hint="analyse the trace again") from error
    if not _holds_usual_numbers(document):
        raise InputError(f"{path}: holds numbers beyond 64 bits", hint="analyse the trace again")


_LIMIT = 1 << 63


def _holds_usual_numbers(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_holds_usual_numbers, inner)) and not (isinstance(value, int) and abs(value) >= _LIMIT)
