"""``quire serve``: load a model and answer HTTP requests until a signal comes."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, get_type_hints

import click

from quire.cli.engine_flags import EngineCommand, config_option, engine_flags
from quire.core import env
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.core.known_settings import SERVER
from quire.server.options import ServerOptions

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def server_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the server's flags; it receives them as ``options``."""
    settings = [
        (field, get_type_hints(ServerOptions)[field.name]) for field in fields(ServerOptions)
    ]

    @functools.wraps(function)
    def command(**keywords: Any) -> Any:
        given = {field.name: keywords.pop(field.name) for field, _ in settings}
        try:
            options = ServerOptions(**given)
        except ConfigError as error:
            raise click.UsageError(str(error)) from error
        return function(options=options, **keywords)

    for field, hint in reversed(settings):
        config_option(field, hint, click.Option)(command)
    return command


@click.command(cls=EngineCommand, known=SERVER)
@engine_flags
@server_flags
def serve(config: EngineConfig, options: ServerOptions) -> None:
    """Answer HTTP requests in OpenAI's API with MODEL (default: quire-tiny).

    SIGTERM or Ctrl-C lets running requests finish for --shutdown-timeout seconds.
    """
    started = time.perf_counter()
    from quire.core.log import get_logger, set_format
    from quire.llm.process.proxy import EngineProxy
    from quire.server.access.authentication import read_key_file
    from quire.server.generation.service import Service
    from quire.server.lifecycle import address, bind, run_server
    from quire.server.observability.tracing import check_available

    # The thread that reads the engine's outputs and the event loop share the GIL. At Python's 5 ms
    # per turn a small model, which makes a token in 0.3 ms, would wait for its own server.
    sys.setswitchinterval(0.001)
    key = env.get("QUIRE_API_KEY")
    if key is not None:
        options = replace(options, api_key=(*options.api_key, key))
    keys = [] if options.api_key_file is None else read_key_file(options.api_key_file)
    log = get_logger(__name__)
    set_format(options.log_format)
    if options.otlp_traces_endpoint is not None:
        check_available()  # before the model is loaded
    listener = bind(options)
    engine = EngineProxy(
        config,
        watchdog_timeout=options.watchdog_timeout,
        log_format=options.log_format,
        grammar_timeout=options.grammar_compilation_timeout,
    )
    service = Service(engine, engine.config, options, tuple(keys))
    if options.uds is None and options.host not in LOOPBACK and not service.keys:
        log.warning("%s is reachable by others and needs no key", options.host)

    def announce() -> None:
        seconds = time.perf_counter() - started
        name = service.model_names[0]
        scheme = "http" if options.ssl_certfile is None else "https"
        line = f"ready: {address(listener, scheme)} serves {name} after {seconds:.1f} s"
        if options.log_format == "json":
            log.info("%s", line)
        else:
            with suppress(OSError):  # stderr on a full disk is no reason not to serve
                click.echo(line, err=True)

    run_server(service, listener, announce)
