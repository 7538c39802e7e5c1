"""The page type, what a page is given, and how pages are discovered."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dash import Dash
from dash.development.base_component import Component

from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.state import View
from gpuscope.plugins import listed
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Shown:
    """Input of a page: the run and view state, all runs, light or dark."""

    run: OpenRun
    view: View
    runs: Runs
    dark: bool


def _nothing(app: Dash, runs: Runs) -> None:
    """No callbacks."""


@dataclass(frozen=True)
class Page:
    """A page: `layout` is called whenever run, filters or theme change; `register` adds its callbacks once.

    A page keeps its state in the address (`View.extra`) or in a `dcc.Store` of its layout, never in a module.
    """

    path: str
    title: str
    order: int
    layout: Callable[[Shown], Component]
    register: Callable[[Dash, Runs], None] = _nothing
    has: Callable[[OpenRun], bool] = lambda _: True
    """Whether a run has what the page shows: else its link stands below the others."""


@cache
def pages() -> tuple[Page, ...]:
    """Every module of `gpuscope.dashboards.pages` that has a `PAGE`, in order."""
    return tuple(sorted(listed("gpuscope.dashboards.pages", "PAGE"), key=lambda page: page.order))
