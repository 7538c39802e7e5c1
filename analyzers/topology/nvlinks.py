"""Pairs of a host's GPUs that have fewer NVLinks than the others, and the ranks on them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gpuscope.analyzers.facts.placement import pci_address
from gpuscope.trace.trace import Row
from gpuscope.when_used import dataclass

KINDS = ("nvlink", "nvswitch")


@dataclass(frozen=True)
class NarrowPair:
    """A GPU and another (or a switch) with fewer NVLinks between them; `ranks` where NCCL's log has them."""

    words: str
    ranks: tuple[int, ...]


def sums(
    links: Iterable[Row], kinds: Sequence[str], column: Literal["width", "rate"]
) -> Mapping[int, Mapping[str, int]]:
    """By topology file: NVLinks, lanes or rate of each GPU in all."""
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in links:
        counted = row["link"] in kinds or ("nvlink" in kinds and row["link"].startswith("NV"))
        if not counted or row[column] is None:
            continue
        for end in _ends(row):
            found[row["source"]][end] += row[column]
    return found


def _ends(row: Row) -> list[str]:
    # A matrix has each pair once, a topology XML each GPU's own links.
    ends = (row["node"], row["peer"]) if row["link"].startswith("NV") else (row["node"],)
    return [end for end in ends if end.startswith("GPU")]


def ranks_of(communicators: Iterable[Row]) -> Mapping[str, int]:
    """By PCI address: the rank on that GPU in the largest communicator on one host; empty for several hosts,
    whose addresses repeat."""
    rows = [row for row in communicators if row["bus_id"] and row["rank"] is not None]
    if len({row["host"] for row in rows}) != 1:
        return {}
    largest = max(row["size"] or 0 for row in rows)
    return {pci_address(row["bus_id"]): row["rank"] for row in rows if row["size"] == largest}


def narrow_pairs(links: Sequence[Row], ranks: Mapping[str, int]) -> list[NarrowPair]:
    """The pairs that make a GPU have fewer NVLinks than its host's others. Pairs that differ while every GPU has
    as many links in all are a design (a hybrid cube mesh)."""
    found: dict[tuple[int, frozenset[str]], NarrowPair] = {}
    for source, of_gpu in sums(links, KINDS, "width").items():
        most = max(of_gpu.values())
        low = {gpu for gpu, count in of_gpu.items() if count < most}
        widths = _pairs(row for row in links if row["source"] == source)
        if not low or not widths:
            continue
        usual = Counter(width for pair, width in widths.items() if not pair & low).most_common(1)
        wide = usual[0][0] if usual else max(widths.values())
        for pair, width in widths.items():
            if pair & low and width < wide:
                own = tuple(sorted(ranks[end[4:]] for end in pair if end[4:] in ranks))
                between = " and ".join(sorted(pair)) + (f" (rank {', '.join(map(str, own))})" if own else "")
                words = f"{width} of {wide} NVLinks between {between}"
                found[source, pair] = NarrowPair(words, own)
    return list(found.values())


def _pairs(links: Iterable[Row]) -> dict[frozenset[str], int]:
    """NVLinks between every two GPUs, or a GPU and a switch; 0 for GPUs of the host that have none between them."""
    widths: dict[frozenset[str], int] = {}
    for row in links:
        if row["width"] is not None and (row["link"] in KINDS or row["link"].startswith("NV")):
            widths[frozenset((row["node"], row["peer"]))] = row["width"]
    gpus = sorted({end for pair in widths for end in pair if end.startswith("GPU")})
    if not any(end.startswith("NVSwitch") for pair in widths for end in pair):
        for place, one in enumerate(gpus):
            for other in gpus[place + 1 :]:
                widths.setdefault(frozenset((one, other)), 0)
    return widths
