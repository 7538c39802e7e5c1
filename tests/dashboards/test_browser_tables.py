"""What every table has: columns to hide, a copy, the whole text of the cell in focus; by the kernels' table."""

from __future__ import annotations

import pytest
from helpers.browser import Browser
from helpers.pair import SCRIPT

pytestmark = pytest.mark.xdist_group("browser")

HEADS = """return [...document.querySelector('.table').querySelectorAll('.ag-header-cell-text')]
    .map(one => one.innerText)"""
"""Of the first table."""
COPIES = (
    "window.copies = []; navigator.clipboard.writeText = (text) => { copies.push(text); return Promise.resolve(); }"
)


def test_columns_copy_and_the_whole_name(browser: Browser, served: str) -> None:
    browser.open(f"{served}/kernels?run=2", "/kernels", anew=True)
    browser.script(COPIES)
    browser.wait(lambda: {"kernel", "share"} <= set(browser.script(HEADS)))
    assert "mean" not in browser.script(HEADS)
    browser.find("[data-table=columns]").click()
    labels = "[...document.querySelectorAll('.table-columns label')]"
    for name in ("mean", "share"):
        browser.script(f"{labels}.find(one => one.innerText.trim() == arguments[0]).click()", name)
    browser.wait(lambda: "mean" in browser.script(HEADS) and "share" not in browser.script(HEADS))
    cell = f"[...document.querySelectorAll('.ag-cell.names')].find(one => {SCRIPT!r}.startsWith(one.innerText))"
    browser.script(f"{cell}.focus()")
    assert browser.wait(lambda: browser.text(".table-cell")) == SCRIPT
    browser.script(f"{cell}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'c', ctrlKey: true, bubbles: true}}))")
    browser.find("[data-table=copy]").click()
    of_cell, of_table = browser.wait(lambda: (found := browser.script("return copies")) and len(found) == 2 and found)
    assert of_cell == SCRIPT
    head, *rows = [line.split("\t") for line in of_table.split("\n")]
    assert head[:2] == ["kernel", "time"]
    assert SCRIPT in [row[0] for row in rows]
    assert all(len(row) == len(head) for row in rows)
    cut = """return [...document.querySelectorAll('.ag-cell.names')].filter(one => one.scrollWidth > one.clientWidth
        || one.scrollHeight > one.clientHeight + 1).map(one => one.innerText)"""
    assert browser.script(cut) == []
    assert browser.violations() == []
    assert browser.errors() == []
