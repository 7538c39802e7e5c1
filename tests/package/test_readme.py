"""The README as a package shows it: with an address of the repository, no link depends on the repository beside it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "https://example.org/us/gpuscope/{kind}/main/"


@pytest.fixture(scope="module")
def hatch_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hatch_build"] = module
    spec.loader.exec_module(module)
    return module


def test_images_and_pages_get_the_address(hatch_build: ModuleType) -> None:
    text = "![a picture](docs/x.png) [a page](docs/y.md#part) [here](#part) [far](https://example.org/z)"
    assert hatch_build.absolute(text, ADDRESS) == (
        "![a picture](https://example.org/us/gpuscope/raw/main/docs/x.png) "
        "[a page](https://example.org/us/gpuscope/blob/main/docs/y.md#part) [here](#part) [far](https://example.org/z)"
    )
    assert hatch_build.absolute(text, "") == text


def test_the_readme_has_pictures_and_none_is_left_relative(hatch_build: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[[^\]]+\]\((?!https?:)[^)]+\)", text)
    left = re.findall(r"\]\((?!https?://|#)[^)]+\)", hatch_build.absolute(text, ADDRESS))
    assert left == []


def test_the_hook_gives_the_long_description(hatch_build: ModuleType) -> None:
    metadata: dict[str, dict[str, str]] = {}
    hatch_build.ReadmeHook(str(ROOT), {"address": ADDRESS}).update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert "(https://example.org/us/gpuscope/blob/main/docs/tutorial.md)" in metadata["readme"]["text"]


def test_the_readme_counts_the_samples_as_they_are() -> None:
    numbers = {"sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20}
    said = re.search(r"(\w+) runs are bundled", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    bundled = [path for path in (ROOT / "sample_traces").iterdir() if path.is_dir() and not path.name.startswith("_")]
    assert numbers[said[1].lower()] == len(bundled)
