"""The run store: every analysis in one SQLite file that any SQLite tool reads."""
