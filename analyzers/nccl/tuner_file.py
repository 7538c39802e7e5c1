"""A configuration for NCCL's example tuner plugin: NCCL's own choices, with those changed that gain for certain.

What was measured decides first (`measured/crossovers.py`), then NCCL's cost model held to what the trace shows.

Written for NVIDIA/nccl 2.30, plugins/tuner/example/plugin.c. What it does decides what must be written:
- It sets one channel wherever no row matches or a row says −1: every row names its channels, and the rows of each
  of its five operations cover every size.
- The first row that matches counts; a maximum of 4294967295 ends at 4 GiB; names it does not know silently become
  all-reduce, ring or Simple.
- It makes a combination free of cost whether or not it is safe: LL128 is written nowhere, also where NCCL itself
  chose it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from gpuscope.analyzers.base.sections import FITS
from gpuscope.analyzers.changes import Refused
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.nccl.logged.run_choices import RunChoices
from gpuscope.analyzers.nccl.measured.bandwidth import run as bandwidth
from gpuscope.analyzers.nccl.measured.crossovers import crossovers
from gpuscope.analyzers.nccl.measured.timed_series import timings
from gpuscope.analyzers.nccl.predicted_cost import Estimate, predict
from gpuscope.collective_costs.message_cost import CostModel
from gpuscope.collective_costs.nccl_constants import PROTOCOLS
from gpuscope.collective_costs.nccl_model import Choice
from gpuscope.errors import UsageError
from gpuscope.hardware.tuner_rows import ANY, HEAD, LARGEST, OPERATIONS, size_ranges, tuner_line
from gpuscope.trace.trace import Row, Trace
from gpuscope.when_used import dataclass

_CANDIDATES = ("ring", "tree")
"""Not NVLS: where NCCL does not take it unasked, it is most likely not there."""


@dataclass(frozen=True)
class TunerRow:
    """One line of the file; nodes and ranks `ANY` match any."""

    op: str
    low: int
    high: int
    choice: Choice
    nodes: int = ANY
    ranks: int = ANY

    def line(self) -> str:
        """As the plugin reads it."""
        choice = self.choice.algorithm, self.choice.protocol, self.choice.channels
        return tuner_line(self.op, self.low, self.high, *choice, self.nodes, self.ranks)


@dataclass(frozen=True)
class Tuning:
    """The rows, the changes in words, and how many of NCCL's choices were LL128 (and became Simple)."""

    rows: tuple[TunerRow, ...]
    changes: tuple[str, ...]
    without_ll128: int

    def text(self) -> str:
        """The whole file."""
        head = [
            *HEAD,
            *(f"# {change}" for change in self.changes),
            "# The last rows hold for communicators and operations that the log did not show.",
        ]
        return "\n".join([*head, *(row.line() for row in self.rows)]) + "\n"


def tuning(trace: Trace, channels: int | None = None) -> Tuning:
    """Rows for every communicator whose choices NCCL's log has; `channels` where the log has them not.

    Raises `UsageError` where the log has no choice or no channels, or not the communicator that made a choice.
    """
    choices = [row for row in trace.rows("choices") if row["op"] in OPERATIONS]
    logged = [row["channels"] or 0 for table in ("communicators", "choices") for row in trace.rows(table)]
    channels = max(logged, default=0) or channels
    if not choices:
        raise UsageError(
            "which algorithm and protocol NCCL chose is not recorded",
            hint="read a log of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING beside the traces",
        )
    if not channels:
        raise UsageError(
            "how many channels NCCL used is not recorded, and the plugin forces one where a row says none",
            hint="read the lines «N coll channels» of NCCL_DEBUG=INFO too, or give their number with --channels",
        )
    sizes = {row["size"] for row in trace.rows("communicators") if row["size"]}
    by_kind: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in choices:
        by_kind[row["op"], _group_size(row, sizes)].append(row)
    facts = RunFacts(trace, ())
    run_choices, models, faster = RunChoices(facts), _models(facts), _measured(facts)
    rows: list[TunerRow] = []
    changes: list[str] = []
    lost = 0
    for (op, size), own in sorted(by_kind.items()):
        place = run_choices.place(size)
        nodes = ANY if isinstance(place, Refused) else place.nodes
        chosen: dict[int, Choice] = {}
        for nbytes in sorted({row["bytes"] for row in own}):
            now = run_choices.choice(op, nbytes, size)
            if now is None:
                continue
            now = replace(now, channels=now.channels or channels)
            lost += now.protocol == "ll128"
            safe = replace(now, protocol="simple") if now.protocol == "ll128" else now
            best = faster.get((op, size, nbytes))
            if best is None and not isinstance(place, Refused):
                best = _better(op, nbytes, run_choices, size, now, models)
            if best is not None:
                best = replace(best[0], channels=best[0].channels or now.channels), best[1]
                changes.append(f"{op} of {nbytes} bytes, {size} ranks: {_words(now)} -> {_words(best[0])}: {best[1]}")
            chosen[nbytes] = best[0] if best is not None else safe
        rows += [TunerRow(op, low, high, choice, nodes, size) for low, high, choice in size_ranges(chosen)]
    usual = Choice("ring", "simple", channels)
    rows += [TunerRow(op, 0, LARGEST, usual) for op in OPERATIONS]
    return Tuning(tuple(rows), tuple(changes), lost)


def _measured(facts: RunFacts) -> dict[tuple[str, int, int], tuple[Choice, str]]:
    """By operation, ranks and bytes: the choice that measured times show to be faster, and by how much."""
    found: dict[tuple[str, int, int], tuple[Choice, str]] = {}
    for entry in sorted(crossovers(timings(facts).series), key=lambda one: one["at_most_ns"] / one["dur_ns"]):
        algorithm, protocol = entry["faster_algorithm"], entry["faster_protocol"]
        if algorithm is not None and protocol not in (None, "ll128"):
            key = entry["op"], entry["group_size"], entry["bytes"]
            said = f"measured {entry['dur_ns']} -> at most {entry['at_most_ns']} ns"
            found.setdefault(key, (Choice(algorithm, str(protocol)), said))
    return found


def _group_size(row: Row, sizes: set[int]) -> int:
    if row["group_size"] is not None:
        return int(row["group_size"])
    if len(sizes) != 1:
        raise UsageError(
            "the log does not record which communicator made a choice, and there are several",
            hint="log with NCCL_DEBUG_SUBSYS=INIT,ENV,COLL,TUNING",
        )
    return next(iter(sizes))


Models = dict[tuple[str, int, str | None, str | None], CostModel]
"""By operation, number of ranks, algorithm and protocol."""


def _models(facts: RunFacts) -> Models:
    """The fits, of the trace before those of tools."""
    found: Models = {}
    fits = bandwidth(facts).sections.get(FITS)
    for fit in sorted(fits or [], key=lambda fit: fit["tool"] != "trace"):
        if fit["alpha_ns"] is not None and (fit["protocol"] is not None or fit["algorithm"] is None):
            beta = 1 / fit["busbw_gbps"] if fit["busbw_gbps"] else 0.0
            basis = f"fitted to {fit['sizes']} message sizes"
            key = fit["op"], fit["group_size"], fit["algorithm"], fit["protocol"]
            found.setdefault(key, CostModel(fit["alpha_ns"], beta, fit["error_frac"], basis))
    return found


def _better(
    op: str, nbytes: int, chosen: RunChoices, size: int, now: Choice, models: Models
) -> tuple[Choice, str] | None:
    """The choice that takes least at worst, if that is less than now takes at best."""
    place, model = chosen.place(size), models.get((op, size, now.algorithm, now.protocol))
    if isinstance(place, Refused) or model is None:
        return None
    present = predict(op, nbytes, place, now, now, model)
    if isinstance(present, Refused):
        return None
    found: list[tuple[Estimate, Choice]] = []
    for algorithm in _CANDIDATES:
        for protocol in PROTOCOLS:
            then = Choice(algorithm, protocol, now.channels)
            predicted = predict(op, nbytes, place, now, then, model)
            if protocol != "ll128" and then != now and isinstance(predicted, Estimate) and predicted.high < present.low:
                found.append((predicted, then))
    if not found:
        return None
    predicted, then = min(found, key=lambda one: one[0].high)
    return then, f"{present.ns} -> {predicted.ns} ns ({predicted.low} to {predicted.high})"


def _words(choice: Choice) -> str:
    return f"{choice.algorithm}/{choice.protocol} x{choice.channels}"


def check(rows: Sequence[TunerRow]) -> None:
    """Raise `ValueError` where rows would let the plugin fall back to one channel."""
    for row in rows:
        if not row.choice.channels or row.choice.channels < 1 or row.choice.protocol == "ll128":
            raise ValueError(f"invalid row: {row.line()}")
    covered = {row.op for row in rows if (row.low, row.high, row.nodes, row.ranks) == (0, LARGEST, ANY, ANY)}
    if covered != set(OPERATIONS):
        raise ValueError(f"sizes or operations without a row: {set(OPERATIONS) - covered}")
