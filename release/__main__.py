"""`make release`: builds wheel and sdist, checks what is in them, and uses the wheel in empty environments.

    python -m release                 everything; the outcome is printed and kept in dist/RELEASE.md
    python -m release --build-only    build, compare two builds, check the contents

`RELEASE_PYTHONS` names the Pythons to try, colon-separated; by default the oldest and the newest one that is found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from release.building import build_twice
from release.contents import check_contents
from release.environments import ROOT, audit, container_file, supported_pythons, try_wheel


def main() -> int:
    """Exit status 1 where something failed; what could not be tried is said and is no failure."""
    parser = argparse.ArgumentParser(prog="python -m release")
    parser.add_argument("--build-only", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuscope-release-") as folder:
        wheel, sdist, rows = build_twice(Path(folder))
        rows += check_contents(wheel, sdist)
        if not options.build_only and not any(row.failed for row in rows):
            for python in supported_pythons():
                for oldest in (True, False):
                    rows += try_wheel(wheel, python, Path(folder), oldest=oldest)
            rows += audit(wheel, Path(folder))
            rows += container_file(Path(folder))
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for made in (wheel, sdist):
            shutil.copy2(made, dist / made.name)
        text = "".join(f"| {row.what} | {row.outcome} | {row.detail} |\n" for row in rows)
        (dist / "RELEASE.md").write_text(f"| check | outcome | detail |\n|---|---|---|\n{text}", encoding="utf-8")
        print(f"{sum(row.failed for row in rows)} checks failed, {len(rows)} in all: dist/RELEASE.md")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
