"""What the search tries: the default, and for each backend the settings that may beat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NCCL_CHOICES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "all_reduce": (("Ring", "LL"), ("Ring", "Simple"), ("Tree", "LL"), ("Tree", "Simple")),
    "all_gather": (("Ring", "LL"), ("Ring", "Simple")),
    "reduce_scatter": (("Ring", "LL"), ("Ring", "Simple")),
    "broadcast": (("Ring", "LL"), ("Ring", "Simple")),
}
"""Algorithm and protocol by operation. Never LL128, which corrupts data where the platform does not support it (where
it does, NCCL's default has it), nor NVLS, which fails where it is missing and is taken unasked where it is not."""
CHANNELS = (4, 16, 32)
"""Channels of NCCL's own choice; more of them take more of the GPU from the kernels beside them."""
PIECES = (2, 4)
"""Into how many messages in flight gloo's all-reduce is cut."""


@dataclass(frozen=True)
class Candidate:
    """A name, the variables of its processes, into how many messages each operation is cut, and NCCL's channels."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    pieces: int = 1
    channels: int | None = None

    @property
    def choice(self) -> tuple[str, str] | None:
        """NCCL's algorithm and protocol as its tuner plugin names them; None where it chooses itself."""
        forced = self.settings.get("NCCL_ALGO"), self.settings.get("NCCL_PROTO")
        return None if None in forced else (str(forced[0]).lower(), str(forced[1]).lower())


DEFAULT = Candidate("default")


def candidates(op: str, backend: str) -> tuple[Candidate, ...]:
    """The default first. On gloo: the loopback interface, which reaches all processes of one host, and an all-reduce in
    several messages; on NCCL its algorithms and protocols, for this operation alone, and numbers of channels."""
    if backend == "nccl":
        return (DEFAULT, *(_nccl(*choice) for choice in NCCL_CHOICES.get(op, ())), *(_channels(n) for n in CHANNELS))
    cut = tuple(Candidate(f"{pieces} messages", {}, pieces) for pieces in PIECES) if op == "all_reduce" else ()
    return (DEFAULT, Candidate("loopback", {"GLOO_SOCKET_IFNAME": "lo"}), *cut)


def _nccl(algorithm: str, protocol: str) -> Candidate:
    settings = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
    return Candidate(f"{algorithm}/{protocol}".lower(), settings)


def _channels(number: int) -> Candidate:
    settings = {"NCCL_MIN_NCHANNELS": str(number), "NCCL_MAX_NCHANNELS": str(number)}
    return Candidate(f"{number} channels", settings, channels=number)
