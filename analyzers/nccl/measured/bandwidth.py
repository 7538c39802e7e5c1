"""Bandwidth by operation, group and size against the peak of the link, and the cost α + S·factor/B fitted to it.

From the collectives of a trace and from what NCCL's own tools measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.needs import Need, any_of
from gpuscope.analyzers.base.sections import BANDWIDTH, CROSSOVERS, FITS
from gpuscope.analyzers.facts.host_links import Host
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.nccl.measured import measured_findings
from gpuscope.analyzers.nccl.measured.crossovers import crossovers
from gpuscope.analyzers.nccl.measured.timed_series import TRACE, Series, timings
from gpuscope.analyzers.topology.link_peak import Peak, peak
from gpuscope.collective_costs.bus_bandwidth import algbw, busbw, busbw_factor
from gpuscope.collective_costs.message_cost import CostModel, fit_or_why
from gpuscope.problems import collectives
from gpuscope.schema.nccl_sections import BandwidthEntry, FitEntry
from gpuscope.trace.columns.distinct import distinct_values

MOST_SIZES = 64
"""Sizes of one operation and group that are listed: those that took most time. The fit takes all of them."""


def run(facts: RunFacts) -> Result:
    """The sections `bandwidth`, `fits` and `crossovers`, where sizes are recorded."""
    result, found = Result(ANALYZER.name), timings(facts)
    result.problem(collectives.MEASUREMENT_COLD, found.cold)
    if found.series:
        rows = [row for series in found.series for row in _rows(series, facts.hosts)]
        result.sections[BANDWIDTH] = rows
        result.sections[FITS] = [fit for series in found.series for fit in _fits(series)]
        crossed = crossovers(found.series)
        if crossed:
            result.sections[CROSSOVERS] = crossed
        result.findings += measured_findings.find(facts.trace, found.series, rows, crossed)
    return result


def _rows(series: Series, topologies: Sequence[Host]) -> list[BandwidthEntry]:
    """One entry per size and variant, by size."""
    by_size: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    for index, key in enumerate(zip(series.bytes, series.variant, strict=True)):
        by_size[key].append(index)
    spent = {key: sum(series.dur[i] * series.count[i] for i in own) for key, own in by_size.items()}
    listed = sorted(by_size, key=lambda key: -spent[key])
    if series.tool == TRACE:
        listed = listed[:MOST_SIZES]
    found = _peak(series, topologies)
    return [
        _entry(series, size, variant, by_size[size, variant], spent[size, variant], found)
        for size, variant in sorted(listed, key=lambda key: (key[0], key[1] or ""))
    ]


def _peak(series: Series, topologies: Sequence[Host]) -> Peak:
    if series.op == "send_recv" and (series.placed.hosts or 0) > 1:
        return Peak(None, None, "a message between hosts goes over one port, and which one is unknown")
    return peak(series.placed, topologies)


def _entry(
    series: Series, nbytes: int, variant: str | None, own: Sequence[int], spent: int, found: Peak
) -> BandwidthEntry:
    count = sum(series.count[i] for i in own)
    mean = spent / count
    bus = _finite(busbw(series.op, nbytes, mean, series.group_size))
    checked = [wrong for i in own if (wrong := series.wrong[i]) is not None]
    chosen = series.chosen(own)
    return {
        "tool": series.tool,
        "run": series.run,
        "op": series.op,
        "group": series.group,
        "bytes": nbytes,
        "size_basis": series.estimated.get(nbytes),
        "group_size": series.group_size,
        "variant": variant,
        "count": count,
        "dur_ns": round(mean),
        "algbw_gbps": _finite(algbw(nbytes, mean)),
        "busbw_gbps": bus,
        "lower_bound": series.lower_bound or nbytes in series.waiting,
        "algorithm": chosen.algorithm if chosen else None,
        "protocol": (chosen.protocol or None) if chosen else None,
        "channels": chosen.channels if chosen else None,
        "peak_gbps": found.gbps,
        "link": found.link,
        "peak_basis": found.basis,
        "peak_provenance": found.provenance,
        "efficiency_frac": bus / found.gbps if bus is not None and found.gbps is not None else None,
        "wrong": sum(checked) if checked else None,
    }


def _finite(value: float) -> float | None:
    return value if value == value else None


def _fits(series: Series) -> list[FitEntry]:
    """A fit per algorithm and protocol that NCCL chose: a line over the sizes of several fits none of them."""
    chosen: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for index, now in enumerate(series.choice):
        if series.bytes[index] not in series.waiting:
            chosen[(now.algorithm, now.protocol or None) if now else (None, None)].append(index)
    return [_fit(series, own, algorithm, protocol) for (algorithm, protocol), own in chosen.items()]


def _fit(series: Series, own: Sequence[int], algorithm: str | None, protocol: str | None) -> FitEntry:
    sizes, times = np.array(series.bytes, np.int64)[own], np.array(series.dur, np.int64)[own]
    factor = busbw_factor(series.op, series.group_size)
    model: CostModel | str = f"{series.op} has no bus bandwidth"
    if series.lower_bound:
        model = "times include waiting: record all ranks of the group"
    elif factor:
        model = fit_or_why(sizes * factor, times)
    fitted = model if isinstance(model, CostModel) else None
    beta_error = fitted.beta_error if fitted else None
    return {
        "tool": series.tool,
        "run": series.run,
        "op": series.op,
        "group": series.group,
        "group_size": series.group_size,
        "algorithm": algorithm,
        "protocol": protocol,
        "sizes": len(distinct_values(sizes)),
        "alpha_ns": fitted.alpha if fitted else None,
        "alpha_error_ns": fitted.alpha_error if fitted else None,
        "busbw_gbps": 1 / fitted.beta if fitted and fitted.beta else None,
        "busbw_error_gbps": beta_error / fitted.beta**2 if fitted and fitted.beta and beta_error is not None else None,
        "error_frac": fitted.error if fitted else None,
        "why": model if isinstance(model, str) else "",
    }


ANALYZER = RunAnalyzer(
    "bandwidth",
    run,
    (
        Need(
            "collectives or measurements",
            "record NCCL's calls with their sizes (torch 2.4 and later), or add nccl-tests' output",
            any_of("collectives", "measurements"),
            optional=True,
        ),
    ),
    (BANDWIDTH, FITS, CROSSOVERS),
)
