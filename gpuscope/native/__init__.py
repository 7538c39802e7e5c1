"""The functions that are worth compiling: each is the compiled one (`compiled.py`) where the core was built, else the
one in Python (`plain.py`), with equal results. Nothing else chooses between them.

`COMPILED` is for the reader of Kineto traces, whose twin is no function but the whole of the JSON reader.
"""

from __future__ import annotations

from gpuscope.native.loaded import core

COMPILED = core is not None

if COMPILED:
    from gpuscope.native.compiled import (
        add_launched,
        group,
        in_order,
        innermost,
        intersect,
        longest_path,
        note_end,
        note_issue,
        parents,
        places,
        release_memory,
        table_columns,
        table_pages,
        union,
    )
else:
    from gpuscope.native.fallback import (
        add_launched,
        group,
        in_order,
        innermost,
        intersect,
        longest_path,
        note_end,
        note_issue,
        parents,
        places,
        release_memory,
        table_columns,
        table_pages,
        union,
    )

__all__ = [
    "COMPILED",
    "add_launched",
    "core",
    "group",
    "in_order",
    "innermost",
    "intersect",
    "longest_path",
    "note_end",
    "note_issue",
    "parents",
    "places",
    "release_memory",
    "table_columns",
    "table_pages",
    "union",
]
