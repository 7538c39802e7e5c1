"""Attacks on a dashboard, each of which must fail: access, request size, malformed state, formulas in a CSV."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import pytest
from flask import Flask
from helpers.dashboards import TOKEN, UPDATE, request_of, serve, viewer

from gpuscope.dashboards.app import create_app
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.live import create_live_app
from gpuscope.dashboards.state import MalformedStateError, parse
from gpuscope.dashboards.ui import pages
from gpuscope.dashboards.web import downloads, server
from gpuscope.dashboards.web.access import COOKIE, is_loopback, new_token
from gpuscope.dashboards.web.downloads import csv
from gpuscope.dashboards.web.server import MAX_BODY
from gpuscope.dashboards.web.timeline_data import MAX_ADDRESS, address


@pytest.mark.parametrize(
    "host", ["127.evil.com", "127.0.0.1.evil.com", "localhost.evil.com", "0.0.0.0", "::", "10.0.0.1", "", "2130706433"]
)
def test_a_name_that_only_looks_like_loopback_is_none(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LocalHost"])
def test_loopback_by_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "127.evil.com",
        "elsewhere.example",
        "127.evil.com:8050",
        "localhost:80@evil.com",
        "localhost:evil.com",
        "localhost@evil.com",
        "[::1]evil.com:80",
        "127.0.0.1%00.evil.com",
        "localhost.evil.com:8050",
    ],
)
def test_another_host_name_is_refused_even_with_the_token(pair: OpenRun, host: str) -> None:
    assert viewer(pair).get(f"/?token={TOKEN}", headers={"Host": host}).status_code in (400, 403)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/?token=wrong",
        "/?token=%C3%A4",
        "/?token=%ed%a0%80",
        "/_dash-layout",
        "/_dash-dependencies",
        "/assets/gpuscope.js",
        "/download/2/ranks.csv",
        "/download/2/perfetto.json.gz",
    ],
)
def test_without_the_token_nothing_is_answered_on_loopback_either(pair: OpenRun, path: str) -> None:
    stranger = create_app(Runs([pair]), TOKEN).server.test_client()
    assert stranger.get(path).status_code == 401
    assert stranger.post(f"{UPDATE}?token={TOKEN}", json={}).status_code == 401


def test_tokens_are_long_and_differ() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) >= 40


def test_the_token_becomes_a_cookie_of_this_port_and_leaves_the_address(pair: OpenRun) -> None:
    client = create_app(Runs([pair]), TOKEN).server.test_client()
    answer = client.get(f"/timeline?run=2&token={TOKEN}", base_url="http://localhost:8050")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/timeline?run=2")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"{COOKIE}-8050=")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/", base_url="http://localhost:8050").status_code == 200
    assert client.get("/", base_url="http://localhost:8051").status_code == 401  # browsers send it to all ports
    # Nor does it stay there later, when the cookie is known already; a wrong one is taken out as well.
    for later in (TOKEN, "wrong"):
        again = client.get(f"/timeline?run=2&token={later}", base_url="http://localhost:8050")
        assert (again.status_code, again.headers["Location"]) == (302, "/timeline?run=2")
    # Nor does the redirect lead to another host.
    away = client.get("/", query_string={"token": TOKEN}, environ_overrides={"PATH_INFO": "//elsewhere.example/"})
    assert away.headers["Location"] == "/elsewhere.example/"


@pytest.mark.parametrize("path", ["/download/2/perfetto.json.gz", "/download/2/ranks.csv", "/_dash-layout"])
@pytest.mark.parametrize(
    "sent",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "document"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "null"},
    ],
)
def test_other_sites_start_no_export(pair: OpenRun, path: str, sent: dict[str, str]) -> None:
    """Another port of localhost is the same site to a browser: its cookies come along."""
    client = viewer(pair)
    assert client.get(path, headers=sent).status_code == 403
    assert client.get(path, headers={"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}).status_code == 200


def test_a_link_from_elsewhere_opens_a_page(pair: OpenRun) -> None:
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"}
    assert viewer(pair).get("/timeline?run=2", headers=sent).status_code == 200


def test_a_body_of_100_megabytes_is_refused_before_it_is_read(served: str) -> None:
    place = urlsplit(served)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    connection.putrequest("POST", UPDATE)
    connection.putheader("Cookie", f"{COOKIE}-{place.port}={TOKEN}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(100_000_000))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_long_bodies_and_addresses_are_refused(pair: OpenRun) -> None:
    client = viewer(pair)
    assert client.post(UPDATE, data=b" " * (MAX_BODY + 1), content_type="application/json").status_code == 413
    assert client.get("/timeline?find=" + "a" * MAX_ADDRESS).status_code == 414


@pytest.mark.parametrize(
    "search", [5, ["?run=1"], {"run": 1}, True, "?" + "&".join(f"a{i}=1" for i in range(99)), "?find=" + "x" * 2000]
)
def test_a_malformed_state_is_a_bad_request(pair: OpenRun, search: object) -> None:
    assert request_of(viewer(pair), search).status_code == 400
    assert request_of(viewer(pair), "", ["path"]).status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        "",
        "level=5",
        "level=99&first=0&last=1&tracks=0",
        "level=5&first=0&last=9999999&tracks=0",
        "level=5&first=9&last=0&tracks=0",
        "level=5&first=0&last=1&tracks=0-99999999",
        "level=5&first=0&last=1&tracks=x",
        "level=50&first=99999999999&last=100000000000&tracks=0",
        "level=5&first=0&last=1&tracks=" + ",".join(["0-3"] * 200),
        "level=5&first=0&last=64&tracks=" + ",".join(["0"] * 399),
        "level=٥&first=0&last=1&tracks=0",
    ],
)
def test_what_is_no_window_of_a_timeline_is_a_bad_request(pair: OpenRun, query: str) -> None:
    client = viewer(pair)
    assert client.get(f"{address('2')}/cells?{query}").status_code == 400
    assert client.get(f"{address('2')}/next?{query}").status_code == 400
    assert client.get(f"{address('9')}/cells?level=5&first=0&last=1&tracks=0").status_code == 404
    assert client.get("/timeline-data/2/another/cells?level=5&first=0&last=1&tracks=0").status_code == 404


@pytest.mark.parametrize(
    "search",
    [
        "?ranks=x&steps=9-3&from=5&to=4",
        "?from=" + "9" * 900 + "&to=1",
        "?event=d" + "9" * 30,
        "?event=d١",
        "?event=\x00",
        "?mark=1:" + "9" * 30,
        "?steps=0-" + "9" * 30,
        "?ranks=99999999999999999999",
        "?run=%00&tracks=%ff",
        "?%ed%a0%80=1",
        "?memory=999&bucket=99&micro=x&replaced=9999999",
    ],
)
def test_a_mistyped_address_still_opens(pair: OpenRun, search: str) -> None:
    client = viewer(pair)
    for page in pages():
        answer = request_of(client, search, page.path)
        assert answer.status_code == 200
        assert "can't be drawn" not in answer.get_data(as_text=True)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 100_000,
        '{"output":' * 50_000,
        '{"output": 5}',
        '{"output": "nothing.here"}',
        '"text"',
        '{"output": "..content.children.."}',
    ],
)
def test_what_no_page_sends_is_a_bad_request(pair: OpenRun, body: str) -> None:
    assert viewer(pair).post(UPDATE, data=body, content_type="application/json").status_code == 400


@pytest.mark.parametrize(
    "more",
    [
        {"inputs": []},
        {"inputs": "x"},
        {"inputs": [1, 2, 3]},
        {"state": None},
        {"outputs": []},
        {"outputs": 7},
        {"changedPropIds": 3},
        {"changedPropIds": [[]]},
        {"output": "..content.children..."},
    ],
)
def test_a_callback_that_is_not_ours_is_a_bad_request(pair: OpenRun, more: dict[str, object]) -> None:
    assert request_of(viewer(pair), "", **more).status_code == 400


def test_a_window_that_is_none_is_not_exported(pair: OpenRun) -> None:
    client = viewer(pair)
    for query in ("from=5&to=4", "from=x&to=9", "ranks=-1", "ranks=0-9999999", "steps=a", "from=1&to=" + "9" * 40):
        assert client.get(f"/download/2/perfetto.json.gz?{query}").status_code == 400, query


def test_a_huge_set_of_ranks_costs_nothing() -> None:
    begun = time.process_time()
    for text in (",".join(["0-1048575"] * 90), "0-1048576", ",".join(["0-65535"] * 2)):
        view = parse(f"?ranks={text}")
        assert view.ranks is None
        assert "ranks" in view.wrong["ranks"]
    with pytest.raises(MalformedStateError):
        parse("?ranks=" + ",".join(["0-1048575"] * 200))
    assert time.process_time() - begun < 1  # it was 5 s


@pytest.mark.parametrize("cell", ["=1+1", "＝1+1", "\n=1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_formulas_in_a_csv_are_text(cell: str) -> None:
    with Flask("none").app_context():
        lines = csv(pd.DataFrame({"name": [cell, "gemm"], "change": [-5, 7]}), "kernels").get_data(as_text=True)
    assert f"'{cell.strip()}" in lines or f"'{cell}" in lines
    assert "gemm,7" in lines
    assert ",-5" in lines  # numbers stay numbers


def test_headers_of_every_answer(pair: OpenRun) -> None:
    for path in ("/", "/download/2/ranks.csv", "/download/2/nope.csv"):
        sent = viewer(pair).get(path).headers
        assert "frame-ancestors 'none'" in sent["Content-Security-Policy"]
        assert sent["X-Content-Type-Options"] == "nosniff"


def test_answers_are_compressed(pair: OpenRun) -> None:
    client = viewer(pair)
    for path in ("/_dash-layout", "/assets/gpuscope.js"):
        assert client.get(path, headers={"Accept-Encoding": "gzip"}).headers["Content-Encoding"] == "gzip"
    assert json.loads(client.get("/_dash-layout").get_data())


def slow(port: int, text: bytes = b"GET / HTTP/1.1\r\n") -> socket.socket:
    """A connection whose request never ends."""
    made = socket.create_connection(("127.0.0.1", port), timeout=10)
    made.sendall(text)
    return made


def test_connections_that_ask_nothing_keep_nobody_out(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty of them, where forty may be open: a viewer is answered, before and after they have been closed."""
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 40)
    place = urlsplit(served)
    assert place.hostname is not None
    assert place.port is not None
    with ExitStack() as stack:
        for text in [b"GET / HTTP/1.1\r\n"] * 30 + [b""] * 30:
            stack.enter_context(slow(place.port, text))
        for _ in range(3):
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
            connection.request("GET", "/", headers={"Cookie": f"{COOKIE}-{place.port}={TOKEN}"})
            assert connection.getresponse().status == 200
            connection.close()


def test_a_request_that_is_sent_byte_by_byte_is_cut_off(pair: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """However active it is."""
    monkeypatch.setattr(server, "RECEIVE_S", 0.8)
    for address_ in serve(Runs([pair])):
        port = urlsplit(address_).port
        assert port is not None
        with slow(port) as attacker:
            begun = time.monotonic()
            assert _cut_off(attacker, begun + 20), "it is still connected"


def _cut_off(attacker: socket.socket, until: float) -> bool:
    """Whether the server closes a connection on which a byte is sent every tenth of a second."""
    while time.monotonic() < until:
        try:
            attacker.sendall(b"a")
        except OSError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("chunks", [b"100000\r\n", b"FFFFFFFFFFFFFFFF\r\n", b"zz\r\n"])
def test_a_body_in_chunks_is_limited_too(served: str, chunks: bytes) -> None:
    """It names no length beforehand."""
    place = urlsplit(served)
    assert place.port is not None
    head = f"POST {UPDATE} HTTP/1.1\r\nHost: 127.0.0.1:{place.port}\r\nCookie: {COOKIE}-{place.port}={TOKEN}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with slow(place.port, head.encode() + chunks) as attacker:
        with suppress(OSError):
            for _ in range(2):
                attacker.sendall(b" " * (1 << 20) + b"\r\n100000\r\n")
        with suppress(ConnectionError):
            assert attacker.recv(64).split()[1] in (b"400", b"413")


@pytest.mark.parametrize(
    "path",
    [
        "/_dash-component-suites/os/os.py",
        "/_dash-component-suites/dash/../../app.py",
        "/_dash-component-suites/dash/deps/..%2f..%2fdash.py",
        "/timeline-data/../x/cells",
        "//etc/passwd",
        "/download/2/%00.csv",
    ],
)
def test_no_path_leads_to_a_file(pair: OpenRun, path: str) -> None:
    answer = viewer(pair).get(path)
    assert answer.status_code in (400, 403, 404) or b"react-entry-point" in answer.data
    assert b"import " not in answer.data
    assert b"root:" not in answer.data


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"])
def test_other_methods_change_nothing_and_need_the_token(pair: OpenRun, method: str) -> None:
    assert create_app(Runs([pair]), TOKEN).server.test_client().open("/", method=method).status_code == 401
    assert viewer(pair).open("/download/2/ranks.csv", method=method).status_code in (200, 405)


def test_exports_beyond_the_limit_are_put_off_and_block_nobody(pair: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "EXPORTS", 0)
    client = viewer(pair)
    answer = client.get("/download/2/perfetto.json.gz")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert client.get("/download/2/ranks.csv").status_code == 200


def test_a_token_sets_no_cookie_for_anyone_else(pair: OpenRun) -> None:
    """Neither a wrong one, nor one in a body, a header or another parameter."""
    stranger = create_app(Runs([pair]), TOKEN).server.test_client()
    queries = [{"token": TOKEN[:-1]}, {"token": ""}, {"Token": TOKEN}]
    headers = [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f"{COOKIE}-81={TOKEN}"},
    ]
    for query, sent in [*((query, {}) for query in queries), *(({}, sent) for sent in headers)]:
        answer = stranger.get("/", query_string=query, headers=sent)
        assert answer.status_code == 401
        assert "Set-Cookie" not in answer.headers


def test_a_run_that_is_followed_has_the_same_doors(tmp_path: Path) -> None:
    """`dashboard --watch` too asks for the token, looks at the host and limits what is sent."""
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    server_ = create_live_app(tmp_path, TOKEN).server
    assert server_.test_client().get("/").status_code == 401
    client = server_.test_client()
    assert client.get("/", query_string={"token": TOKEN}).status_code == 302
    assert client.get("/", base_url="http://127.evil.com").status_code == 403
    assert client.get("/_dash-layout", headers={"Origin": "http://localhost:9999"}).status_code == 403
    assert client.post(UPDATE, data=b" " * (MAX_BODY + 1), content_type="application/json").status_code == 413
    assert client.post(UPDATE, data="[]", content_type="application/json").status_code == 400


def test_a_search_of_any_text_is_answered_quickly(pair: OpenRun) -> None:
    """A name is looked for as text: nothing in it is a pattern, and long ones are cut."""
    client = viewer(pair)
    begun = time.process_time()
    for wanted in ("(a+)+$", "%", "%25" * 300, "[" * 200, ".*" * 90, "ß" * 200, "%00"):
        assert request_of(client, f"?find={wanted}").status_code == 200
    assert time.process_time() - begun < 5
