"""Read-only SQL over a run's tables: `gpuscope query`, the dashboard's query page and the assistants' tool."""
