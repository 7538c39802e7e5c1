"""Logs of NCCL and tables of nccl-tests as text, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

MIB = 1 << 20


def said(text: str, host: str = "n0", pid: int = 7, device: int = 0) -> str:
    return f"{host}:{pid}:{pid} [{device}] NCCL INFO {text}"


def communicator(ranks: int, nodes: int = 1, channels: int = 16) -> list[str]:
    """Each rank's lines of one communicator."""
    lines = []
    for rank in range(ranks):
        host, local = f"n{rank * nodes // ranks}", rank % (ranks // nodes)
        where = {"host": host, "pid": 100 + rank, "device": local}
        lines += [
            said(
                f"ncclCommInitRank comm 0xa{rank} rank {rank} nranks {ranks} cudaDev {local} busId {local}0 "
                "commId 0x1 - Init START",
                **where,
            ),
            said(
                f"comm 0xa{rank} rank {rank} nRanks {ranks} nNodes {nodes} localRanks {ranks // nodes} localRank 0",
                **where,
            ),
            said(f"{channels} coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels", **where),
        ]  # type: ignore[arg-type]
    return lines


def variables(**values: str) -> list[str]:
    """As NCCL logs its environment: integers with a full stop behind them."""
    return [
        said(f"{name} set by environment to {value}{'.' if value.isdecimal() else ''}")
        for name, value in values.items()
    ]


def nccl_tests(
    times: Mapping[int, float], ranks: int = 2, *, gpu: str = "NVIDIA A100", warmup: int = 5, op: str = "all_reduce"
) -> list[str]:
    """A table of one run: µs by bytes, out of place alone."""
    head = [
        f"# Collective test starting: {op}_perf",
        f"# nThread 1 nGpus {ranks} minBytes 8 maxBytes 8 step: 2(factor) warmup iters: {warmup} iters: 20",
        "# Using devices",
        *(f"#  Rank  {rank} Group  0 Pid  7 on  n0 device  {rank} [0000:{rank}0:00] {gpu}" for rank in range(ranks)),
        "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    ]
    return [*head, *(f"  {size}  {size // 4}  float  sum  -1  {time}  1.0  1.0  0" for size, time in times.items())]


def chosen(choices: Mapping[int, str], op: str = "AllReduce", channels: int = 8) -> list[str]:
    """NCCL's log of what it chose by size: `RING SIMPLE`."""
    return [
        said(
            f"{op}: {size} Bytes -> Algo {words.split()[0]} proto {words.split()[1]} "
            f"channel{{Lo..Hi}}={{0..{channels - 1}}}"
        )
        for size, words in choices.items()
    ]


def write(folder: Path, name: str, *parts: Sequence[str]) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line for part in parts for line in part) + "\n")
    return path
