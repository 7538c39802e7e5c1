"""Ids of components used in callbacks. Ids of one page start with its name."""

from __future__ import annotations

URL = "url"
QUERY = "query"
"""Store: the current query string, also after the address bar was only replaced."""
DRAWN = "drawn"
"""Store: path, query and theme that the page was drawn for; not what its own parts have changed since."""
CONTENT = "content"
WITHOUT = "without"
"""Store: paths of the pages that have nothing of the run shown."""
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


TIMELINE = "timeline"
TIMELINE_ROWS = "timeline-rows"
"""The canvas's rows, which take the keys; made by assets/timeline."""
TIMELINE_SETUP = "timeline-setup"
TIMELINE_READY = "timeline-ready"
TIMELINE_EVENT = "timeline-event"
TIMELINE_FLOWS = "timeline-flows"
TIMELINE_RANGE = "timeline-range"
TIMELINE_DRAWER = "timeline-drawer"
TIMELINE_SELECTED = "timeline-selected"
TIMELINE_CHOSEN = "timeline-chosen"
TIMELINE_SEARCH = "timeline-search"
TIMELINE_FOUND = "timeline-found"
ADVICE_OUTCOME = "advice-outcome"
RANKS_HEATMAP = "ranks-heatmap"
KERNELS_GRID = "kernels-grid"
QUERY_SQL = "query-sql"
QUERY_RUN = "query-run"
QUERY_EXAMPLE = "query-example"
