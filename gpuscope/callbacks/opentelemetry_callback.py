"""Measures and verdicts for OpenTelemetry: gauges with the rank as attribute, by the meter provider that is set up."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.metrics import MeterProvider, get_meter_provider

from gpuscope.callbacks.callback import MEASURES, VERDICT_MEASURES, AlertChange, StepMeasures, WindowVerdict
from gpuscope.version import __version__

_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "joules": "J"}


class OpenTelemetryCallback:
    """Records with `provider`, else with the global one; where and how often it is exported is that one's business.
    `at_the_end` is called by `close`, such as the `shutdown` of a provider made for this run."""

    def __init__(
        self, provider: MeterProvider | None = None, *, at_the_end: Callable[[], object] = lambda: None
    ) -> None:
        self._at_the_end = at_the_end
        meter = (provider or get_meter_provider()).get_meter("gpuscope", __version__)
        self._gauges = {
            name: meter.create_gauge(f"gpuscope.{name}", unit=_UNITS.get(name.rpartition("_")[2], ""))
            for name in (*MEASURES, *VERDICT_MEASURES, "step", "alert")
        }

    def on_step(self, measures: StepMeasures) -> None:
        rank = {"gpuscope.rank": measures.rank}
        self._gauges["step"].set(measures.step, rank)
        for name, value in measures.values.items():
            self._gauges[name].set(value, rank)

    def on_verdict(self, verdict: WindowVerdict) -> None:
        said = {"gpuscope.bound_by": verdict.bound_by or "", "gpuscope.cause": verdict.cause or ""}
        for name, value in verdict.values.items():
            self._gauges[name].set(value, said)

    def on_alert(self, alert: AlertChange) -> None:
        said = {"gpuscope.alert": alert.code, "gpuscope.ranks": ",".join(map(str, alert.ranks))}
        self._gauges["alert"].set(int(not alert.over), said)

    def close(self) -> None:
        self._at_the_end()
