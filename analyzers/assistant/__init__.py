"""What a coding assistant may ask of runs: a few questions with short answers, served by `gpuscope mcp`."""
