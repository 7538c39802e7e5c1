"""Who may ask: the token, the Host header, where a request comes from; and the content security policy.

A token is always asked for: on a login node, 127.0.0.1 is open to every user of the machine.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode, urlsplit

from flask import Flask, Response, redirect, request
from werkzeug.wrappers import Response as BaseResponse

COOKIE = "gpuscope-token"
_DENIED = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>gpuscope</title><h1>A token is needed</h1>"
    "<p>Open the address that <code>gpuscope dashboard</code> printed when it started."
)


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own: `localhost`, or an address of a loopback network."""
    bare = host.removeprefix("[").removesuffix("]")
    if bare.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def split_host(header: str) -> tuple[str, str]:
    """Name and port of a Host header; 80 where it names no port."""
    name, _, port = header.rpartition(":")
    return (name, port) if name and port.isascii() and port.isdecimal() else (header, "80")


def cookie_name() -> str:
    """The cookie of this request's port: browsers send the cookies of all ports of a host to each of them."""
    return f"{COOKIE}-{split_host(request.host)[1]}"


def guard(server: Flask, token: str, local: bool, hashes: Callable[[], list[str]]) -> None:
    """Require `token` in every request, from this dashboard's own pages.

    With `local`, only requests to a loopback name are answered: a web page elsewhere can't point its host name at
    this machine (DNS rebinding). `hashes` are those of the inline scripts a page may run; all else comes from here.
    """

    @server.before_request
    def _check() -> BaseResponse | None:
        if local and not is_loopback(split_host(request.host)[0]):
            return Response("the request's host name is not this machine's", 403)
        if _from_elsewhere():
            return Response("the request comes from another site", 403)
        known = _same(request.cookies.get(cookie_name(), ""), token)
        if request.method == "GET" and "token" in request.args:
            if known or _same(request.args["token"], token):
                return _set_token_cookie(token)  # out of the address: that is sent around, and kept in histories
        elif known:
            return None
        return Response(_DENIED, 401, content_type="text/html; charset=utf-8")

    @server.after_request
    def _headers(response: Response) -> Response:
        scripts = " ".join(f"'{one}'" if not one.startswith("'") else one for one in hashes())
        response.headers["Content-Security-Policy"] = (
            f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
            "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        if request.path.startswith("/assets/") and "m" in request.args and response.status_code == 200:
            # Dash puts the time of the file's last change into the address: what it names never changes.
            response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def _from_elsewhere() -> bool:
    """Whether another site's page sent this request. Another port of this host counts as one, which cookies do not.

    A link to a page may be followed from anywhere; nothing but the page itself is then asked for.
    """
    origin = request.headers.get("Origin", "")
    if origin and urlsplit(origin).netloc != request.host:
        return True
    site = request.headers.get("Sec-Fetch-Site", "none")
    followed = request.method == "GET" and request.headers.get("Sec-Fetch-Dest") == "document"
    page = followed and not request.path.startswith(("/_dash", "/download", "/timeline-data", "/assets"))
    return site not in ("same-origin", "none") and not page


def _same(given: str, token: str) -> bool:
    # In constant time; as bytes, since what is given need not be ASCII.
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _set_token_cookie(token: str) -> BaseResponse:
    """The same address without the token, which is in a cookie from now on."""
    rest = [(key, value) for key, value in parse_qsl(request.query_string.decode(errors="replace")) if key != "token"]
    # One slash: a path of two would lead to another host.
    response = redirect("/" + request.path.lstrip("/\\") + ("?" + urlencode(rest) if rest else ""))
    response.set_cookie(cookie_name(), token, httponly=True, samesite="Strict")
    return response
