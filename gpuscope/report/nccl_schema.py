"""The report's sections `bandwidth`, `nccl` and `topology`: what NCCL and its tools recorded themselves."""

from __future__ import annotations

from typing import TypedDict


class BandwidthEntry(TypedDict):
    """One operation and size: `algbw` is total bytes by total time, `busbw` that times nccl-tests' factor."""

    tool: str
    op: str
    bytes: int
    group_size: int
    variant: str | None
    count: int
    """Operations timed."""
    dur_ns: int
    """Mean of one operation."""
    algbw_gbps: float | None
    busbw_gbps: float | None
    wrong: int | None
    """Elements with a wrong value; None where the tool did not check."""


class CommunicatorEntry(TypedDict):
    """Communicators of one size that are set up alike."""

    size: int
    nodes: int | None
    count: int
    ranks: list[int]
    channels: int | None
    p2p_channels: int | None
    rings: int | None
    trees: int | None


class TransportEntry(TypedDict):
    """Connections of one transport."""

    transport: str
    same_node: bool | None
    pairs: int
    """Ordered pairs of ranks."""
    connections: int


class ChoiceEntry(TypedDict):
    """What NCCL chose for an operation and size."""

    op: str | None
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    ranks: int | None
    """Devices whose processes logged it."""
    count: int


class Nccl(TypedDict):
    """What NCCL said of itself."""

    versions: list[str]
    average_busbw_gbps: list[float]
    """nccl-tests' own averages, one per table."""
    communicators: list[CommunicatorEntry]
    transports: list[TransportEntry]
    choices: list[ChoiceEntry]


class TopologyEntry(TypedDict):
    """A link inside a host."""

    source: str
    node: str
    peer: str
    link: str
    width: int | None
    rate_gbps: float | None
