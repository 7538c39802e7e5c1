"""tests/ mirrors the packages: what tests a room is found under the room's name."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.import_graph import ROOT

TESTS = ROOT / "tests"
HOMES = {
    "analyzers": "analyzers",
    "cache": "gpuscope/cache",
    "callbacks": "gpuscope/callbacks",
    "dashboards": "dashboards",
    "problems": "gpuscope/problems",
    "report": "gpuscope/report",
    "runtime": "instrumented_runtime",
    "sources": "gpuscope/sources",
    "store": "gpuscope/store",
    "trace": "gpuscope/trace",
}


@pytest.mark.parametrize(("tests", "package"), HOMES.items())
def test_every_folder_of_tests_is_a_folder_of_its_package(tests: str, package: str) -> None:
    folders = {path.parent.relative_to(TESTS / tests) for path in (TESTS / tests).rglob("test_*.py")}
    assert folders
    assert not [str(folder) for folder in folders if not (ROOT / package / folder).is_dir()]


def test_no_test_of_the_analyzers_lies_loose() -> None:
    """They belong to a room."""
    assert not list((TESTS / "analyzers").glob("*.py"))


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    of_every_folder = ("__init__.py", "__main__.py", "conftest.py")
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name not in of_every_folder)
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.xdist_group("layout")
def test_tests_of_a_group_share_a_worker_of_xdist(request: pytest.FixtureRequest) -> None:
    """Else what they share is made once per worker; `--dist loadgroup` reads the group from the id."""
    grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@layout") == grouped
