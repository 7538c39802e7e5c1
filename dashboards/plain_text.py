"""Names from traces as text where plotly would read HTML."""

from __future__ import annotations

from html import escape

from gpuscope.words import units


def plain(name: str) -> str:
    """A name from a trace for a plotly label or hover."""
    return escape(units.clean(name), quote=False)
