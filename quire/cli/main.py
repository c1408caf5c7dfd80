"""The ``quire`` command: finds the subcommand, turns errors into exit codes; no command's work.

Exit codes: 0 done, 1 failure, 2 misuse, 130 after Ctrl-C. Results go to stdout, the rest to stderr.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from quire.core.errors import QuireError
from quire.settings.other_programs import instead_of

#: Name -> (where it lives, its line in ``quire --help``, which so imports no command).
COMMANDS = {
    "run": ("quire.cli.chat.run:run", "Talk to a model by its name, on a server that stays."),
    "serve": ("quire.cli.serve:serve", "Answer HTTP requests in OpenAI's and other APIs."),
    "generate": ("quire.cli.chat.generate:generate", "Complete prompts and print the text."),
    "chat": ("quire.cli.chat.chat:chat", "Talk to a model without a server."),
    "pull": ("quire.cli.models.pull:pull", "Download a model into the cache."),
    "list": ("quire.cli.models.list:list_", "Show the models on this machine."),
    "show": ("quire.cli.models.show:show", "Show what is known of a model."),
    "create": ("quire.cli.models.create:create", "Name a model with settings of its own."),
    "copy": ("quire.cli.models.copy:copy", "Give a model one more name."),
    "rm": ("quire.cli.models.rm:rm", "Remove models and their files."),
    "convert": ("quire.cli.models.convert:convert", "Write a checkpoint to a GGUF file."),
    "imatrix": ("quire.cli.models.imatrix:imatrix", "Write how much each input's errors count."),
    "quantize": (
        "quire.cli.models.quantize:quantize",
        "Write a checkpoint in few bits: GPTQ, AWQ, ...",
    ),
    "train-heads": (
        "quire.cli.models.train_heads:train_heads",
        "Train draft heads for a model on its own answers.",
    ),
    "finetune": (
        "quire.cli.models.finetune:finetune",
        "Train a model's own matrices: rounded (QAT), or by adapters (QLoRA).",
    ),
    "merge": ("quire.cli.models.merge:merge", "Write a model with an adapter added to it."),
    "ps": ("quire.cli.ps:ps", "Show the models of a running server."),
    "top": ("quire.cli.top.command:top", "Watch a running server: figures and alarms, live."),
    "stop": ("quire.cli.stop:stop", "Unload a model of a running server."),
    "ask": ("quire.cli.chat.ask:ask", "Ask a running server and print its answer as it arrives."),
    "bench": ("quire.cli.measure.bench:bench", "Measure a server under load, or weight formats."),
    "eval": (
        "quire.cli.measure.eval:evaluate",
        "Judge a model: perplexity, divergence, multiple choice.",
    ),
    "calc": ("quire.cli.calc.calc:calc", "Compute KV cache sizes and how many sequences fit."),
    "doctor": ("quire.cli.measure.doctor:doctor", "Show what this machine gives Quire, measured."),
    "completion": ("quire.cli.shell_completion:completion", "Print a shell's completion script."),
    "help": ("quire.cli.help:help_", "Show the help of a command."),
    "version": ("quire.cli.version:version", "Print version, commit and instruction set."),
}
#: Headings of ``quire --help``, and the first command under each.
SECTIONS = {
    "run": "Answers",
    "pull": "Models on this machine",
    "ps": "A running server",
    "calc": "More",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, None, COMMANDS, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        rows: dict[str, list[tuple[str, str]]] = {}
        for name, (_, line) in COMMANDS.items():
            heading = SECTIONS.get(name) or list(rows)[-1]
            rows.setdefault(heading, []).append((name.ljust(width), line))
        for heading, commands in rows.items():
            with formatter.section(heading):
                formatter.write_dl(commands)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from quire.cli.version import version_line

        click.echo(version_line())
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "-v",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print version, commit and instruction set, then exit.",
)
def cli() -> None:
    """Run language models on the machine you have.

    Begin with quire run smollm2, a small model that is pulled (98 MB), or with quire chat: without
    MODEL, chat, generate and serve use quire-tiny, the small chat model inside the package.
    """


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line ``args`` (default: this process's) and return the exit code."""
    try:
        result = cli.main(args, prog_name="quire", standalone_mode=False)
    except click.ClickException as error:
        _with_remedy(error).show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("quire: interrupted", err=True)
        return 130
    except QuireError as error:
        click.echo(f"quire: {error}", err=True)
        return 1
    except OSError as error:
        # The reader has gone (`quire generate | head`) or the disk is full. What is left must not
        # be flushed there again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            click.echo(f"quire: {error}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _with_remedy(error: click.ClickException) -> click.ClickException:
    """Return the error, with what to do instead of a flag or command that another program has."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error
    place = context.info_name or ""
    if isinstance(error, click.NoSuchOption):
        kind, name = "option", error.option_name
        instead = instead_of("flags", place).get(name)
    elif isinstance(error, click.NoSuchCommand):
        kind, name = "command", error.command_name
        instead = instead_of("commands", place).get(name)
        if instead is None and context.parent is None and _is_model(name):
            instead = f"Take quire run {name}."
    else:
        return error
    return (
        error
        if instead is None
        else click.UsageError(f"No such {kind} {name!r}. {instead}", context)
    )


def _is_model(name: str) -> bool:
    """Return whether a name is one of a model on this machine or in the catalogue."""
    from quire.store.hub import find_model
    from quire.store.named_models import named_model

    try:
        return find_model(name) is not None or named_model(name) is not None
    except QuireError:
        return False


def _fill_standard_streams() -> None:
    """Open the null device in the place of standard streams that are closed.

    Their numbers would be given to sockets and pipes, which get what is written to stderr, and
    which a child process does not inherit.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # the lowest number that is free is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def main() -> None:
    """Entry point of the ``quire`` script."""
    _fill_standard_streams()
    # Whatever the locale: bytes that are no text are refused where the text is read, with words,
    # and characters the terminal lacks are escaped.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    sys.exit(run())


if __name__ == "__main__":
    main()
