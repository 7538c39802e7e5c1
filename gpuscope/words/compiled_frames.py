"""How compiled functions are called (those that go on behind a graph break by the function that was broken), and whose
code they are."""

from __future__ import annotations

from gpuscope import when_used

_RESUMED = when_used.pattern(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")
LIBRARY = when_used.pattern(r"(?:.*/)?(?:site-packages|dist-packages|python3\.\d+)/")
"""What stands behind this is a library's own path, the same on every machine."""


def in_library(file: str | None) -> bool:
    """Whether a file belongs to an installed library or to Python, which nobody changes for a job."""
    return LIBRARY.match((file or "").replace("\\", "/")) is not None


def frame_place(function: str | None, file: str | None, line: int | None) -> str:
    """`f (train.py:6)`; `f (train.py, from line 9)` of one that goes on behind a graph break."""
    name = (file or "?").replace("\\", "/").rpartition("/")[2]
    if found := _RESUMED.match(function or ""):
        return f"{found['name']} ({name}, from line {found['line']})"
    at = f"{name}:{line if line is not None else '?'}"
    return f"{function} ({at})" if function else at
