"""What a dashboard answers while its runs are still read: how far that is, on a page that becomes the dashboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, jsonify
from markupsafe import escape

from gpuscope.dashboards.web import access
from gpuscope.progress import Reading
from gpuscope.words import units

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

STATE = "/starting"
_SCRIPT = """\
const show = (id, text) => { document.getElementById(id).textContent = text; };
async function ask() {
  try {
    const answer = await fetch("/starting");
    if (!(answer.headers.get("content-type") || "").startsWith("application/json")) return location.reload();
    const now = await answer.json();
    show("now", now.said);
    show("passed", now.passed);
    if (now.share !== null) document.getElementById("bar").value = now.share;
  } catch {
    return show("now", "It has ended: its terminal says why.");
  }
  setTimeout(ask, 200);
}
ask();
"""
_STYLE = """\
:root { color-scheme: light dark; }
body { font: 15px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; max-width: 46rem; margin: 12vh auto;
  padding: 0 1rem; }
progress { width: 100%; height: 1rem; } li { overflow-wrap: anywhere; }
"""


class Starting:
    """A WSGI application: at first the page of what is going on, then whatever the work has made."""

    def __init__(self, paths: Sequence[str], token: str, local: bool) -> None:
        self.progress: Reading | None = None
        """How far reading is; set by the work."""
        self.told = ""
        """What is known of the first run once all are read: shown while the pages are made."""
        self._paths = paths
        self._begun = time.monotonic()
        self._page = self._made(token, local)
        self._ready: WSGIApplication | None = None
        self._failed: BaseException | None = None
        self._over = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return (self._ready or self._page.wsgi_app)(environ, start_response)

    def begin(self, work: Callable[[], WSGIApplication], failed: Callable[[], None]) -> None:
        """Do the work beside the server; `failed` is called where it ends with an exception (`end`)."""

        def run() -> None:
            try:
                self._ready = work()
            except BaseException as error:  # raised again where the program waits
                if not self._over:
                    self._failed = error
                    failed()

        Thread(target=run, daemon=True).start()

    def file(self, name: str) -> None:
        """The next file begins. Raises `KeyboardInterrupt` where nobody waits for it any more."""
        if self._over:
            raise KeyboardInterrupt
        if self.progress is not None:
            self.progress.file(name)

    def end(self) -> None:
        """Let go of the work at its next file, and raise what it has ended with."""
        self._over = True
        if self._failed is not None:
            raise self._failed

    def _made(self, token: str, local: bool) -> Flask:
        server = Flask(__name__, static_folder=None)

        @server.get(STATE)
        def _state() -> Response:
            return jsonify(self._state())

        @server.get("/starting.js")
        def _script() -> Response:
            return Response(_SCRIPT, content_type="text/javascript; charset=utf-8")

        @server.get("/", defaults={"path": ""})
        @server.get("/<path:path>")
        def _any(path: str) -> Response:
            if path.startswith(("_", "assets/", "download/", "timeline-data/")):
                return Response("the runs are still being read", 503, {"Retry-After": "1"})
            names = "".join(f"<li>{escape(units.clean(Path(one).name or one))}" for one in self._paths)
            return Response(
                '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>gpuscope</title>'
                f"<style>{_STYLE}</style></head><body><main><h1>gpuscope</h1><ul>{names}</ul>"
                '<progress id="bar" max="1" value="0" aria-labelledby="now"></progress>'
                '<p><b id="now" role="status">Starting</b> <span id="passed"></span></p></main>'
                '<script src="/starting.js"></script></body></html>',
                content_type="text/html; charset=utf-8",
            )

        access.guard(server, token, local, list)
        return server

    def _state(self) -> dict[str, Any]:
        """What is going on, in words and as a share of the bytes."""
        passed = f"{round(time.monotonic() - self._begun)} s so far"
        progress = self.progress
        if self.told:
            return {"said": units.clean(self.told), "share": 1, "passed": passed}
        if progress is None:
            return {"said": "Starting", "share": None, "passed": passed}
        done, total = progress.done_bytes, max(progress.total_bytes or 0, progress.done_bytes, 1)
        doing = "Analysing" if done == total else "Reading"
        several = progress.files > 1 and progress.begun_files
        of = f" (file {progress.begun_files} of {progress.files})" if several else ""
        said = f"{doing} {units.clean(progress.label)}{of}: {units.size(done)} of {units.size(total)} read."
        return {"said": said, "share": done / total, "passed": passed}
