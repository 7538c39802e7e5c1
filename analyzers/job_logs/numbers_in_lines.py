"""Numbers, durations and time stamps as logs write them, in whatever locale."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

NUMBER = r"\d[\d.,]*(?:[eE][-+]?\d+)?"
"""A number with decimals and thousands in any locale; a sentence's comma or full stop behind it is cut off later."""
_UNITS_NS = {
    "ns": 1,
    "us": 1e3,
    "µs": 1e3,
    "μs": 1e3,
    "ms": 1e6,
    "msec": 1e6,
    "msecs": 1e6,
    "millis": 1e6,
    "milliseconds": 1e6,
    "s": 1e9,
    "sec": 1e9,
    "secs": 1e9,
    "second": 1e9,
    "seconds": 1e9,
    "m": 6e10,
    "min": 6e10,
    "mins": 6e10,
    "minutes": 6e10,
    "h": 3.6e12,
}
UNIT = r"(?:ns|us|µs|μs|msecs?|ms|millis(?:econds)?|seconds?|secs?|s|minutes?|mins?)"
_STAMPS = re.compile(
    r"(?P<year>(?:19|20)\d\d)[-/.](?P<month>\d\d)[-/.](?P<day>\d\d)[T _]"
    r"(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d(?!\d))?"
    r"|(?P<month2>\d\d)/(?P<day2>\d\d)/(?P<year2>(?:19|20)\d\d)[ T](?P<time2>\d\d:\d\d:\d\d)(?P<half>\s[AP]M)?"
    r"|\b(?P<compact>20\d{6})[ _-](?P<time3>\d\d:\d\d:\d\d)(?:[.,](?P<part3>\d{1,9}))?"
    r"|\b(?P<month4>\d\d)[-/](?P<day4>\d\d) (?P<time4>\d\d:\d\d:\d\d)(?:[.,](?P<part4>\d{1,9}))?"
    r"|\b(?P<name5>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day5>\d{1,2}) (?P<time5>\d\d:\d\d:\d\d)"
)
_CLOCK = re.compile(r":\d\d:\d\d")
"""What every time stamp has: a pattern that begins with a fixed text is found many times faster."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NO_YEAR = 2000
"""Logs without a year (vLLM's, syslog's) count from a leap year: only differences are used."""
WITHIN = 160
"""Characters at a line's beginning in which its time stands."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def number(text: str, *, comma_is_decimal: bool | None = None) -> float | None:
    """The value of `1,234.5`, `1.234,5`, `1,23` or `1e-3`; None where it is none.

    A single comma with three digits behind it is the thousands', unless `comma_is_decimal`.
    """
    if "," not in text:
        try:
            return float(text)
        except ValueError:
            pass  # more than one point, or one that ends a sentence
    text = text.rstrip(".,")
    comma, dot = text.rfind(","), text.rfind(".")
    if comma >= 0 and dot >= 0:
        text = text.replace(",", "") if dot > comma else text.replace(".", "").replace(",", ".")
    elif comma >= 0:
        behind = len(text) - comma - 1
        decimal = comma_is_decimal if comma_is_decimal is not None else behind != 3 or text.startswith("0,")
        text = text.replace(",", ".") if decimal and text.count(",") == 1 else text.replace(",", "")
    elif text.count(".") > 1:
        text = text.replace(".", "")
    try:
        return float(text)
    except ValueError:
        return None


def duration_ns(value: str, unit: str | None, *, line: str = "") -> float | None:
    """A duration in ns; seconds where it has no unit. In a line without a decimal point a comma is one."""
    found = number(value, comma_is_decimal=None if re.search(r"\d\.\d", line) else True)
    if found is None:
        return None
    return found * _UNITS_NS.get((unit or "s").strip().lower(), 1e9)


def stamp_ns(line: str) -> int | None:
    """The time that a line begins with, ns since 1970; without a zone it counts as UTC."""
    match = _STAMPS.search(line, 0, WITHIN) if _CLOCK.search(line, 0, WITHIN) is not None else None
    if match is None:
        return None
    try:
        return _stamp(match)
    except ValueError:
        return None


def _stamp(match: re.Match[str]) -> int:
    part = match["part"] or match["part3"] or match["part4"] or ""
    zone = UTC
    if match["year"]:
        year, month, day, time = int(match["year"]), int(match["month"]), int(match["day"]), match["time"]
        zone = _zone(match["zone"])
    elif match["year2"]:
        year, month, day, time = int(match["year2"]), int(match["month2"]), int(match["day2"]), match["time2"]
    elif match["compact"]:
        day_text = match["compact"]
        year, month, day, time = int(day_text[:4]), int(day_text[4:6]), int(day_text[6:]), match["time3"]
    elif match["month4"]:
        year, month, day, time = _NO_YEAR, int(match["month4"]), int(match["day4"]), match["time4"]
    else:
        year, month, day, time = _NO_YEAR, _MONTHS.index(match["name5"]) + 1, int(match["day5"]), match["time5"]
    hour, minute, second = map(int, time.split(":"))
    if match["half"]:
        hour = hour % 12 + (12 if "P" in match["half"] else 0)
    whole = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone) - _EPOCH
    return (whole.days * 86_400 + whole.seconds) * 10**9 + int(part.ljust(9, "0") or 0)


def _zone(text: str | None) -> timezone:
    if not text or text in ("Z", "UTC"):
        return UTC
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def clock_ns(text: str) -> int | None:
    """`1:02:03`, `02:03` or `1 day, 2:03:04` of a progress bar, ns."""
    days = 0
    if " day" in text:
        before, _, text = text.rpartition(",")
        days = int(re.match(r"\s*(\d+)", before)[1]) if re.match(r"\s*(\d+)", before) else 0  # type: ignore[index]
    try:
        parts = [int(piece) for piece in text.strip().split(":")]
    except ValueError:
        return None
    seconds = 0
    for piece in parts:
        seconds = 60 * seconds + piece
    return (days * 86_400 + seconds) * 10**9
