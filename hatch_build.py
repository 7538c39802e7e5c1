"""Compiles the native core when gpuscope is built, where there is a C compiler; without one it is built without. The
README of a package gets the address of the repository in front of its links (`[tool.hatch.metadata.hooks.custom]`).

`python hatch_build.py` compiles it in place, in a clone. `GPUSCOPE_NATIVE=0` leaves it out, `GPUSCOPE_NATIVE=1` makes a
failure an error (as the wheels of a release are built).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import sys_tags

ROOT = Path(__file__).parent
NATIVE = Path("gpuscope") / "native"
_UNIX = ["-std=c11", "-O3", "-g0"]
"""Without debugging information there is no path of the building machine in it: equal sources, equal bytes."""


_LINK = re.compile(r"(?P<image>!?)\[(?P<words>[^\]]*)\]\((?P<to>[^)#:\s][^):\s]*)\)")
"""A Markdown link or image whose target lies in the repository."""


class ReadmeHook(MetadataHookInterface):
    """The long description of a package: the README, whose links lead to the repository once it has an address."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, self.config.get("address", ""))}


def absolute(text: str, address: str) -> str:
    """`text` with its relative links below `address`, in which `{kind}` is `blob` for pages and `raw` for images; as it
    is where there is no address."""

    def link(match: re.Match[str]) -> str:
        base = address.replace("{kind}", "raw" if match["image"] else "blob")
        return f"{match['image']}[{match['words']}]({base}{match['to']})"

    return _LINK.sub(link, text) if address else text


class NativeBuildHook(BuildHookInterface[Any]):
    """Adds the compiled core to a wheel, or puts it into the tree of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("GPUSCOPE_NATIVE") == "0":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="gpuscope-native-")
        built = compiled_or_none(Path(self._folder.name))
        if built is None:
            return
        if version == "editable":
            in_place(built)
            return
        # One for every Python from 3.11 on: the core keeps to the stable ABI.
        platform = next(tag.platform for tag in sys_tags() if not tag.platform.startswith(("manylinux", "musllinux")))
        build_data["force_include"][str(built)] = (NATIVE / built.name).as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def in_place(built: Path) -> Path:
    """Put the compiled core into the tree, by a rename: a process that has the old one loaded goes on with that."""
    target = ROOT / NATIVE / built.name
    new = target.with_name(f"{target.name}.{os.getpid()}.new")
    shutil.copy2(built, new)
    return new.replace(target)


def compiled_or_none(folder: Path) -> Path | None:
    """The compiled core in `folder`; None, and a word on it, where that fails and need not succeed."""
    try:
        return compiled(folder)
    except Exception as error:  # of whatever kind: setuptools has many for a compiler that is missing
        if os.environ.get("GPUSCOPE_NATIVE") == "1":
            raise
        print(f"gpuscope: built without its native core ({error}); large traces are read more slowly", file=sys.stderr)
        return None


def compiled(folder: Path) -> Path:
    """Compile the core into `folder`."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    sources = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / NATIVE).glob("*.c"))
    extension = Extension(
        "gpuscope.native._core",
        sources,
        py_limited_api=True,
        extra_compile_args=["/O2", "/std:c11"] if os.name == "nt" else _UNIX,
    )
    command = build_ext(Distribution({"name": "gpuscope", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        command.run()
    finally:
        os.chdir(here)
    return Path(command.get_ext_fullpath("gpuscope.native._core"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="gpuscope-native-") as temporary:
        print(in_place(compiled(Path(temporary))))
