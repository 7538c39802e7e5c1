"""What a finding is: an analysis hands over its facts and what it costs, the record makes the words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Any, ClassVar, Literal

from gpuscope.plugins import submodules
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.when_used import dataclass

# The facts of a record as a report holds them.


def facts_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, and lists in place of tuples: read from JSON again they are equal."""
    return {name: _listed(value) for name, value in asdict(record).items()}


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(one) for one in value]
    if isinstance(value, dict):
        return {key: _listed(one) for key, one in value.items()}
    return value


# What torch's optimizers can do: for the advice, and for the recorder that carries it out.

FUSED_ON_SHARDED = ("Adam", "AdamW")
"""Classes whose fused kernels take FSDP2's parameters (torch/distributed/tensor/_ops/_pointwise_ops.py)."""


Severity = Literal["high", "medium", "low"]
_BY_SHARE: tuple[tuple[float, Severity], ...] = ((0.10, "high"), (0.03, "medium"), (0.0, "low"))


@dataclass(frozen=True)
class Finding:
    """A kind of finding is a subclass, its fields are the facts: plain values that JSON can hold.

    The docstring of the subclass says what it means; with `recognised`, `helps` and `misleads` it is the section of
    docs/findings.md.
    """

    code: ClassVar[str]
    recognised: ClassVar[str] = ""
    """Markdown: by what in the trace."""
    helps: ClassVar[str] = ""
    misleads: ClassVar[str] = ""
    severity: ClassVar[Severity | None] = None
    """Of every finding of this kind; None where its share decides."""
    within_compute: ClassVar[bool] = False
    """Whether all that it costs is time in which the device computes."""

    def message(self) -> str:
        """The finding in one sentence, without a full stop."""
        raise NotImplementedError

    def headline(self) -> str:
        """The same as the first line of a report, shorter where the cost stands beside it."""
        return self.message()

    def shows(self) -> str:
        """The same as the clause that shows what is wrong."""
        return self.message()

    def next_step(self) -> str:
        """What to do first, where no suggestion says it; by default what helps in general."""
        return " ".join(self.helps.replace("`", "").split()).removesuffix(".")


def made(
    words: Finding,
    *,
    ranks: Iterable[int],
    share: float = 0.0,
    cost_ns: int | None = 0,
    mean_ns: int | None = 0,
    evidence: Sequence[Evidence] = (),
    severity: Severity | None = None,
) -> FindingEntry:
    """The finding as it stands in a report.

    `share` is of the judged time, 0 of what is paid once; `cost_ns` is in all, `mean_ns` the mean over ranks
    and steps. Without a `severity`, here or in the record, the share decides.
    """
    return {
        "code": words.code,
        "severity": severity or words.severity or severity_of(share),
        "message": words.message(),
        "facts": facts_of(words),
        "ranks": sorted(ranks),
        "cost_ns_per_step": mean_ns,
        "cost_ns": cost_ns,
        "share_frac": share,
        "evidence": list(evidence),
    }


def severity_of(share: float) -> Severity:
    """Of a finding that takes this share of the time."""
    return next(name for least, name in _BY_SHARE if share >= least)


@cache
def kinds() -> Mapping[str, type[Finding]]:
    """Every kind of finding by its code. Raises `ValueError` where two share one."""
    submodules("gpuscope.catalogue.findings")
    found: dict[str, type[Finding]] = {}
    for kind in sorted(_below(Finding), key=lambda one: one.__module__):  # however they came to be imported
        if not hasattr(kind, "code"):  # what several have in common
            continue
        if found.setdefault(kind.code, kind) is not kind:
            raise ValueError(f"two kinds of findings have the code {kind.code!r}")
    return found


def within_compute(code: str) -> bool:
    """Whether a finding is about what kernels do, not about what the device waits for."""
    kind = kinds().get(code)
    return kind is not None and kind.within_compute


def words_of(entry: FindingEntry) -> Finding | None:
    """The record of a finding in a report; None where the report is older than its facts or comes from elsewhere."""
    kind, facts = kinds().get(entry["code"]), entry.get("facts")
    if kind is None or facts is None or {field.name for field in fields(kind)} != facts.keys():
        return None
    return kind(**facts)


def headline(entry: FindingEntry) -> str:
    """`Finding.headline` of a finding in a report."""
    return _said(entry, lambda words: words.headline())


def shows(entry: FindingEntry) -> str:
    """`Finding.shows` of a finding in a report."""
    return _said(entry, lambda words: words.shows())


def next_step(entry: FindingEntry) -> str:
    """`Finding.next_step` of a finding in a report; empty for one that is older than its facts."""
    words = words_of(entry)
    try:
        return "" if words is None else words.next_step()
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        return ""


def _said(entry: FindingEntry, how: Callable[[Finding], str]) -> str:
    words = words_of(entry)
    try:
        return entry["message"] if words is None else how(words)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):  # a report that somebody changed
        return entry["message"]


def _below(kind: type[Any]) -> list[type[Any]]:
    own = kind.__subclasses__()
    return [*own, *(deeper for one in own for deeper in _below(one))]
