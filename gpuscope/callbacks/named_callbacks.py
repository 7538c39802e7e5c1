"""Callbacks by name, as the command line asks for them: `tensorboard=logs`, `prometheus=:9400`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuscope.callbacks.callback import Callback
from gpuscope.errors import UsageError


def callback_named(asked: str) -> Callback:
    """The callback that `NAME` or `NAME=TARGET` means.

    Raises `UsageError` for no such name or a wrong target, `ModuleNotFoundError` where its library is not installed.
    """
    name, _, target = asked.partition("=")
    if name not in BY_NAME:
        raise UsageError(f"--to {asked}: no such target", hint=f"there are: {', '.join(USES)}")
    return BY_NAME[name](target)


def _tensorboard(target: str) -> Callback:
    if not target:
        raise UsageError("--to tensorboard needs a folder", hint="--to tensorboard=logs")
    from gpuscope.callbacks.tensorboard_callback import TensorBoardCallback

    return TensorBoardCallback(target)


def _wandb(target: str) -> Callback:
    from gpuscope.callbacks.wandb_callback import WandbCallback

    return WandbCallback(target or "gpuscope")


def _mlflow(target: str) -> Callback:
    from gpuscope.callbacks.mlflow_callback import MlflowCallback

    return MlflowCallback(target or "gpuscope")


def _prometheus(target: str) -> Callback:
    from gpuscope.callbacks.prometheus_callback import PrometheusCallback

    if target.endswith(".prom"):
        return PrometheusCallback(textfile=target)
    host, colon, port = target.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--to prometheus={target}: neither HOST:PORT nor FILE.prom", hint="--to prometheus=:9400")
    return PrometheusCallback(host=host or "127.0.0.1", port=int(port))


def _opentelemetry(target: str) -> Callback:
    if target:
        raise UsageError("--to opentelemetry takes no target", hint="OTEL_EXPORTER_OTLP_ENDPOINT says where")
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from gpuscope.callbacks.opentelemetry_callback import OpenTelemetryCallback

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    return OpenTelemetryCallback(provider, at_the_end=provider.shutdown)


BY_NAME: Mapping[str, Callable[[str], Callback]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "prometheus": _prometheus,
    "opentelemetry": _opentelemetry,
}
USES = (
    "tensorboard=DIR",
    "wandb[=PROJECT]",
    "mlflow[=EXPERIMENT]",
    "prometheus=[HOST]:PORT|FILE.prom",
    "opentelemetry",
)
