"""`gpuscope cache`: what is kept of traces for a second look, and removing it."""

from __future__ import annotations

import click

from gpuscope import cache


@click.command(short_help="Show or clear what is kept for a second look.")
@click.option("--clear", is_flag=True, help="Remove all of it.")
def command(clear: bool) -> None:
    """Show what is kept of large traces so that a second look at them is quick, or remove it.

    What was not used for longest goes first where more than 10 GB (or GPUSCOPE_CACHE_GB) would be kept.
    """
    if clear:
        files, size = cache.shrink(0)
        click.echo(f"Removed {files} files, {size / 1e6:,.0f} MB.")
        return
    entries = cache.entries()
    size = sum(entry.size for entry in entries)
    click.echo(f"{cache.folder()}")
    click.echo(f"{len(entries)} files, {size / 1e6:,.0f} MB of at most {cache.limit_bytes() / 1e6:,.0f} MB")
