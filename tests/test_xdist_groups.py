"""Tests that share what is dear to make share a worker of pytest-xdist."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("layout")
def test_tests_of_a_group_share_a_worker_of_xdist(request: pytest.FixtureRequest) -> None:
    """Else what they share is made once per worker; `--dist loadgroup` reads the group from the id."""
    grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@layout") == grouped
