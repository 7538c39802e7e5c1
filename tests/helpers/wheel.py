"""The wheel as a user has it: built from the tree, installed where nothing of the tree is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(source: Path, out: Path, **environment: str) -> Path:
    """The wheel of a source tree, built without a network."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, source]
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [wheel] = out.glob("*.whl")
    return wheel


class Installed:
    """An environment of its own whose only gpuscope is the wheel, with the libraries of this one."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        self.program = folder / "bin" / "gpuscope"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--no-index", "--no-compile", str(wheel)], capture_output=True, check=True)
        self.files = {path.name for path in self.site.iterdir()}
        """What the wheel brought."""
        # Folders alone: a .pth file within them, as an editable install leaves, is not followed from here.
        libraries = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
        (self.site / "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")

    def environment(self, home: Path) -> dict[str, str]:
        """Variables of a user who has set none, and whose files go to `home`."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSCOPE_", "PYTHON", "PYTEST"))}
        return {
            **own,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
            "VIRTUAL_ENV": str(self.python.parents[1]),
        }

    def run(self, *command: str | Path, at: Path) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder `at`."""
        return subprocess.run(
            list(map(str, command)), cwd=at, env=self.environment(at), capture_output=True, text=True, check=False
        )
