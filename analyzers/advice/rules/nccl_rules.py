"""NCCL's own knobs: algorithm, protocol, channels.

NCCL chooses well where its model of the machine is right, so only its log or a measurement can show that
another choice gains; without them the advice is to record the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuscope.analyzers.advice.prediction_cache import costliest, variable
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import nccl_settings, torch_settings
from gpuscope.analyzers.nccl.nccl_grammar import MOST_CTAS, UNSET, algorithm_name, for_operation, wrong
from gpuscope.analyzers.what_if_changes import Algorithm
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import BandwidthEntry
from gpuscope.when_used import dataclass

_ALTERNATIVES: Mapping[str, Sequence[str]] = {"all_reduce": ("ring", "tree"), "all_gather": (), "reduce_scatter": ()}
"""Not NVLS: where NCCL does not take it unasked it is most likely not there, and forcing it fails."""


NEEDS_LOG = "with NCCL_DEBUG=INFO, NCCL writes a line per operation to its log"


@dataclass(frozen=True)
class ChoicesLogged(Suggestion):
    """NCCL's log beside the trace."""

    code = "nccl_log"
    answers = ("latency", "bandwidth")
    sets = "`NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING` with `NCCL_DEBUG=INFO`, where NCCL's choices are not recorded"
    action = "Record which algorithm and protocol NCCL chooses for {op}"
    why = "{cost}; what another choice would gain can be estimated only if NCCL's own choice is known"
    why_not = "nothing to gain by itself: it lets the next report predict other choices"
    risk = NEEDS_LOG
    verify = "bandwidth[].algorithm of the next report is not null"
    bounded = False

    op: str


@dataclass(frozen=True)
class _OfOperation(Suggestion):
    """Another choice for the costliest operation."""

    verify = "record again with NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING: bandwidth[] shows choice and busbw"

    op: str
    wanted: str
    now: str


@dataclass(frozen=True)
class AnotherAlgorithm(_OfOperation):
    """A tree in place of a ring, or the reverse."""

    code = "nccl_algorithm"
    answers = ("latency", "bandwidth")
    sets = "`NCCL_ALGO=allreduce:Tree`…, for the costliest operation, where NCCL's log has its choice"
    action = "Let NCCL carry out {op} by {wanted} instead of {now}"
    why = "{cost}; {op} of {of_group} takes most of it"
    risk = "applies to every {op} of the job, whatever its size; NCCL's later versions may choose better"

    group: str | None

    @property
    def of_group(self) -> str:
        return self.group or "one group"


class LowLatency(_OfOperation):
    """The protocol for small messages."""

    code = "nccl_protocol"
    answers = ("latency", "bandwidth")
    sets = "`NCCL_PROTO=allreduce:LL` or `Simple`"
    action = "Let NCCL use protocol {wanted} for {op} instead of {now}"
    why = "{cost}; {wanted} has the least fixed cost"
    risk = "applies to every {op} of the job: large ones lose half of their bandwidth"


class Simple(LowLatency):
    """The protocol for large messages."""

    why = "{cost}; {wanted} has the most bandwidth"
    risk = "applies to every {op} of the job: small ones take longer"


@dataclass(frozen=True)
class MoreChannels(Suggestion):
    """More of the device's multiprocessors for communication."""

    code = "nccl_channels"
    answers = ("bandwidth",)
    sets = "`NCCL_MIN_CTAS`; `NCCL_MAX_CTAS` or `NCCL_MAX_NCHANNELS` unset where the log shows such a limit"
    action = "Give NCCL at least {channels} channels instead of {now}"
    why = "{cost}; with {now} channels {op} may not fill its links"
    risk = "{more} more SMs taken from kernels that run beside communication"
    verify = _OfOperation.verify + "; compute beside communication must not get slower"

    op: str
    channels: int
    now: int

    @property
    def more(self) -> int:
        return self.channels - self.now


@dataclass(frozen=True)
class ChannelsAllowed(Suggestion):
    """A limit in one host's environment, which makes it have fewer channels than the others."""

    code = "nccl_channels"
    answers = ("fewer_channels",)
    sets = MoreChannels.sets
    action = "Unset {variable}: where it is not set, NCCL uses {channels} channels"
    why = "{cost}; NCCL's log says that {variable}={value} is set"
    risk = "communication takes up to {channels} SMs from compute"
    verify = "record again: all communicators (nccl.communicators[]) have the same number of channels"

    variable: str
    value: str
    channels: int


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding: choices for messages, or the channels that a variable keeps some ranks from."""
    if not _nccl(case):
        return
    found = _choices if finding["code"] in ("latency", "bandwidth") else _allowed_channels
    for proposal in found(case, finding):
        setting = proposal.setting
        if setting["kind"] != "env" or not wrong(setting["name"], setting["value"]):
            yield proposal


def _nccl(case: Case) -> bool:
    """Whether NCCL (or RCCL, which has its variables) communicates here."""
    return "nccl" in case.report or any("nccl" in kernel["name"].lower() for kernel in case.report.get("kernels", ()))


def _choices(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    row = costliest(case, _ALTERNATIVES)
    if row is None:
        return
    if row["algorithm"] is None or row["protocol"] is None:
        yield Proposal(finding, ChoicesLogged(row["op"]), nccl_settings.DEBUG_SUBSYS.to("INIT,ENV,TUNING"))
        return
    if variable(case, nccl_settings.ALGO.name) is None:
        yield from _algorithms(finding, row, row["algorithm"])
    if variable(case, nccl_settings.PROTO.name) is None:
        yield from _protocols(finding, row, row["protocol"])
    if finding["code"] == "bandwidth":
        yield from _channels(case, finding, row)


def _algorithms(finding: FindingEntry, row: BandwidthEntry, now: str) -> Iterator[Proposal]:
    op = row["op"]
    for algorithm in _ALTERNATIVES[op]:
        if algorithm != now:
            setting = nccl_settings.ALGO.to(for_operation(op, algorithm_name(algorithm)))
            record = AnotherAlgorithm(op, algorithm, now, row["group"])
            yield Proposal(finding, record, setting, (Algorithm(algorithm=algorithm, op=op),))


def _protocols(finding: FindingEntry, row: BandwidthEntry, now: str) -> Iterator[Proposal]:
    op = row["op"]
    kind, protocol, name = (LowLatency, "ll", "LL") if finding["code"] == "latency" else (Simple, "simple", "Simple")
    if now != protocol:
        setting = nccl_settings.PROTO.to(for_operation(op, name))
        yield Proposal(finding, kind(op, protocol, now), setting, (Algorithm(protocol=protocol, op=op),))


def _channels(case: Case, finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    now = row["channels"]
    if now is None or now >= MOST_CTAS:
        return
    wanted = min(2 * now, MOST_CTAS)
    groups = {one["group"] for one in case.report.get("bandwidth", ()) if one["tool"] == "trace"}
    # A variable holds for every communicator: where there are several, only this one's configuration is changed.
    own = torch_settings.MIN_CTAS.to(f"{wanted}  # the group {row['group']} alone")
    setting = own if len(groups) > 1 and case.program == "pytorch" else nccl_settings.MIN_CTAS.to(str(wanted))
    change = Algorithm(channels=wanted, op=row["op"])
    yield Proposal(finding, MoreChannels(row["op"], wanted, now), setting, (change,))


def _allowed_channels(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    most = max((entry["channels"] or 0 for entry in case.report["nccl"]["communicators"]), default=0)
    for known in (nccl_settings.MAX_CTAS, nccl_settings.MAX_NCHANNELS):
        set_value = variable(case, known.name)
        if set_value is not None and set_value.isdecimal() and int(set_value) < most <= MOST_CTAS:
            record = ChannelsAllowed(known.name, set_value, most)
            yield Proposal(finding, record, known.to(UNSET), (Algorithm(channels=most),))


RULE = Rule(
    "nccl",
    (ChoicesLogged, AnotherAlgorithm, LowLatency, Simple, MoreChannels, ChannelsAllowed),
    propose,
    programs=("pytorch", "jax", "native"),
    place=170,
)
