"""Measures and verdicts for Prometheus: gauges with the rank as label, scraped over HTTP or written as a text file."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, start_http_server, write_to_textfile

from gpuscope.callbacks.callback import MEASURES, VERDICT_MEASURES, AlertChange, StepMeasures, WindowVerdict

_CLASSES = ("cpu", "communication", "memory", "compute")


class PrometheusCallback:
    """Keeps the last values in `registry`; serves them at `port` of `host`, or writes them to `textfile` for the node
    exporter (its name must end in `.prom`)."""

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        textfile: str | os.PathLike[str] | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._textfile = textfile
        self._measures = {
            name: Gauge(f"gpuscope_{name}", f"{_words(name)} of a rank's last step", ["rank"], registry=self.registry)
            for name in MEASURES
        }
        self._step = Gauge("gpuscope_step", "Number of a rank's last step", ["rank"], registry=self.registry)
        self._verdict = {
            name: Gauge(f"gpuscope_{name}", f"{_words(name)} of the finished windows", registry=self.registry)
            for name in VERDICT_MEASURES
        }
        self._bound = Gauge(
            "gpuscope_bound_by",
            "1 for what bounds the finished windows",
            ["bound_by"],
            registry=self.registry,
        )
        self._alert = Gauge("gpuscope_alert", "1 while an alert lasts", ["alert", "ranks"], registry=self.registry)
        self._server: Any = None if port is None else start_http_server(port, addr=host, registry=self.registry)

    @property
    def port(self) -> int | None:
        """The port in use; None where nothing is served."""
        return None if self._server is None else int(self._server[0].server_port)

    def on_step(self, measures: StepMeasures) -> None:
        rank = str(measures.rank)
        self._step.labels(rank).set(measures.step)
        for name, value in measures.values.items():
            self._measures[name].labels(rank).set(value)
        self._write()

    def on_verdict(self, verdict: WindowVerdict) -> None:
        for name, value in verdict.values.items():
            self._verdict[name].set(value)
        for name in _CLASSES:
            self._bound.labels(name).set(int(name == verdict.bound_by))
        self._write()

    def on_alert(self, alert: AlertChange) -> None:
        self._alert.labels(alert.code, ",".join(map(str, alert.ranks))).set(int(not alert.over))
        self._write()

    def close(self) -> None:
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()

    def _write(self) -> None:
        if self._textfile is not None:
            write_to_textfile(os.fspath(self._textfile), self.registry)


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
