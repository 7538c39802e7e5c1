"""One base class for everything a user can fix; only `gpuscope.cli.main` turns it into an exit code."""

from __future__ import annotations

INTERRUPTED, NOBODY_READS = 130, 141
"""Exit codes of a command that was stopped, as shells have them: 128 and the number of SIGINT or SIGPIPE."""

EXIT_CODES = {
    0: "done",
    1: "a finding reaches --fail-on, `check` fails, or `watch --once` has an alert",
    2: "wrong use: an unknown option, two files of one rank, a run compared with itself, an output that exists",
    3: "an input is missing, can't be read or is cut off (--partial takes what is there), or an output "
    "can't be written",
    4: "an analysis, or gpuscope itself, failed (--debug or GPUSCOPE_DEBUG=1 shows the traceback)",
    INTERRUPTED: "interrupted (Ctrl-C), or a question was answered with no",
    NOBODY_READS: "nobody reads the output any more (a closed pipe, as in `gpuscope … | head`)",
}
"""Every exit code of the command line and its meaning; `record` exits with that of the command it ran."""


class GpuscopeError(Exception):
    """What went wrong, in which file, and how to fix it. `exit_code` is the process's exit status."""

    exit_code = 4
    remedy = "run it again with --debug, and report the traceback"
    """The hint of an error that has none of its own."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.remedy

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


class UsageError(GpuscopeError):
    """Wrong usage: contradictory options, or two files of one rank."""

    exit_code = 2
    remedy = "the command's --help lists what it takes"


class SeveralRoles(UsageError):  # noqa: N818 - the question is which
    """A folder holds jobs of several roles, and none was chosen."""

    def __init__(self, folder: str, roles: list[str]) -> None:
        self.roles = roles
        super().__init__(
            f"{folder}: holds jobs of several roles: {', '.join(roles)}",
            hint="gpuscope analyze judges each; elsewhere name the folder of one",
        )


EXTRA_OF = {
    "torch": "train",
    "nvtx": "train",
    "pynvml": "train",
    "pyarrow": "arrow",
    "dash": "dashboard",
    "dash_ag_grid": "dashboard",
    "dash_mantine_components": "dashboard",
    "flask": "dashboard",
    "flask_compress": "dashboard",
    "plotly": "dashboard",
    "waitress": "dashboard",
    "werkzeug": "dashboard",
    "accelerate": "integrations",
    "transformers": "integrations",
    "lightning": "integrations",
    "dask": "cluster",
    "distributed": "cluster",
    "fsspec": "cluster",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "pydantic": "mcp",
    "tensorboard": "callbacks",
    "wandb": "callbacks",
    "mlflow": "callbacks",
    "prometheus_client": "callbacks",
    "opentelemetry": "callbacks",
}
"""Which extra brings a library that not every use needs."""


class MissingExtraError(UsageError, ImportError):
    """A library of `EXTRA_OF` is not installed; the hint installs it. Also an `ImportError`, as Python raises."""

    def __init__(self, library: str) -> None:
        super().__init__(f"this needs {library}, which is not installed", hint=install_hint(EXTRA_OF[library]))
        self.name = library


def install_hint(extra: str) -> str:
    """The command that installs what an extra brings, by the libraries' own names: that works for a gpuscope from a
    file or a clone too, where an index knows none or another."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        wanted = [line.partition(";") for line in requires("gpuscope") or []]
    except PackageNotFoundError:
        return f"pip install 'gpuscope[{extra}]'"
    named = [f"'{name.strip()}'" for name, _, marker in wanted if f"extra == '{extra}'" in marker.replace('"', "'")]
    return f"pip install {' '.join(named)}" if named else f"pip install 'gpuscope[{extra}]'"


class InputError(GpuscopeError):
    """An input is missing, can't be read, or is cut off."""

    exit_code = 3
    remedy = "check the path, and that the file was copied whole; docs/formats.md lists what is read"

    def naming(self, shown: object, path: object) -> InputError:
        """The same, of a temporary copy at `path`, as users know it."""
        return InputError(self.message.replace(str(path), str(shown)), hint=self.hint)


class AnalysisError(GpuscopeError):
    """An analysis failed on input that could be read."""

    exit_code = 4
