"""Readers, one file per format; `open_trace` is the door.

A source is a module of this package with a `SOURCE`, or an entry point of the group `gpuscope.sources`
that loads one. It reads one file into a builder and tells it what it lost.
"""

from __future__ import annotations

from gpuscope.sources.base import ReadOptions, Source, all_sources, source_for
from gpuscope.sources.opening import inputs, open_trace, read_file

__all__ = ["ReadOptions", "Source", "all_sources", "inputs", "open_trace", "read_file", "source_for"]
