"""`plugml`: the group of verbs, and what every verb shares: how an error is told, and which exit code it gives.

A verb's module is imported when the verb is used, so that `plugml --help` needs neither numpy nor zmq.

    exit codes   0 well   1 an error that was told   2 usage   69 no cluster   73 channel root full   75 stopped, resume
                 77 keys   130 Ctrl-C   141 the reader of our output has gone   else a worker's own (see `plugml run --help`)
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from .. import __version__
from ..core.errors import PlugmlError
from ..runtime.descriptors import fill_standard


class Verb(NamedTuple):
    """Where a verb is found, and its line in the list."""

    module: str
    attribute: str
    help: str


SECTIONS: dict[str, dict[str, Verb]] = {
    "Train": {
        "run": Verb("run", "run", "Run a serial training program as N workers that train one model together."),
        "channel": Verb("channel", "channel", "Open a channel by hand, for a console or a debugger."),
        "conform": Verb("conform", "conform", "Prove that a program, or a client in a new language, keeps to SPEC.md."),
    },
    "Files": {
        "inspect": Verb("inspect", "inspect", "Say what is in a file of numbers, a result or a channel."),
    },
    "A standing cluster on this host": {
        "up": Verb("up", "up", "Start master, servers and agent, and keep them running."),
        "down": Verb("up", "down", "End them."),
        "status": Verb("status", "status", "Who is alive, which jobs there are, where their tables lie and why."),
        "drain": Verb("servers", "drain", "Move everything that a server holds to the others."),
        "scale": Verb("servers", "scale", "Spread what there is over the servers that are there."),
        "logs": Verb("logs", "logs", "What the nodes, or the workers of a job, have said."),
    },
    "Jobs": {
        "jobs": Verb("status", "jobs", "List the jobs."),
        "checkpoint": Verb("job", "checkpoint", "Make a checkpoint of a running job."),
        "stop": Verb("job", "stop", "End a running job."),
        "rm": Verb("job", "rm", "Forget a job that has ended."),
    },
    "Daemons, for systemd, Slurm, Kubernetes or by hand": {
        "master": Verb("daemons", "master", "Decide who owns what."),
        "server": Verb("daemons", "server", "Keep the values."),
        "agent": Verb("daemons", "agent", "Serve this host's programs."),
        "keygen": Verb("keygen", "keygen", "Make the keys of a cluster of several hosts."),
    },
    "Shell": {
        "completion": Verb("completion", "completion", "Print the code that completes plugml's words in your shell."),
    },
}
VERBS = {name: verb for verbs in SECTIONS.values() for name, verb in verbs.items()}

EXAMPLES = """\b
Examples:
  plugml run -n 4 --table w=10,64 -- ./trainer data.csv
  plugml up -d && plugml status
  plugml VERB --help
"""


class Verbs(click.Group):
    """Loads a verb when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(import_module(f".{verb.module}", __package__), verb.attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            near = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(VERBS)}"
            ctx.fail(f"no verb {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, verb.help) for name, verb in verbs.items()], col_max=12)


@click.group(
    cls=Verbs,
    epilog=EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", message="plugml %(version)s")
@click.pass_context
def plugml(context: click.Context) -> None:
    """Distributed training for the program that you already have."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    fill_standard()
    try:
        code = plugml.main(arguments, prog_name="plugml", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _usage(error)
    except PlugmlError as error:
        return _told(getattr(error, "text", str(error)), getattr(error, "exit_code", 1))
    except (KeyboardInterrupt, click.Abort):
        return 130
    except SystemExit as end:  # click's own: it has completed a word, or found that the reader of our output has gone
        if "_PLUGML_COMPLETE" in os.environ:
            return int(end.code or 0)
        _drop_output()
        return 141
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        return _told(_sentence(error), 1)


def _usage(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if context is not None:
        print(f"{context.get_usage()}\nTry '{context.command_path} --help'.\n", file=sys.stderr)
    return _told(error.format_message(), error.exit_code)


def _told(sentence: str, exit_code: int) -> int:
    try:
        print(f"plugml: {sentence}", file=sys.stderr, flush=True)
    except OSError:
        return exit_code  # nobody reads it
    return exit_code


def _sentence(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else "cannot go on: "
    return f"{where}{error.strerror or error}"


def _drop_output() -> None:
    """What is still in the buffers goes nowhere, so that the interpreter's last flush is silent."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
