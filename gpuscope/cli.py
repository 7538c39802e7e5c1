"""The `gpuscope` command: finds its subcommands by entry point and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from gpuscope.errors import EXTRA_OF, GpuscopeError, MissingExtraError
from gpuscope.plugins import COMMANDS, load, plugins
from gpuscope.version import __version__

EPILOG = """Exit codes: 0 done; 1 a finding reaches --fail-on, or `check` fails; 2 wrong use; 3 an input is missing,
can't be read or is cut off (--partial takes what is there); 4 an analysis failed."""


class Commands(click.Group):
    """A group whose commands are the entry points of `gpuscope.commands`, loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(plugins(COMMANDS))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in plugins(COMMANDS):
            return None
        command = load(COMMANDS, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error  # click itself would exit with 1, which means something else here


class _ReaderGoneError(Exception):
    """Nobody reads stdout any more (`gpuscope … | head`)."""


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuscope")
def cli() -> None:
    """Where the time of a multi-GPU training step goes, whose fault it is, and what to change."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with a documented code; a known error is one message, no traceback."""
    try:
        status = cli.main(args=argv, prog_name="gpuscope", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except GpuscopeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_OF:
            raise
        click.echo(f"Error: {MissingExtraError(missing)}", err=True)
        sys.exit(MissingExtraError.exit_code)
    except (_ReaderGoneError, BrokenPipeError):
        # Not an error, but what is left in the buffer can't be flushed any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        click.echo(f"Error: {error.filename or 'stdout'}: {error.strerror or error}", err=True)
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(3)
    sys.exit(status if isinstance(status, int) else 0)
