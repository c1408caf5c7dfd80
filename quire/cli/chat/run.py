"""``quire run``: a model by its name, pulled if it must be, on the running server or a new one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import click

from quire.cli.chat.prompt_text import joined_prompt
from quire.cli.flags.lora_flag import largest_rank, lora_option
from quire.cli.flags.sampling_flags import sampling_flags
from quire.cli.server_connection import (
    LOOPBACK,
    NoServerError,
    ServerRefusal,
    base_url_option,
    connect,
    read_answer,
    request,
)
from quire.core.errors import ConfigError
from quire.core.plurals import counted
from quire.settings.adapter_options import AdapterOptions
from quire.system import env

if TYPE_CHECKING:
    from http.client import HTTPConnection

#: After so long people are told what they wait for.
TELL_SECONDS = 1.0
#: A server that was started for this gets as long to listen; models take their own time.
START_SECONDS = 60.0
#: Values of ``--think``; without one it is the first.
THINK = ("true", "false", "low", "medium", "high", "max")


class RunCommand(click.Command):
    """A command whose ``--think`` takes a value after ``=`` only, as Ollama's does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write the value out; what follows the flag is the prompt's."""
        at = args.index("--") if "--" in args else len(args)
        flags = [f"--think={THINK[0]}" if one == "--think" else one for one in args[:at]]
        return super().parse_args(ctx, flags + args[at:])


@click.command(cls=RunCommand)
@click.argument("model")
@click.argument("prompt", nargs=-1)
@base_url_option
@click.option("--system", help="system prompt")
@click.option("--verbose", is_flag=True, help="say how fast the answer to PROMPT came, on stderr")
@click.option(
    "--keep-alive",
    "--keepalive",
    metavar="TIME",
    help="time that MODEL stays loaded unused: 10m; -1: for ever",
)
@click.option(
    "--think",
    metavar="HOW",
    type=click.Choice(THINK),
    help="thinking before the answer: --think=false, --think=high ...",
)
@click.option("form", "--format", metavar="FORM", help="json, or a JSON schema that answers follow")
@lora_option
@sampling_flags
def run(
    model: str,
    prompt: tuple[str, ...],
    base_url: str,
    system: str | None,
    verbose: bool,
    lora: Path | None,
    sampling: dict[str, Any],
    **wishes: str | None,
) -> None:
    """Talk to MODEL, or answer PROMPT and leave.

    Several words are one PROMPT. A file or pipe as stdin is put before it; - is stdin alone.

    MODEL is a name, a hub id, a folder or a GGUF file. It is pulled if it is not on this machine,
    unless it can never be loaded here; of a repository with several GGUF files, one that fits
    (quire help pull). The running server answers; where there is none, one is started that stays
    when this ends: quire ps shows its models, quire stop unloads one.
    """
    asked = joined_prompt(" ".join(prompt) if prompt else None)
    if asked is not None and not asked.strip():
        raise click.UsageError("[run] a prompt must have text; got none.")
    keep_alive, fields = wishes["keep_alive"], _fields(wishes["think"], wishes["form"])
    stay = None if keep_alive is None else _seconds(keep_alive)
    place = urlsplit(base_url)
    is_here = place.scheme == "http" and place.hostname in LOOPBACK
    if is_here:
        model = _named(model)
    try:
        _load(base_url, model)
    except NoServerError:
        if not is_here:
            raise
        _pull_missing(model)  # first: a wrong name starts no server
        _start_server(base_url, model, lora)
        _load(base_url, model)
    name = model if lora is None else _load_adapter(base_url, lora)
    if stay is not None:
        _keep(base_url, model, stay)

    from quire.cli.chat.chat_session import ChatSession
    from quire.cli.chat.remote_chat import RemoteChat

    model_chat = RemoteChat(base_url, name, fields)
    session = ChatSession(model_chat, system=system, sampling=sampling)
    if asked is None:
        from quire.cli.chat.chat_loop import converse

        converse(session, name)
        return
    from quire.cli.chat.answer_view import show_answer
    from quire.cli.chat.echo_off import silent_input

    session.ask(asked)
    with silent_input():
        show_answer(session.answer(stopped=lambda: False))
    if verbose:
        click.echo(f"[{session.last_summary}]", err=True)
    elif session.limit_reached is not None:
        click.echo(
            f"quire: the answer was cut at {counted(session.limit_reached, 'token')}. Give "
            "--max-tokens for more.",
            err=True,
        )


def _fields(think: str | None, form: str | None) -> dict[str, Any]:
    """Return the fields of requests that ``--think`` and ``--format`` ask for."""
    fields: dict[str, Any] = {}
    if think in ("true", "false"):
        fields["enable_thinking"] = think == "true"
    elif think is not None:
        fields["reasoning_effort"] = think
    if form == "json":
        fields["response_format"] = {"type": "json_object"}
    elif form is not None:
        try:
            schema = json.loads(form)
        except ValueError:
            schema = None
        if not isinstance(schema, dict):
            raise click.UsageError(f"[run] --format must be json or a JSON schema; got {form!r}.")
        json_schema = {"name": "answer", "schema": schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    return fields


def _named(model: str) -> str:
    """Return the name of a folder or file, and say so if it is new; others are names."""
    from quire.cli.chat.named_path import name_path

    found = name_path(model)
    if found is None:
        return model
    name, is_new = found
    if is_new:
        told = f"{model} has the name {name} now. quire list shows it, quire rm {name} removes it."
        click.echo(told, err=True)
    return name


def _load_adapter(base_url: str, folder: Path) -> str:
    """Load an adapter into the server, and return its name.

    Raises:
        ConfigError: The server takes no adapters.
    """
    path, name = str(folder.resolve()), folder.resolve().name
    connection, prefix = connect(base_url)
    with closing(connection):
        cards = read_answer(request(connection, "GET", f"{prefix}/v1/models"))["data"]
        for card in cards:
            if card.get("parent") and card["root"] == path:
                return str(card["id"])
        body = {"lora_name": name, "lora_path": path}
        try:
            request(connection, "POST", f"{prefix}/v1/load_lora_adapter", body).read()
        except ServerRefusal as refusal:
            if refusal.status != 404:
                raise
            raise ConfigError(
                "[run] --lora needs a server that was started with --enable-lora "
                "--allow-runtime-lora-updating; got one without. Start it so with one MODEL, or "
                f"use quire chat MODEL --lora {folder}."
            ) from refusal
    return name


def _seconds(keep_alive: str) -> float | None:
    """Return how long a model stays, negative for ever, as Ollama reads it."""
    from quire.protocol.ollama.ollama import read_keep_alive

    is_number = keep_alive.removeprefix("-").isdecimal()
    seconds = read_keep_alive(float(keep_alive) if is_number else keep_alive)
    return -1 if seconds == math.inf else seconds


def _keep(base_url: str, model: str, seconds: float) -> None:
    """Tell the server to keep a loaded model for ``seconds`` after each request."""
    body = {"model": model, "keep_alive": seconds, "stream": False}
    connection, prefix = connect(base_url)
    with closing(connection):
        read_answer(request(connection, "POST", f"{prefix}/api/generate", body))


def _load(base_url: str, model: str) -> None:
    """Load a model into the server; pull it first if a server of this machine lacks it."""
    try:
        _ask_to_load(base_url, model)
    except ServerRefusal as refusal:
        if refusal.status != 404 or urlsplit(base_url).hostname not in LOOPBACK:
            raise
        from quire.store.store import Store

        Store().pull(model, must_fit=True)
        _ask_to_load(base_url, model)


def _pull_missing(model: str) -> None:
    """Pull a model that is not on this machine.

    Raises:
        ModelLoadError: The model does not exist, or can never be loaded here.
    """
    from quire.store.hub import find_model
    from quire.store.store import Store

    if find_model(model) is None:
        Store().pull(model, must_fit=True)


def _ask_to_load(base_url: str, model: str) -> None:
    """Load a model, and return once it is loaded, or once requests get the reason why not."""
    connection, prefix = connect(base_url)
    with closing(connection):
        _wait(connection, prefix, model)  # for the model that the server has begun with
        read_answer(request(connection, "POST", f"{prefix}/models/load", {"model": model}))
        _wait(connection, prefix, model)  # another client may have asked first


def _wait(connection: HTTPConnection, prefix: str, model: str) -> None:
    """Return when the model is no longer being loaded, and say so if that is not soon."""
    begin, told = time.monotonic(), False
    while _is_loading(connection, prefix, model):
        if not told and time.monotonic() - begin > TELL_SECONDS:
            told = True
            click.echo(f"loading {model}", err=True)
        time.sleep(0.02)


def _is_loading(connection: HTTPConnection, prefix: str, model: str) -> bool:
    try:
        request(connection, "GET", f"{prefix}/health?{urlencode({'model': model})}").read()
    except ServerRefusal as refusal:
        return refusal.retry_after is not None  # else it cannot be loaded, or waits for others
    return False


def _start_server(url: str, model: str, lora: Path | None) -> None:
    """Start a server that outlives this process, and return when it serves ``model`` or cannot.

    One that takes adapters has that one model.
    """
    place = urlsplit(url)
    log = env.cache_folder() / "serve.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    click.echo(f"starting a server at {url}; it logs to {log}", err=True)
    command = [sys.executable, "-m", "quire.cli.main", "serve"]
    if lora is None:
        command += ["--load-on-demand", "--preload", model]
    else:
        rank = str(max(AdapterOptions().max_lora_rank, largest_rank(lora)))
        command += [model, "--enable-lora", "--allow-runtime-lora-updating"]
        command += ["--max-lora-rank", rank]
    command += ["--host", place.hostname or "", "--port", str(place.port or 80)]
    with log.open("ab") as output:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    end = time.monotonic() + START_SECONDS
    # What comes next is imported while the server starts.
    import quire.cli.chat.chat_session
    import quire.cli.chat.remote_chat  # noqa: F401

    while time.monotonic() < end:
        if started.poll() is not None:
            raise ConfigError(f"[run] the server has ended; see the last lines of {log}.")
        if _serves(url):
            return
        time.sleep(0.02)
    raise ConfigError(f"[run] the server does not answer after {START_SECONDS:g} s; see {log}.")


def _serves(url: str) -> bool:
    connection, prefix = connect(url)
    with closing(connection):
        try:
            request(connection, "GET", f"{prefix}/health").read()
        except (NoServerError, ServerRefusal):
            return False
    return True
