"""A slow network between one rank and the others: network namespaces with a token bucket between.

The rank moves into a network namespace of its own before it makes any connection; one virtual cable leads
out, and `tc tbf` limits it both ways. Linux, root, and the `ip` and `tc` commands are needed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.faults import Fault, StepContext, StepFault, require, require_rank
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import EP
from gpuscope.instrumented_runtime.train.settings.sections import MODEL

if TYPE_CHECKING:
    from torch import Tensor

    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


# A rank that computes longer than its peers, which then wait for it in the next collective.


@dataclass(frozen=True)
class SlowRank(StepFault):
    """`rank` spends `ms` more per step in matrix products before its forward. With `rotate` = n the
    next rank is the slow one after every n steps."""

    name = "slow_rank"
    what = "matrix products before the forward"
    unit = "bursts"
    bound_by = "communication"
    cause = "straggler"
    ms: float = 30.0
    rank: int = 1
    rotate: int = 0

    def ranks(self, config: TrainConfig, world_size: int) -> list[int] | None:  # noqa: ARG002
        return None if self.rotate else [self.rank]

    def ns_per_step(self) -> int:
        return round(self.ms * 1e6)

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require_rank(self.rank, world_size, self.name)
        require(self.rotate >= 0, self.name, "rotate", "must not be negative")
        return config

    def slow_rank(self, step: int, world_size: int) -> int:
        """Which rank is the slow one in `step`."""
        turns = (step - self.first) // self.rotate if self.rotate else 0
        return (self.rank + turns) % world_size

    def on_model(self, context: StepContext) -> None:
        from gpuscope.instrumented_runtime.train.faults.burn import Burner

        context.state[self.name] = Burner(context.device)

    def before_forward(self, context: StepContext) -> None:
        if self.due(context.step) and context.rank == self.slow_rank(context.step, context.world_size):
            ns = context.state[self.name].run(self.ns_per_step() // context.config.train.accumulate)
            context.ledger.add(self.name, context.step, ns=ns)


# DDP with buckets so small that nearly every gradient gets an all-reduce of its own.


@dataclass(frozen=True)
class TinyBuckets(Fault):
    """`ddp.bucket_cap_mb` = `mb`. The ledger holds how many buckets DDP reduced in each step."""

    name = "tiny_buckets"
    what = "DDP's gradient all-reduces"
    unit = "buckets reduced"
    bound_by = "communication"
    cause = "latency"
    mb: float = 0.01

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require(
            config.parallel.data in ("ddp", "zero1") and world_size > 1,
            self.name,
            "mb",
            f"needs DDP on two processes or more, not parallel.data={config.parallel.data} on {world_size}",
            "--parallel ddp --nproc 2",
        )
        return config.replace("ddp", bucket_cap_mb=self.mb)

    def on_step_end(self, context: StepContext) -> None:
        from torch.nn.parallel import DistributedDataParallel

        assert isinstance(context.model, DistributedDataParallel)
        # DDP's own count. It looks back at the start of a forward, so this is of the step before.
        data = context.model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        count = int(data.get("num_buckets_reduced", 0))
        if count:
            context.ledger.add(self.name, context.step - 1, count=count)


# A router that gives the experts of one rank more tokens than the others'.

_CERTAIN = 1e4
"""Added to the router's logits of the experts that are to be chosen."""


@dataclass(frozen=True)
class UnevenExperts(StepFault):
    """Of every rank's tokens `share` go to the experts of one rank, the rest evenly to those of the others; a share of
    1/n is even routing."""

    name = "uneven_experts"
    what = "tokens that the experts of one rank receive, of all, and what these compute"
    unit = "tokens routed to that rank"
    bound_by = "communication"
    cause = "straggler"
    rank: int = 1
    share: float = 0.75

    def ranks(self, config: TrainConfig, world_size: int) -> list[int]:  # noqa: ARG002
        return [self.rank]

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require_rank(self.rank, world_size, self.name)
        require(0 < self.share <= 1, self.name, "share", "must be above 0 and at most 1")
        require(
            config.parallel.size(EP.name) == world_size,
            self.name,
            "rank",
            "needs expert parallelism over all processes",
            "--parallel ep --preset tiny-moe",
        )
        own = config.model.experts // world_size
        top = config.model.experts_per_token
        require(own >= top, self.name, "rank", f"holds {own} experts, and a token goes to {top}", "more experts")
        return config

    def on_model(self, context: StepContext) -> None:
        from gpuscope.instrumented_runtime.train.model import MoE

        def chosen(module: Any, inputs: Any, logits: Tensor) -> Tensor | None:
            del module, inputs
            if not self.due(context.step):
                return None
            forced, count = self._forced(logits, context)
            context.ledger.add(self.name, context.step, count=count)
            return logits + forced

        for part in context.parts:
            for module in part.modules():
                if isinstance(module, MoE):
                    module.router.register_forward_hook(chosen)

    def _forced(self, logits: Tensor, context: StepContext) -> tuple[Tensor, int]:
        """What to add to the logits [tokens, experts], and how many tokens go to the rank."""
        import torch

        tokens, experts = logits.shape
        own, top = experts // context.world_size, context.config.model.experts_per_token
        number = torch.arange(tokens, device=logits.device)
        here = torch.floor((number + 1) * self.share) > torch.floor(number * self.share)
        others = context.world_size - 1
        place = (self.rank + 1 + number % max(others, 1)) % context.world_size
        place = torch.where(here, torch.full_like(place, self.rank), place)
        within = (number.unsqueeze(1) + torch.arange(top, device=logits.device)) % own
        forced = torch.zeros_like(logits)
        forced.scatter_(1, place.unsqueeze(1) * own + within, _CERTAIN)
        return forced, int(here.sum())


# Ranks whose sequences differ in length: those with short ones wait for those with long ones.


@dataclass(frozen=True)
class UnevenSequences(StepFault):
    """`rank` keeps its sequences whole, the others' are cut to `short` of their length. With `rank` = -1
    each rank draws a length between `short` and whole for every step (from `seed`)."""

    name = "uneven_sequences"
    what = "sequence length of the batches, and with it forward and backward"
    unit = "tokens per sequence"
    bound_by = "communication"
    cause = "straggler"
    rank: int = 0
    short: float = 0.25
    seed: int = 0

    def ranks(self, config: TrainConfig, world_size: int) -> list[int] | None:  # noqa: ARG002
        return None if self.rank < 0 else [self.rank]

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require(0 < self.short < 1, self.name, "short", f"must lie between 0 and 1, not {self.short}")
        require(self.rank < world_size, self.name, "rank", f"{self.rank} is not below the {world_size} processes")
        require(
            all(config.parallel.size(one.axis.name) == 1 for one in MODEL),
            self.name,
            "rank",
            "needs ranks that each run their own sequences",
            "--parallel ddp or fsdp",
        )
        return config

    def length(self, step: int, rank: int, whole: int) -> int:
        """Tokens per sequence of `rank` in `step`, where a whole sequence has `whole`."""
        if self.rank >= 0:
            share = 1.0 if rank == self.rank else self.short
        else:
            # Its own generator per step and rank: the same wherever and in whatever order it is called.
            share = random.Random(f"{self.seed} {step} {rank}").uniform(self.short, 1)
        return max(1, round(whole * share))

    def on_batch(self, context: StepContext, batch: Tensor) -> Tensor:
        if not self.due(context.step):
            return batch
        length = self.length(context.step, context.rank, batch.shape[1] - 1)
        if context.micro_step == 0:
            context.ledger.add(self.name, context.step, count=length)
        return batch[:, : length + 1]


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
