"""Opening traces for a command, with a progress bar on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope.trace.trace import Trace


def open_with_progress(paths: tuple[str, ...], ranks: frozenset[int] | None, partial: bool, nsys: str | None) -> Trace:
    """`gpuscope.open_trace`, as the command line does it."""
    from gpuscope.commands.options import cache_wanted
    from gpuscope.progress import reading
    from gpuscope.sources.opening import inputs, open_inputs, total_size
    from gpuscope.sources.source import ReadOptions

    items = inputs(paths, ranks)
    with reading(total_size(items), "reading", files=len(items)) as progress:
        options = ReadOptions(partial, nsys, progress, cache=cache_wanted(), status=progress.say)
        return open_inputs(items, ranks, options, begun=progress.file)
