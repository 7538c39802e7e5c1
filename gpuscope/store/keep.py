"""Keeping an analysis in the run store, which must never get in the analysis's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gpuscope.errors import GpuscopeError
from gpuscope.schema.document import Report
from gpuscope.store.location import located


def keep(
    report: Report, files: Sequence[Path], paths: Sequence[str], options: Mapping[str, Any], store: Path | None,
    label: str | None = None, remote: Sequence[str] = (), cache: bool = False,
) -> int | None:  # fmt: skip
    """Store a report and return the run's number; where that fails, warn on stderr and return None.

    `files` are those read on this machine, `remote` what identifies the content of those elsewhere; `cache` as
    `run_key` has it.
    """
    # A bug in the store must not cost an analysis that is done, so everything is caught here.
    try:
        from gpuscope.store.identity import run_key
        from gpuscope.store.store import opened

        with opened(located(store), write=True) as open_store:
            return open_store.add(report, run_key(files, options, remote, cache), paths, options, label)
    except Exception as error:
        said = error.message if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
        click.echo(f"Warning: this analysis is not stored: {said} (--no-store skips the store)", err=True)
        return None
