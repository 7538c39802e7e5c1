"""The published form of what `--json` prints: a JSON Schema per kind of document."""
