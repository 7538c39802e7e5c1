"""Mutations of a Perfetto trace, packet by packet and field by field."""

from __future__ import annotations

from random import Random
from typing import Any

from fuzzing import raw_bytes
from gpuscope.sources.perfetto.packet_rows import TracePacket
from gpuscope.sources.perfetto.packets import framed


def packets_of(data: bytes) -> list[bytes]:
    """The packets of a whole trace; lengths of four bytes, as the helper pads them."""
    found, at = [], 0
    while at < len(data):
        size = sum((data[at + 1 + place] & 0x7F) << (7 * place) for place in range(4))
        found.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return found


def mutated(data: bytes, random: Random) -> tuple[bytes, str]:
    """A changed trace, and what was done to it."""
    packets = packets_of(data)
    what = random.choice(["dropped", "doubled", "shuffled", "damaged", "field", "field", "field", "reversed"])
    at = random.randrange(len(packets))
    if what == "dropped":
        del packets[at : at + random.choice([1, 1, 5, 50])]
    elif what == "doubled":
        packets.insert(random.randrange(len(packets)), packets[at])
    elif what == "shuffled":
        random.shuffle(packets)
    elif what == "reversed":
        packets.reverse()
    elif what == "damaged":
        packets[at], _ = raw_bytes.mutated(packets[at], random)
    else:
        packet = TracePacket.FromString(packets[at])
        _field(packet, random)
        packets[at] = packet.SerializeToString()
    return b"".join(map(framed, packets)), f"packets {what}"


_NUMBERS = [0, 1, 2, 2**31 - 1, 2**31, 2**62, 2**63 - 1]


def _field(message: Any, random: Random) -> None:
    """Change one field of a message or of one inside it."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = random.choice(fields)
    repeated = not isinstance(value, int | float | bytes | bool) and hasattr(value, "__len__")
    if random.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None:
        _field(random.choice(list(value)) if repeated else value, random)
    elif repeated:
        del value[:]
    elif isinstance(value, bytes):
        setattr(message, field.name, random.choice([b"", b"\xff\xfe", b"x" * 3000, value[::-1]]))
    else:
        for number in random.sample([*_NUMBERS, -1], 8):
            try:
                setattr(message, field.name, number)
                return
            except (ValueError, TypeError):
                continue
