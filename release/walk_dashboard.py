"""In an empty environment: the dashboard starts, answers with its token only, and serves its own files only."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("gpuscope"))
FOREIGN = "window.foreign = true"
"""What the working folder's files hold."""
OWN = {"/assets/gpuscope.js", "/assets/gpuscope.css", "/assets/timeline/timeline.js"}


def put_foreign_files(folder: Path) -> list[str]:
    """Files of a working folder under the names that web frameworks serve; their addresses."""
    (folder / "secret.txt").write_text(FOREIGN, encoding="utf-8")
    for name in ("assets", "static"):
        (folder / name).mkdir()
        (folder / name / "x.js").write_text(FOREIGN, encoding="utf-8")
        (folder / name / "secret.txt").symlink_to(folder / "secret.txt")
    return [f"/{name}/{file}" for name in ("assets", "static") for file in ("x.js", "secret.txt")]


def answer(opener: urllib.request.OpenerDirector, address: str) -> tuple[int, str]:
    try:
        found = opener.open(address, timeout=60)
    except urllib.error.HTTPError as refused:
        found = refused
    return int(found.status), found.read().decode()


with tempfile.TemporaryDirectory() as working:
    foreign = put_foreign_files(Path(working))
    command = [PROGRAM, "dashboard", str(Path(sys.argv[1]) / "ddp_slow_rank"), "--port", "0"]
    with subprocess.Popen(command, cwd=working, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            match = re.search(r"http://\S+", server.stdout.readline())
            assert match is not None
            place = match[0].partition("/?")[0]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            opener.open(match[0], timeout=60).read()
            while answer(opener, place + "/starting")[1].startswith(
                "{"
            ):  # how far reading is, until the dashboard is there
                time.sleep(0.2)
            page = answer(opener, place)[1]
            loaded = set(re.findall(r'(?:src|href)="(/assets/[^"?]*)', page))
            assert loaded >= OWN, f"the page lacks {OWN - loaded}"
            assert not loaded & set(foreign), f"the page runs files of the working folder: {loaded & set(foreign)}"
            missing = [path for path in loaded if answer(opener, place + path)[0] != 200]
            assert not missing, missing
            served = [path for path in foreign if FOREIGN in answer(opener, place + path)[1]]
            assert not served, served
            _, layout = answer(opener, place + "/_dash-layout")
            refused, _ = answer(urllib.request.build_opener(), place)
            assert refused == 401, refused
            print(
                f"page {len(page):,} bytes, {len(loaded)} own files and none of the working folder's, "
                f"layout {len(layout):,} bytes, 401 without the token"
            )
        finally:
            server.terminate()
