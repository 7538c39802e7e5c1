"""The documentation as a site: a page per cause and per suggestion, made from their records, and no dead link."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from gpuscope.analyzers.advice.rule import rules
from gpuscope.catalogue.suggestion import CAUSES

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_cause_has_a_page_that_says_how_it_is_recognised_and_verified(site: ModuleType) -> None:
    pages = site.generated_pages()
    for code in {cause.finding_code for cause in CAUSES}:
        page = pages[f"causes/{code}.md"]
        assert all(f"\n## {heading}\n" in page for heading in ("How it is recognised", "How to verify")), code
        assert f"(`{code}.md`)" in page or f"`{code}`" in pages["causes/index.md"]
    assert "enumerate(DataLoader)" in pages["causes/input.md"]
    assert "(../suggestions/loader_workers.md)" in pages["causes/input.md"]


def test_every_suggestion_has_a_page_made_of_its_record(site: ModuleType) -> None:
    pages = site.generated_pages()
    for record in (record for rule in rules() for record in rule.records):
        page = pages[f"suggestions/{record.code}.md"]
        headings = ("What it sets", "When it is suggested", "What would mislead it", "Risk", "How to verify")
        assert [heading for heading in headings if f"\n## {heading}\n" not in page] == []
        assert record.sets[1:] in page
    loader = pages["suggestions/loader_workers.md"]
    assert "each worker is a process with its own memory" in loader.lower()
    assert "gpuscope diff BEFORE AFTER --suggestion loader_workers" in loader


def test_every_suggestion_says_what_it_risks_and_how_it_is_proved(site: ModuleType) -> None:
    """With figures of the run left open."""
    pages = site.generated_pages()
    assert "- Holds parameters of up to … more unsharded\n" in pages["suggestions/fsdp_prefetch.md"]
    silent = [place for place, page in pages.items() if place.startswith("suggestions/") and "## Risk\n\n\n" in page]
    assert silent == []


def test_links_fit_the_page_they_stand_on(site: ModuleType) -> None:
    source = DOCS / "findings.md"
    text = "[a](definitions.md#verdict), `[b](c.md)`, [d](https://x.org), [e](../CHANGELOG.md), [`f`](#here)"
    assert site.moved(text, source, "causes/input.md") == (
        "[a](../definitions.md#verdict), `[b](c.md)`, [d](https://x.org), [e](../CHANGELOG.md), [`f`](#here)"
    )
    with pytest.raises(ValueError, match="not on the site"):
        site.moved("[code](../gpuscope/cli.py)", source, "findings.md")


def test_the_site_builds_without_a_warning(site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zensical")
    monkeypatch.setattr(site, "PAGES", tmp_path / "site-pages")
    assert site.main() == 0
    built = tmp_path / "site"
    assert "data loader" in (built / "causes" / "input.html").read_text(encoding="utf-8")
    assert (built / "index.html").exists()
