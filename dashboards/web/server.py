"""The web server: waitress, a production server with a pool of threads.

Requests of several viewers are answered side by side: numpy does the work and lets other threads run meanwhile. A
front-end server (TLS) can run `create_app(...).server` as any WSGI application.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from gpuscope.errors import UsageError

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

THREADS = 8
"""Requests answered at once: a viewer has at most six connections open, and most requests are short."""


MOST_CONNECTIONS = 300
"""Open at once. One more closes the one that has been without a request longest: browsers simply connect again, and who
holds connections open without asking anything keeps nobody out."""
MAX_BODY = 1 << 20
"""Bytes of a request's body: a callback sends the address and a few small stores."""
MAX_HEADERS = 1 << 15
"""Bytes of the request line and headers."""
RECEIVE_S = 20.0
"""Seconds within which a request must have arrived: what is sent byte by byte is closed, however active."""
IDLE_S = 60


class _Connection(HTTPChannel):  # type: ignore[misc]
    """Knows when the request that is being received began."""

    begun = 0.0

    def received(self, data: bytes) -> Any:
        if self.request is None:
            self.begun = time.time()
        return super().received(data)


class _Waitress(TcpWSGIServer):  # type: ignore[misc]
    """Closes what is slow on purpose, and makes room for new connections."""

    channel_class = _Connection

    def handle_accept(self) -> None:
        idle = [one for one in self.active_channels.values() if not one.requests and not one.will_close]
        too_many = max(len(self.active_channels) + 1 - MOST_CONNECTIONS, 0)
        for one in sorted(idle, key=lambda one: one.last_activity)[:too_many]:
            one.handle_close()
        super().handle_accept()

    def maintenance(self, now: float) -> None:
        super().maintenance(now)
        for one in self.active_channels.values():
            if one.request is not None and now - one.begun > RECEIVE_S:
                one.will_close = True


class Server:
    """Bound from the start; answers from `serve_forever` on, after `set_app`."""

    def __init__(self, bound: socket.socket) -> None:
        self.port: int = bound.getsockname()[1]
        self._bound = bound
        self._running: Any = None

    def set_app(self, app: WSGIApplication) -> None:
        """What answers the requests."""
        logging.getLogger("waitress").setLevel(logging.ERROR)  # it warns of queued requests, which a page has at times
        bound = self._bound
        rules = Adjustments(
            sockets=[bound],
            threads=THREADS,
            max_request_body_size=MAX_BODY,
            max_request_header_size=MAX_HEADERS,
            connection_limit=2 * MOST_CONNECTIONS,
            channel_timeout=IDLE_S,
            ident="gpuscope",
            clear_untrusted_proxy_headers=True,
            log_socket_errors=False,
        )
        rules.cleanup_interval = RECEIVE_S / 4
        threads = ThreadedTaskDispatcher()
        threads.set_thread_count(THREADS)
        self._running = _Waitress(
            app,
            map={},
            _sock=bound,
            dispatcher=threads,
            adj=rules,
            bind_socket=False,
            sockinfo=(bound.family, bound.type, bound.proto, bound.getsockname()),
        )

    def serve_forever(self) -> None:
        """Answer until interrupted, or until `shutdown`."""
        self._running.run()

    def shutdown(self) -> None:
        """End `serve_forever`, from another thread."""
        running = self._running
        # One pull only: after the first the loop may have closed the trigger.
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
