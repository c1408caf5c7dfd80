"""``quire completion``: the script that makes a shell complete our commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    bash: eval "$(quire completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc;
    fish: quire completion fish > ~/.config/fish/completions/quire.fish
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None, shell
    root = ctx.find_root().command
    click.echo(completion_class(root, {}, "quire", "_QUIRE_COMPLETE").source())
