"""docs/gallery.md shows what the program prints today for public traces, where these are at hand."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from helpers import needs

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "gallery.md"]
BLOCK = re.compile(r"<!-- public: (?P<path>.+?) -->\n(?P<shown>.*?)\n<!-- end -->", re.DOTALL)
SHOWN = {match["path"]: match["shown"] for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}


def test_there_are_reports_of_many_kinds_of_jobs() -> None:
    assert len(SHOWN) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("path", SHOWN)
def test_a_report_is_what_the_program_prints(path: str, generate: ModuleType) -> None:
    if not (generate.PUBLIC / path).exists():
        pytest.skip(needs.PUBLIC_TRACES)
    assert generate.public(path) == SHOWN[path], "run `make docs` and look at what changed"
