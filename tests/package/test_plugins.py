"""How parts are found in folders."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest

from gpuscope import plugins


@pytest.mark.parametrize("suffix", [".py", ".pyc"])
def test_parts_are_found_in_folders_below_also_where_there_is_only_bytecode(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"parts_of_{suffix[1:]}"
    for place in ("__init__.py", "within/__init__.py", "within/one.py"):
        source = tmp_path / package / place
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("\nPART = 1\n")
        if suffix == ".pyc":
            py_compile.compile(str(source), str(source.with_suffix(suffix)))
            source.unlink()
    for dangling in ("gone.py", ".#one.py"):
        (tmp_path / package / dangling).symlink_to("nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.listed(package, "PART") == [1]
