"""A viewer without a screen: asks for the tiles of windows of all rows, over HTTP."""

from __future__ import annotations

import http.client
import math
import time
from itertools import count
from urllib.parse import urlsplit

from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.window_columns import TILE
from gpuscope.dashboards.web import timeline_data
from gpuscope.dashboards.web.access import COOKIE

DEPTHS = (1, 10, 100, 1_000, 10_000)
"""Windows: the whole run, a tenth of it, and so on."""
PIXELS = 1_200
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it are spread evenly over [0, 1), however many there are."""
_places = count(1)


class Viewer:
    """One connection. Each look is elsewhere, so that an answer hardly serves two; all look at the whole run alike."""

    def __init__(self, address: str, token: str, events: Events) -> None:
        place = urlsplit(address)
        assert place.hostname is not None
        self.connection = http.client.HTTPConnection(place.hostname, place.port)
        self.headers = {"Cookie": f"{COOKIE}-{place.port}={token}", "Accept-Encoding": "gzip, br, zstd"}
        self.events = events
        self.largest = 0

    def look(self, rounds: int) -> list[float]:
        """Seconds until each window's columns were received."""
        return [self._ask(depth) for _ in range(rounds) for depth in DEPTHS]

    def _ask(self, depth: int) -> float:
        first, last = self.events.window
        width = (last - first) // depth
        low = int((last - first - width) * (next(_places) * GOLDEN % 1))
        level = max(0, math.floor(math.log2(width / PIXELS)))
        tile = TILE << level
        query = (
            f"level={level}&first={low // tile}&last={(low + width) // tile + 1}&tracks=0-{len(self.events.tracks) - 1}"
        )
        begun = time.perf_counter()
        self.connection.request("GET", f"{timeline_data.address('1')}/cells?{query}", headers=self.headers)
        answer = self.connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data[:200]
        self.largest = max(self.largest, len(data))
        return time.perf_counter() - begun
