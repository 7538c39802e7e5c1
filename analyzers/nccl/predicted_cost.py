"""What a collective would take by another algorithm, protocol or number of channels.

The model gives only the ratio of two choices; the level comes from the α–β fit to the trace. Nothing is
predicted where the fit or NCCL's present choice is missing: a ratio of two guesses is no prediction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

from gpuscope.analyzers.base.lanes import FITS
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.nccl.bandwidth import run
from gpuscope.analyzers.nccl.nccl_grammar import UNSET
from gpuscope.analyzers.nccl.timed_series import RunChoices, crossovers, timings
from gpuscope.analyzers.what_if_changes import Algorithm, Refused
from gpuscope.collective_costs.bus_bandwidth import (
    BASE_LATENCY,
    PROTOCOLS,
    RING_STEPS,
    Choice,
    Place,
    available,
    bandwidth,
    busbw_factor,
    latency_ns,
)
from gpuscope.collective_costs.message_cost import CostModel
from gpuscope.errors import UsageError
from gpuscope.hardware.boards import ANY, HEAD, LARGEST, OPERATIONS, size_ranges, tuner_line
from gpuscope.trace.trace import Row, Trace
from gpuscope.when_used import dataclass

# Commands that settle which of two settings of NCCL is faster: nccl-tests or `gpuscope tune --nccl`.
#
# Each variant writes its own log. NCCL logs its variables there (subsystem ENV), not its calls (COLL, TUNING), whose
# logging would be in the times; `gpuscope analyze` of the logs compares them size by size.

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "send_recv": "sendrecv_perf",
}
"""Operations by the program of NVIDIA/nccl-tests that times them."""


@dataclass(frozen=True)
class Variant:
    """A run to compare: the name of its log, and the variables that it differs by."""

    name: str
    settings: Mapping[str, str]


def comparison(op: str, sizes: Sequence[int], ranks: int, variants: Sequence[Variant]) -> str:
    """The commands for an operation over messages of these sizes (bytes) and their neighbours, among so many ranks."""
    low, high = min(sizes) // 2 or 1, max(sizes) * 2
    program = PROGRAMS.get(op, "all_reduce_perf")
    span = f"-b {short_size(low)} -e {short_size(high)} -f 2 -g 1 -w 20 -n 100"
    logged = "-x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=INIT,ENV"
    lines = [
        f"mpirun -np {ranks} {logged} {_exported(one.settings)}{program} {span} > {one.name}.log" for one in variants
    ]
    return "; ".join([*lines, f"gpuscope analyze {' '.join(f'{one.name}.log' for one in variants)}"])


SEARCH = "gpuscope tune --nccl -- COMMAND"
"""The same search by gpuscope itself, on the messages of the job that COMMAND starts."""


def short_size(nbytes: int) -> str:
    """As nccl-tests and `gpuscope bench` take it: 65536 is `64K`."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if nbytes >= 1 << power and not nbytes % (1 << power):
            return f"{nbytes >> power}{unit}"
    return str(nbytes)


def _exported(settings: Mapping[str, str]) -> str:
    """As options of mpirun; what is unset is left out."""
    return "".join(f"-x {name}={value} " for name, value in settings.items() if value != UNSET)


SPREAD = sqrt(2)
"""A prediction by NCCL's model is taken as good within this factor either way, a factor of two in all: by so
much NCCL's own figures for one and the same hardware have changed between releases (a ring with LL between
hosts had a quarter of Simple's bandwidth in 2.18 and has half of it in 2.29)."""


@dataclass(frozen=True)
class Estimate:
    """ns of one collective once all ranks have arrived; `low` and `high` bound it."""

    ns: int
    low: int
    high: int
    basis: str


def changed(now: Choice, change: Algorithm) -> Choice:
    """NCCL's present choice with what a change of the replay asks for."""
    return Choice(
        algorithm=change.algorithm or now.algorithm,
        protocol=change.protocol or now.protocol,
        channels=change.channels or now.channels,
    )


def has_algorithms(op: str) -> bool:
    """Whether NCCL chooses between algorithms for an operation: not for sends and what is made of them."""
    return op in RING_STEPS


def chosen_unasked(op: str, nbytes: int, place: Place, now: Choice, fitted: CostModel) -> Choice:
    """What NCCL's cost model chooses by itself, over links that carry what they carry by `now`: the least time.

    NCCL takes LL128 where the platform has it, which is within NVLink (`ncclTopoTuneModel`).
    """
    factor = busbw_factor(op, place.ranks)
    moved = fitted.beta * (factor or 0.0) * nbytes
    if moved <= 0 or not available(op, now, place):
        return now
    links = nbytes / moved / bandwidth(op, nbytes, now, place, 1.0)
    candidates = [
        Choice(algorithm, protocol, now.channels)
        for algorithm in BASE_LATENCY
        for protocol in PROTOCOLS
        if protocol != "ll128" or place.nvlink
    ]
    return min(
        (one for one in candidates if available(op, one, place)),
        key=lambda one: latency_ns(op, nbytes, one, place) + nbytes / bandwidth(op, nbytes, one, place, links),
    )


def predict(
    op: str, nbytes: int, place: Place, now: Choice | None, then: Choice | None, fitted: CostModel, forced: bool = True
) -> Estimate | Refused:
    """What `op` over an array of `nbytes` takes by `then`, given the costs fitted while NCCL chose `now`.

    Unchanged, it is the fit with its own error. Another algorithm or protocol scales the fit's α and β by the
    ratios of NCCL's model, within `SPREAD`. Fewer channels carry between their share and all of the bandwidth,
    more channels between all of it and their share: a trace of one setting does not show which. `forced`: whether a
    variable makes NCCL choose `then`, which it must not for LL128.
    """
    factor = busbw_factor(op, place.ranks)
    refusal = _refusal(op, place, now, then, fitted, factor, forced)
    if refusal is not None or now is None or then is None or factor is None or fitted.error is None:
        return refusal or Refused("nothing to predict from")
    same = (now.algorithm, now.protocol) == (then.algorithm, then.protocol)
    fixed, moved = fitted.alpha, fitted.beta * factor * nbytes
    if not same:
        fixed *= latency_ns(op, nbytes, then, place) / latency_ns(op, nbytes, now, place)
        moved = _moved(op, nbytes, place, now, then, moved)
    few, many = _by_channels(now.channels, then.channels)
    spread = (1 + fitted.error) * (1.0 if same else SPREAD)
    best, worst = fixed + moved * few, fixed + moved * many
    basis = f"{fitted.basis}, off by {100 * fitted.error:.0f} %"
    if not same:
        basis += f"; {then.algorithm}/{then.protocol} vs. {now.algorithm}/{now.protocol} by NCCL 2.29's cost model"
    if few != many:
        basis += "; whether the links or the channels limit the bandwidth is unknown"
    return Estimate(round((best + worst) / 2), round(best / spread), round(worst * spread), basis)


def _refusal(
    op: str,
    place: Place,
    now: Choice | None,
    then: Choice | None,
    fitted: CostModel,
    factor: float | None,
    forced: bool,
) -> Refused | None:
    if now is None or then is None:
        return Refused(
            "which algorithm NCCL chose is not recorded: add a log of NCCL_DEBUG=INFO with "
            "NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"
        )
    if fitted.assumed:
        return Refused(f"the cost of {op} is not fitted ({fitted.basis}): record messages of at least three sizes")
    if forced and then.protocol == "ll128" and now.protocol != "ll128":
        return Refused("LL128 is never forced: where the platform does not support it, it corrupts data")
    if factor is None or not available(op, now, place):
        return Refused(f"NCCL's model has no {now.algorithm}/{now.protocol} for {op} over {place.ranks} ranks")
    if not available(op, then, place):
        return Refused(
            f"NCCL has no {then.algorithm}/{then.protocol} for {op} there, or only with a network that reduces, "
            "whose bandwidth no trace records"
        )
    if then.channels is not None and then.channels != now.channels and now.channels is None:
        return Refused("how many channels NCCL used is not recorded: add a log of NCCL_DEBUG=INFO")
    return None


def _moved(op: str, nbytes: int, place: Place, now: Choice, then: Choice, moved: float) -> float:
    """ns for the bytes by `then`, given that `now` takes `moved` for them."""
    if moved <= 0:
        return 0.0
    # What the links carry, as far as `now` shows it: caps (at hundreds of GB/s) hide any more.
    unit = bandwidth(op, nbytes, now, place, 1.0)
    links = nbytes / moved / unit
    return nbytes / bandwidth(op, nbytes, then, place, links)


def _by_channels(now: int | None, then: int | None) -> tuple[float, float]:
    """Factors on the time for the bytes: at best and at worst."""
    if now is None or then is None or now == then:
        return 1.0, 1.0
    share = now / then
    return (share, 1.0) if share < 1 else (1.0, share)


# A configuration for NCCL's example tuner plugin: NCCL's own choices, with those changed that gain for certain.
#
# What was measured decides first (`measured/crossovers.py`), then NCCL's cost model held to what the trace shows.
#
# Written for NVIDIA/nccl 2.30, plugins/tuner/example/plugin.c. What it does decides what must be written:
# - It sets one channel wherever no row matches or a row says −1: every row names its channels, and the rows of each
#   of its five operations cover every size.
# - The first row that matches counts; a maximum of 4294967295 ends at 4 GiB; names it does not know silently become
#   all-reduce, ring or Simple.
# - It makes a combination free of cost whether or not it is safe: LL128 is written nowhere, also where NCCL itself
#   chose it.

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
    fits = run(facts).sections.get(FITS)
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
