"""The web server: waitress, a production server with a pool of threads.

Requests of several viewers are answered side by side: numpy does the work and lets other threads run meanwhile. A
front-end server (TLS) can run `create_app(...).server` as any WSGI application.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from flask import Flask
from waitress import wasyncore
from waitress.server import create_server

from gpuscope.dashboards.web.limits import MAX_BODY, MAX_HEADERS
from gpuscope.errors import UsageError

THREADS = 8
"""Requests answered at once: a viewer has at most six connections open, and most requests are short."""


class Server:
    """Bound from the start; answers from `serve_forever` on, after `set_app`."""

    def __init__(self, bound: socket.socket) -> None:
        self.port: int = bound.getsockname()[1]
        self._bound = bound
        self._running: Any = None

    def set_app(self, app: Flask) -> None:
        """What answers the requests."""
        logging.getLogger("waitress").setLevel(logging.ERROR)  # it warns of queued requests, which a page has at times
        self._running = create_server(
            app, sockets=[self._bound], threads=THREADS, max_request_body_size=MAX_BODY,
            max_request_header_size=MAX_HEADERS, connection_limit=400, channel_timeout=60, ident="gpuscope",
            clear_untrusted_proxy_headers=True,
        )  # fmt: skip

    def serve_forever(self) -> None:
        """Answer until interrupted, or until `shutdown`."""
        self._running.run()

    def shutdown(self) -> None:
        """End `serve_forever`, from another thread."""
        running = self._running
        running.pull_trigger()  # wakes the loop
        running.trigger.pull_trigger(lambda: wasyncore.close_all(running._map, ignore_all=True))
        running.task_dispatcher.shutdown()


@contextmanager
def listen(host: str, port: int) -> Iterator[Server]:
    """A server bound to `host` and `port` (0: a free one). Raises `UsageError` if that fails."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"--host {host}: no such address: {error.strerror or error}") from error
    with bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            raise UsageError(
                f"port {port} on {host} is in use" if used else f"can't listen on {host}:{port}: {error.strerror}",
                hint="choose another with --port, or 0 for any free one",
            ) from error
        bound.listen(128)
        yield Server(bound)


def address(host: str, port: int, token: str) -> str:
    """What to open in a browser."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/?" + urlencode({"token": token})
