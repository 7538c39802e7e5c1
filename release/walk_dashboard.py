"""In an empty environment: the dashboard starts, and answers with its token only."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("gpuscope"))
command = [PROGRAM, "dashboard", str(Path(sys.argv[1]) / "ddp_slow_rank"), "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        assert server.stdout is not None
        match = re.search(r"http://\S+", server.stdout.readline())
        assert match is not None
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = opener.open(match[0], timeout=60).read().decode()
        assert "gpuscope" in page
        layout = opener.open(match[0].partition("?")[0].rstrip("/") + "/_dash-layout", timeout=60).read()
        status = 200
        try:
            urllib.request.urlopen(match[0].partition("?")[0], timeout=60)
        except urllib.error.HTTPError as refused:
            status = refused.code
        assert status == 401, status
        print(f"page {len(page):,} bytes, layout {len(layout):,} bytes, 401 without the token")
    finally:
        server.terminate()
