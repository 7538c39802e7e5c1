"""A slow network between one rank and the others: network namespaces with a token bucket between.

The rank moves into a network namespace of its own before it makes any connection; one virtual cable leads
out, and `tc tbf` limits it both ways. Linux, root, and the `ip` and `tc` commands are needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.faults import Fault, StepContext, require

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig

# Passes the namespace's name, from which the rest follows, to the workers.
_ENV = "GPUSCOPE_SLOW_LINK"
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class SlowLink(Fault):
    """Everything `rank` sends or receives goes through a link of `mbit` Mbit/s per direction."""

    name = "slow_link"
    what = "the link between the rank and all others"
    unit = "bytes over the link, both ways"
    bound_by = "communication"
    cause = "bandwidth"
    mbit: float = 200.0
    rank: int = 1

    def ranks(self, config: TrainConfig, world_size: int) -> list[int]:  # noqa: ARG002
        return [self.rank]

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require(world_size > 1, self.name, "rank", "needs two processes or more", "--nproc 2")
        require(
            0 < self.rank < world_size,
            self.name,
            "rank",
            f"must be 1 to {world_size - 1}: rank 0 keeps the store",
        )
        require(self.mbit >= 1, self.name, "mbit", f"must be at least 1, not {self.mbit}")
        check_machine()
        return config

    @contextmanager
    def launching(self, world_size: int) -> Iterator[None]:  # noqa: ARG002
        _remove_left_behind()
        namespace = f"gpuscope{os.getpid()}"
        outside, inside = interfaces(namespace)
        near, far = addresses(namespace)
        limit = ["root", "tbf", "rate", f"{self.mbit}mbit", "burst", "128kb", "latency", "400ms"]
        _run("ip", "netns", "add", namespace)
        try:
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace)
            _run("ip", "addr", "add", f"{near}/30", "dev", outside)
            _run("ip", "link", "set", outside, "up")
            within = ["ip", "netns", "exec", namespace]
            _run(*within, "ip", "addr", "add", f"{far}/30", "dev", inside)
            _run(*within, "ip", "link", "set", inside, "up")
            _run(*within, "ip", "link", "set", "lo", "up")
            _run("tc", "qdisc", "add", "dev", outside, *limit)
            _run(*within, "tc", "qdisc", "add", "dev", inside, *limit)
            os.environ[_ENV] = namespace
            yield
        finally:
            os.environ.pop(_ENV, None)
            # The cable is deleted with the namespace, which is deleted with the last process in it.
            subprocess.run(["ip", "link", "del", outside], check=False, capture_output=True)
            _run("ip", "netns", "del", namespace)

    def before_join(self, rank: int) -> None:
        namespace = os.environ.get(_ENV)
        if namespace is None:
            raise UsageError(
                "--fault slow_link: the namespace is missing",
                hint="start the processes with `gpuscope train --nproc`, not with torchrun",
            )
        outside, inside = interfaces(namespace)
        if rank == self.rank:
            _enter(_NAMESPACES / namespace)
            os.environ["MASTER_ADDR"] = addresses(namespace)[0]
        mine = inside if rank == self.rank else outside
        os.environ.update(GLOO_SOCKET_IFNAME=mine, NCCL_SOCKET_IFNAME=mine)
        # NCCL would otherwise bypass the link through NVLink, shared memory or InfiniBand.
        os.environ.update(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_IB_DISABLE="1")

    def on_step_begin(self, context: StepContext) -> None:
        if context.rank == self.rank:
            context.state.setdefault(self.name, bytes_so_far(interfaces(os.environ[_ENV])[1]))

    def on_step_end(self, context: StepContext) -> None:
        if context.rank == self.rank:
            # From one step's end to the next, so that nothing a peer sends early is lost between them.
            now = bytes_so_far(interfaces(os.environ[_ENV])[1])
            context.ledger.add(self.name, context.step, count=now - context.state[self.name])
            context.state[self.name] = now


def check_machine() -> None:
    """Raise `UsageError` unless this process may make network namespaces and limit links."""
    missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if sys.platform != "linux" or missing or os.geteuid() != 0:
        reason = "Linux" if sys.platform != "linux" else f"the command {missing[0]!r}" if missing else "root"
        raise UsageError(
            f"--fault slow_link needs {reason}",
            hint="run as root on Linux with iproute2 installed, or use another fault",
        )


def interfaces(namespace: str) -> tuple[str, str]:
    """The ends of the cable: on the machine and in the namespace. Linux allows 15 characters."""
    number = namespace.removeprefix("gpuscope")
    return f"gs{number}o", f"gs{number}i"


def addresses(namespace: str) -> tuple[str, str]:
    """Their addresses, out of the range that RFC 2544 keeps for benchmarks."""
    number = int(namespace.removeprefix("gpuscope"))
    net = f"198.18.{number // 64 % 256}"
    base = number % 64 * 4
    return f"{net}.{base + 1}", f"{net}.{base + 2}"


def bytes_so_far(interface: str) -> int:
    """Bytes that `interface` has received and sent, as this process's namespace counts them."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return int(fields[0]) + int(fields[8])
    raise RuntimeError(f"no interface {interface}")


def _remove_left_behind() -> None:
    """Delete the namespaces of launchers that were killed before they could."""
    for namespace in _NAMESPACES.glob("gpuscope[0-9]*"):
        if not Path("/proc", namespace.name.removeprefix("gpuscope")).exists():
            subprocess.run(["ip", "netns", "del", namespace.name], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(
            f"--fault slow_link: `{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}",
            hint="network namespaces and tc tbf must be allowed here (not in every container)",
        )


def _enter(path: Path) -> None:
    """Move this thread, and every thread it will start, into the namespace."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise UsageError(f"--fault slow_link: can't enter {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
