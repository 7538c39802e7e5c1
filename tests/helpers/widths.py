"""What a narrow terminal must not do to numbers: part them from their units, crop or wrap them."""

from __future__ import annotations

import re

WIDE = 200
NARROWER = (140, 100, 80, 60)
_UNIT = r"(?:%|[nµum]?s|min|h|days|[kMGT]?B(?:/s)?|[KMG]iB|[MGT]FLOP/s)(?![\w/])"
_NUMBER = re.compile(rf"(?<![\w.,])(\d[\d,]*\.\d+) ({_UNIT})")
_SHARES_UNIT = re.compile(r"\s*(?: to |–|→|/|-)")
"""Of `97.97 to 99.12 ms` the unit stands once."""


def parted(wide: str, narrow: str) -> list[str]:
    """Places in `narrow` where a number that has a unit in `wide` stands without all of it."""
    units: dict[str, set[str]] = {}
    for number, unit in _NUMBER.findall(wide):
        units.setdefault(number, set()).add(unit)
    bare = {match[1] for match in re.finditer(rf"(?<![\w.,])(\d[\d,]*\.\d+)(?! {_UNIT})(?![\d\w,.%])", wide)}
    found = []
    for number, own in units.items():
        if number in bare:
            continue
        for match in re.finditer(rf"(?<![\w.,]){re.escape(number)}(?!\w|[.,]\d)", narrow):
            rest = narrow[match.end() : match.end() + 12]
            whole = rest.startswith("%") or any(re.match(rf" {re.escape(unit)}(?![\w/])", rest) for unit in own)
            if not whole and not _SHARES_UNIT.match(rest):
                found.append(narrow[max(match.start() - 20, 0) : match.end() + 12])
    return found


def too_long(text: str, width: int) -> list[str]:
    """Lines of `text` that are wider than the terminal."""
    return [line for line in text.splitlines() if len(line) > width]
