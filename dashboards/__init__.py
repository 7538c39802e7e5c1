"""The interactive Dash application: not built yet. What it will show, `analyzers` computes."""
