"""The frame of a page that follows something: its head, the theme, and a beat."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from gpuscope.dashboards import ids, theme
from gpuscope.dashboards.app import new_app
from gpuscope.words import units

EVERY_MS = 2_000
BEAT, SCHEME = "beat", "scheme"


def framed(name: str, body: list[Any]) -> Dash:
    """An application that follows what is called `name`: `BEAT` comes every two seconds, `SCHEME` is light or dark."""
    app = new_app()
    app.layout = _layout(name, body)
    for output in (Output(ids.PROVIDER, "forceColorScheme"), Output(SCHEME, "data")):
        app.clientside_callback(ClientsideFunction("gpuscope", "scheme"), output, Input(ids.THEME, "data"))
    app.clientside_callback(
        ClientsideFunction("gpuscope", "turn"),
        Output(ids.THEME, "data"),
        Input(ids.THEME_BUTTON, "n_clicks"),
        prevent_initial_call=True,
    )
    return app


def _layout(name: str, body: list[Any]) -> Component:
    head = [
        dmc.Title("gpuscope", order=1, size="h3"),
        html.Div(
            [
                dmc.Text(f"following {units.clean(name)}", size="sm"),
                dmc.Button("Light / dark", id=ids.THEME_BUTTON, variant="default", size="xs"),
            ],
            className="filters",
        ),
    ]
    return dmc.MantineProvider(
        id=ids.PROVIDER,
        theme=theme.MANTINE,
        children=[
            dcc.Store(id=ids.THEME, storage_type="local"),
            dcc.Store(id=SCHEME),
            dcc.Interval(id=BEAT, interval=EVERY_MS),
            html.Div([html.Header(head, className="frame-head"), html.Main(body)], className="live"),
        ],
    )
