"""Mutations of bytes, whatever they mean."""

from __future__ import annotations

from random import Random

_TOKENS = [
    b"\x00",
    b"\xff\xff\xff\xff",
    b"\x80",
    b"\n",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"-",
    b"1e999",
    b"NaN",
    b"\x1f\x8b",
    b"\xef\xbb\xbf",
    b"99999999999999999999",
    b"null",
    b"\xed\xa0\x80",
    b"<!ENTITY x 'y'>",
]


def mutated(data: bytes, random: Random) -> tuple[bytes, str]:
    """Changed bytes, and what was done to them."""
    what = random.choice(["flipped", "cut off", "deleted", "doubled", "inserted", "swapped", "overwritten", "zeroed"])
    if not data:
        return random.choice(_TOKENS), "bytes inserted"
    at = random.randrange(len(data))
    length = min(len(data) - at, random.choice([1, 2, 8, 64, 512]))
    buffer = bytearray(data)
    if what == "flipped":
        for _ in range(random.choice([1, 1, 4, 32])):
            place = random.randrange(len(buffer))
            buffer[place] ^= 1 << random.randrange(8)
    elif what == "cut off":
        del buffer[at:]
    elif what == "deleted":
        del buffer[at : at + length]
    elif what == "doubled":
        buffer[at:at] = data[at : at + length]
    elif what == "inserted":
        buffer[at:at] = random.choice(_TOKENS) * random.choice([1, 1, 3, 200])
    elif what == "swapped":
        other = random.randrange(len(data))
        buffer[at : at + length] = data[other : other + length]
    elif what == "overwritten":
        buffer[at : at + length] = random.randbytes(length)
    else:
        buffer[at : at + length] = bytes(length)
    return bytes(buffer), f"bytes {what}"
