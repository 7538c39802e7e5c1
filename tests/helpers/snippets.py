"""The Python in a page of the documentation: ```python blocks, and the sessions of ```pycon blocks."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

_BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def source_of(page: Path) -> str:
    """All of a page's Python as one module, in the order of the page; output is left out."""
    parser = doctest.DocTestParser()
    parts = []
    for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        parts.append(text if kind == "python" else "".join(one.source for one in parser.get_examples(text)))
    return "\n".join(parts)


def run(page: Path) -> doctest.TestResults:
    """Execute a page's Python in its order, in one namespace, and hold the sessions to the output that is shown.

    Raises what a ```python block raises; what differs in a session is printed and counted.
    """
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    names: dict[str, object] = {}
    for place, (kind, text) in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8"))):
        if kind == "python":
            exec(compile(text, f"{page.name}, block {place}", "exec"), names)
        else:
            test = parser.get_doctest(text, names, page.name, str(page), None)
            runner.run(test, clear_globs=False)
            names = test.globs
    return runner.summarize(verbose=False)
