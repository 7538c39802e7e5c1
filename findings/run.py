"""Runs the findings, and writes their list.

    python findings/run.py [NAME …]     runs all of them, or these; prints what each saw, its time, and what changed
    python findings/run.py --list       writes README.md from the heads of the scripts

Each NAME.sh installs pinned packages in a temporary folder of its own, so a run needs a package index and a few
minutes. Exit status 1 if one of them sees something else than it states.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
PARTS = ("Expected", "Seen", "Version", "Matters")
OPENING = """\
# What real libraries do that one would not expect

Each script makes its own valid input, runs a public package without gpuscope, prints what it saw and fails if that has
changed since. `make findings` runs them all; they are no part of `make test`. What gpuscope makes of such recordings:
[formats](../docs/formats.md#what-recorders-do-that-one-would-not-expect).
This list is made by `python findings/run.py --list`.
"""


def head(script: Path) -> dict[str, str]:
    """The parts of a script's opening comment, each on one line."""
    comment = re.match(r"#!.*\n((?:# .*\n)+)", script.read_text(encoding="utf-8"))
    if not comment:
        raise SystemExit(f"{script}: begins with no comment that states {', '.join(PARTS)}")
    text = " ".join(line[2:].strip() for line in comment[1].splitlines())
    parts = re.split(rf"(?:^|\s)({'|'.join(PARTS)}): ", text)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def listing() -> str:
    rows = [(script.stem, head(script)) for script in sorted(FOLDER.glob("*.sh"))]
    table = [f"| [{name}]({name}.sh) | {part['Version']} | {part['Seen']} |" for name, part in rows]
    return "\n".join([OPENING, "| finding | seen with | what happens |", "|---|---|---|", *table]) + "\n"


def run(names: list[str]) -> bool:
    """Whether all of them still see what they state."""
    changed = []
    for script in sorted(FOLDER.glob("*.sh")):
        if names and script.stem not in names:
            continue
        begin = time.monotonic()
        done = subprocess.run(["bash", str(script)], capture_output=True, text=True, errors="replace", check=False)
        state = "as stated" if done.returncode == 0 else f"CHANGED (exit status {done.returncode})"
        print(f"{script.stem}: {state}, {time.monotonic() - begin:.0f} s", flush=True)
        if done.returncode:
            changed.append(script.stem)
            print("\n".join((done.stdout + done.stderr).splitlines()[-15:]), flush=True)
    print(f"changed: {', '.join(changed)}" if changed else "nothing changed")
    return not changed


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        (FOLDER / "README.md").write_text(listing(), encoding="utf-8")
    else:
        sys.exit(not run(sys.argv[1:]))
