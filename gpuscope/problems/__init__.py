"""Every problem of an input in one table: code, severity, words and what it means, by topic.

Whoever comes across one passes its record and the facts: `builder.problem(TRUNCATED, 1, file=path.name)`.
"""
