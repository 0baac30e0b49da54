"""`plugml completion`: what a shell needs to complete our words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog='\b\nExamples:\n  eval "$(plugml completion bash)"\n  plugml completion fish > ~/.config/fish/completions/plugml.fish')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the code that completes plugml's words in bash, zsh or fish."""
    from .main import plugml

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(plugml, {}, "plugml", "_PLUGML_COMPLETE").source())
