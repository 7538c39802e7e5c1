"""The `gpuscope` command: finds its subcommands and turns errors into exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from gpuscope.errors import (
    EXIT_CODES,
    EXTRA_OF,
    INTERRUPTED,
    NOBODY_READS,
    GpuscopeError,
    InputError,
    MissingExtraError,
    UsageError,
)
from gpuscope.plugins import COMMAND_FOLDERS, COMMANDS, load, own_commands, plugins
from gpuscope.version import __version__
from gpuscope.when_used import dataclass

EPILOG = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}."


_OBJECTS_BETWEEN_COLLECTIONS = 500_000
"""A start and a small analysis make a hundred thousand, which all stay: one look through them is 4 % of the time."""


_ONLY_OURS = COMMAND_FOLDERS[:2]
"""Folders of commands that run nothing but gpuscope."""


def command_names() -> list[str]:
    """Every command, in order."""
    return sorted({*own_commands(), *plugins(COMMANDS)})


def _is_command(name: str) -> bool:
    return name in own_commands() or name in plugins(COMMANDS)


@dataclass
class Run:
    """One call of the command line."""

    debug: bool = False
    """Whether errors are shown with their traceback."""
    others: bool = False
    """Whether a command was called that may run another's program in this process, or is another distribution's."""
    status: int | None = None
    """The exit code, once it is known."""


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    run = ctx.find_root().obj
    if value and isinstance(run, Run):
        run.debug = True
        # What analyses log of the bugs that they outlive; workers are other processes and log nothing.
        import logging

        logging.basicConfig(stream=sys.stderr)
        logging.getLogger("gpuscope").setLevel(logging.DEBUG)


def _debug_option(**attributes: Any) -> click.Option:
    return click.Option(["--debug"], is_flag=True, expose_value=False, is_eager=True, callback=_set_debug, **attributes)


def _accepting_debug(command: click.Command) -> click.Command:
    """The command, and those in it, with a hidden `--debug`; not where unknown options are another program's."""
    taken = {option for param in command.params for option in param.opts}
    if "--debug" not in taken and not command.context_settings.get("ignore_unknown_options"):
        command.params.append(_debug_option(hidden=True))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _accepting_debug(inner)
    return command


class Commands(click.Group):
    """A group of gpuscope's own commands and of those that other distributions plug in, loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return command_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if not _is_command(cmd_name):
            return None
        command = load(COMMANDS, cmd_name)
        assert isinstance(command, click.Command)
        return _accepting_debug(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, with the settings file's defaults; near misses of its name are told."""
        if args and not _is_command(args[0]) and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f"did you mean: gpuscope {' '.join([*close, *args[1:]])}" if close else "gpuscope --help lists them"
            raise UsageError(f"no command {args[0]!r}", hint=hint)
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(run := ctx.find_root().obj, Run):
            run.others = not own_commands().get(str(name), "").startswith(_ONLY_OURS)
        if command is not None and name is not None and not ctx.resilient_parsing:
            _use_settings_file(ctx, name, command)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error  # click itself would exit with 1, which means something else here


def _use_settings_file(ctx: click.Context, name: str, command: click.Command) -> None:
    from gpuscope import settings_file

    settings = settings_file.found()
    if settings is not None:
        settings_file.use_hardware(settings)
        ctx.default_map = {name: settings_file.defaults(settings, name, command, command_names())}


class _ReaderGoneError(Exception):
    """Nobody reads stdout any more (`gpuscope … | head`)."""


OUT_OF_MEMORY = (
    "this process may not take more memory\n"
    "Hint: --jobs 1 reads one file at a time, --ranks takes some of them; else record fewer steps"
)


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuscope")
def cli() -> None:
    """Where the time of a multi-GPU training step goes, what causes it, and what to change."""


cli.params.append(_debug_option(envvar="GPUSCOPE_DEBUG", help="Show the traceback of an error."))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with a documented code; an error is a message, without `--debug` no traceback."""
    run = Run()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    if argv is None:
        atexit.register(_leave, run)  # first in, last out: what others register is called before
    try:
        _main(argv, run)
    except SystemExit as end:
        run.status = end.code if isinstance(end.code, int) else None
        raise


def _leave(run: Run) -> None:
    """Without taking down what is left, object by object, which is a thirtieth of a small analysis; other programs may
    count on that."""
    if run.others or run.status is None:
        gc.freeze()  # it needs no last look
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    os._exit(run.status)


def _main(argv: Sequence[str] | None, run: Run) -> NoReturn:
    try:
        status = cli.main(args=argv, prog_name="gpuscope", standalone_mode=False, obj=run)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except GpuscopeError as error:
        _show_traceback(run)
        _say(f"Error: {error}")
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_OF:
            _exit_unexpected(error, run)
        click.echo(f"Error: {MissingExtraError(missing)}", err=True)
        sys.exit(MissingExtraError.exit_code)
    except MemoryError:
        _show_traceback(run)
        click.echo(f"Error: {OUT_OF_MEMORY}", err=True)
        sys.exit(GpuscopeError.exit_code)
    except (_ReaderGoneError, BrokenPipeError):
        # Not an error, but what is left in the buffer can't be flushed any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(NOBODY_READS)
    except OSError as error:
        _show_traceback(run)
        _say(f"Error: {error.filename or 'stdout'}: {error.strerror or error}")
        with suppress(OSError):  # a stdout that is no file needs none of this
            if sys.stdout is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(InputError.exit_code)
    except Exception as error:
        _exit_unexpected(error, run)
    sys.exit(status if isinstance(status, int) else 0)


def _say(message: str) -> None:
    """On stderr; names of files in it are never commands to the terminal."""
    from gpuscope.words import units

    click.echo(units.clean_lines(message), err=True)


def _exit_unexpected(error: Exception, run: Run) -> NoReturn:
    """A bug: one line, and how to get the rest."""
    _show_traceback(run)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    _say(f"Error: unexpected {what}")
    if not run.debug:
        click.echo("Hint: this is a bug in gpuscope; --debug or GPUSCOPE_DEBUG=1 shows the traceback", err=True)
    sys.exit(GpuscopeError.exit_code)


def _show_traceback(run: Run) -> None:
    """Of the error being handled, where that was asked for."""
    if run.debug:
        import traceback

        traceback.print_exc()
