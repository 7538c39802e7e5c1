"""`gpuscope completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import os
from pathlib import PurePath

import click

from gpuscope.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
INSTALLED = {
    "bash": 'eval "$(gpuscope completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(gpuscope completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "gpuscope completion fish > ~/.config/fish/completions/gpuscope.fish",
}


@click.command(short_help="Print the script that completes gpuscope in a shell.")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def command(ctx: click.Context, shell: str | None) -> None:
    """Print a script that makes SHELL complete commands, options and their values; by default for $SHELL.

    \b
    eval "$(gpuscope completion bash)"     # in ~/.bashrc
    eval "$(gpuscope completion zsh)"      # in ~/.zshrc, after compinit
    gpuscope completion fish > ~/.config/fish/completions/gpuscope.fish
    """
    from click.shell_completion import get_completion_class

    name = shell or PurePath(os.environ.get("SHELL", "")).name
    maker = get_completion_class(name) if name in SHELLS else None
    if maker is None:
        raise UsageError(f"no completion for the shell {name or '(unknown)'}", hint=f"name one: {', '.join(SHELLS)}")
    click.echo(maker(ctx.find_root().command, {}, "gpuscope", "_GPUSCOPE_COMPLETE").source())
    click.echo(f"To have it in every shell: {INSTALLED[name]}", err=True)
