"""`gpuscope cache`: what is kept of traces for a second look, and removing it."""

from __future__ import annotations

import click

from gpuscope.cache import cache_folder


@click.command(short_help="Show or clear what is kept for a second look.")
@click.option("--clear", is_flag=True, help="Remove all of it.")
def command(clear: bool) -> None:
    """Show what is kept of large traces so that a second look at them is quick, or remove it.

    What was not used for longest goes first where more than 10 GB (or GPUSCOPE_CACHE_GB) would be kept.
    """
    if clear:
        files, size = cache_folder.shrink(0)
        click.echo(f"Removed {files} files, {size / 1e6:,.0f} MB.")
        return
    entries = cache_folder.entries()
    size = sum(entry.size for entry in entries)
    click.echo(f"{cache_folder.folder()}")
    click.echo(f"{len(entries)} files, {size / 1e6:,.0f} MB of at most {cache_folder.limit_bytes() / 1e6:,.0f} MB")
