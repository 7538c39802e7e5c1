"""The command that the dashboard adds."""
