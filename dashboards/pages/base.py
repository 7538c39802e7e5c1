"""What a page is, what it is shown, and how pages are found."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from dash import Dash
from dash.development.base_component import Component

from dashboards.data.runs import OpenRun, Runs
from dashboards.state import View


@dataclass(frozen=True)
class Shown:
    """What a page draws: a run in a state of the view, among all runs, light or dark."""

    run: OpenRun
    view: View
    runs: Runs
    dark: bool


def _nothing(app: Dash, runs: Runs) -> None:
    """No callbacks."""


@dataclass(frozen=True)
class Page:
    """A page: `layout` draws it whenever run, filters or theme change; `register` adds its own callbacks once.

    A page keeps its state in the address (`View.extra`) or in a `dcc.Store` of its layout, never in a module.
    """

    path: str
    title: str
    order: int
    layout: Callable[[Shown], Component]
    register: Callable[[Dash, Runs], None] = _nothing


@cache
def pages() -> tuple[Page, ...]:
    """Every module of `dashboards.pages` that has a `PAGE`, in order."""
    package = import_module("dashboards.pages")
    found = (
        getattr(import_module(f"dashboards.pages.{info.name}"), "PAGE", None)
        for info in pkgutil.iter_modules(package.__path__)
    )
    return tuple(sorted((page for page in found if isinstance(page, Page)), key=lambda page: page.order))
