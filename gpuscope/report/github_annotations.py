"""Checks as annotations of GitHub Actions: workflow commands, one per line.

Escapes as in GitHub's own toolkit (actions/toolkit, packages/core/src/command.ts).
"""

from __future__ import annotations

from gpuscope.schema.diff_document import CheckCase

_LEVEL = {"failed": "error", "skipped": "warning", "passed": "notice"}


def annotation(case: CheckCase) -> str:
    """`::error title=gpuscope, step time::Regression: …`."""
    title = _escaped(f"gpuscope: {case['name']}").replace(":", "%3A").replace(",", "%2C")
    return f"::{_LEVEL[case['status']]} title={title}::{_escaped(case['message'])}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
