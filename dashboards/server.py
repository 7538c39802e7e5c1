"""The web server: werkzeug's threaded one, which Dash depends on.

Viewers of a dashboard are few and each request is short, so a thread per connection is enough; a front-end
server (TLS, many users) can run `create_app(...).server` as any WSGI application.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

from flask import Flask
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from gpuscope.errors import UsageError


class _SilentHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open: a page is dozens of requests

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


class Server(ThreadedWSGIServer):
    """Listens from the start; answers once `set_app` was called."""

    def set_app(self, app: Flask) -> None:
        self.app = app


def _no_app(*_: object) -> list[bytes]:
    raise RuntimeError("request before set_app")


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
        server = Server(host, bound.getsockname()[1], _no_app, _SilentHandler, fd=bound.fileno())
        try:
            yield server
        finally:
            server.server_close()


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + ("?" + urlencode({"token": token}) if token else "")
