"""Pure functions from parts of a report, or arrays, to plotly figures."""
