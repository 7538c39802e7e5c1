"""Access control: the token, the Host header, and the content security policy. Also escapes names for plotly."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from html import escape as html_escape
from urllib.parse import parse_qsl, urlencode

from flask import Flask, Response, redirect, request
from werkzeug.wrappers import Response as BaseResponse

from gpuscope.report.view import units

COOKIE = "gpuscope-token"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
_DENIED = (
    "<!doctype html><meta charset=utf-8><title>gpuscope</title><p>This dashboard asks for a token: "
    "open the address that <code>gpuscope dashboard</code> printed when it started."
)


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether a server listening there is reachable from this machine only."""
    return host in LOOPBACK or host.startswith("127.")


def plain(name: str) -> str:
    """A name from a trace as text in a plotly label or hover, which would read HTML in it."""
    return html_escape(units.clean(name), quote=False)


def guard(server: Flask, token: str | None, hashes: Callable[[], list[str]]) -> None:
    """Require `token` in every request; without one, serve only requests to a loopback name.

    The second blocks web pages elsewhere that point their own host name at this machine (DNS
    rebinding). `hashes` are those of the inline scripts a page may run; everything else comes from here.
    """

    @server.before_request
    def _check() -> BaseResponse | None:
        if token is None:
            name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
            return None if is_loopback(name) else Response("the request's host name is not this machine's", 403)
        if _same(request.cookies.get(COOKIE, ""), token):
            return None
        if request.method == "GET" and _same(request.args.get("token", ""), token):
            return _set_token_cookie(token)
        return Response(_DENIED, 401, content_type="text/html; charset=utf-8")

    @server.after_request
    def _headers(response: Response) -> Response:
        scripts = " ".join(f"'{one}'" if not one.startswith("'") else one for one in hashes())
        response.headers["Content-Security-Policy"] = (
            f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
            "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def _same(given: str, token: str) -> bool:
    # In constant time; as bytes, since what is given need not be ASCII.
    return hmac.compare_digest(given.encode(), token.encode())


def _set_token_cookie(token: str) -> BaseResponse:
    """The same address without the token, which is in a cookie from now on."""
    rest = [(key, value) for key, value in parse_qsl(request.query_string.decode()) if key != "token"]
    # One slash: a path of two would lead to another host.
    response = redirect("/" + request.path.lstrip("/") + ("?" + urlencode(rest) if rest else ""))
    response.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
    return response
