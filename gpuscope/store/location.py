"""Where the run store lies, and the options that say so."""

from __future__ import annotations

import os
from pathlib import Path

import click

ENV_STORE = "GPUSCOPE_STORE"

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar=ENV_STORE,
    help="The run store. [default: runs.db in the user's data folder]",
)


def default_store() -> Path:
    """`runs.db` in the user's data folder, as the operating system has it."""
    from platformdirs import user_data_path

    return user_data_path("gpuscope", appauthor=False) / "runs.db"


def located(store: Path | None) -> Path:
    """The store named, else the one of `GPUSCOPE_STORE`, else the default one."""
    named = store or os.environ.get(ENV_STORE)
    return Path(named) if named else default_store()
