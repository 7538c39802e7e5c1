"""Ids of components used in callbacks. Ids of one page start with its name."""

from __future__ import annotations

URL = "url"
QUERY = "query"
"""Store: the current query string, also after the address bar was only replaced."""
CONTENT = "content"
PROVIDER = "provider"
THEME = "theme"
THEME_BUTTON = "theme-button"
FILTER_RUN = "filter-run"
FILTER_RANKS = "filter-ranks"
FILTER_STEPS = "filter-steps"


def nav(path: str) -> dict[str, str]:
    """The link to the page at `path`."""
    return {"type": "nav", "path": path}


def extra(key: str) -> dict[str, str]:
    """A control whose value is `key` in the address (`View.extra`); a change redraws the page."""
    return {"type": "extra", "key": key}


def move(key: str) -> dict[str, str]:
    """A button of the timeline that moves its window."""
    return {"type": "timeline-move", "key": key}


TIMELINE_BOUNDS = "timeline-bounds"
TIMELINE_GRAPH = "timeline-graph"
TIMELINE_QUERY = "timeline-query"
TIMELINE_WINDOW = "timeline-window"
TIMELINE_EVENT = "timeline-event"
TIMELINE_SELECTED = "timeline-selected"
TIMELINE_TRACKS = "timeline-tracks"
TIMELINE_SEARCH = "timeline-search"
TIMELINE_FOUND = "timeline-found"
TIMELINE_EXPORT = "timeline-export"
TIMELINE_NOTE = "timeline-note"
RANKS_HEATMAP = "ranks-heatmap"
KERNELS_GRID = "kernels-grid"
