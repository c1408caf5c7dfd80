"""``quire serve``: load a model and answer HTTP requests until a signal arrives."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from quire.cli.flags.engine_flags import EngineCommand, config_option, engine_flags
from quire.core.errors import ConfigError
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from quire.settings.flags import read_flags
from quire.settings.known_settings import server_settings
from quire.system import env
from quire.system.background_stream import use_background_stderr

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from quire.cli.serve_plan import ServingPlan
    from quire.server.access.authentication import ApiKey
    from quire.server.generation.served_models import ManagedModels

#: Connections that wait to be accepted; as uvicorn's.
BACKLOG = 2048
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def server_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the server's flags; it receives them as ``options``."""
    settings = read_flags(ServerOptions)

    @functools.wraps(function)
    def command(**keywords: Any) -> Any:
        given = {name: keywords.pop(name) for name in settings}
        try:
            options = ServerOptions(**given)
        except ConfigError as error:
            raise click.UsageError(str(error)) from error
        return function(options=options, **keywords)

    for flag in reversed([*settings.values()]):
        config_option(flag)(command)
    return command


@click.command(cls=EngineCommand, known=server_settings())
@engine_flags
@click.argument("more_models", metavar="[MODEL]...", nargs=-1)
@server_flags
@click.option(
    "--dry-run", is_flag=True, help="print ranks, memory and what ranks exchange, and end"
)
@click.option(
    "--headless", is_flag=True, help="compute for the server of machine 0 (--node-rank above 0)"
)
def serve(
    config: EngineConfig,
    options: ServerOptions,
    more_models: tuple[str, ...],
    dry_run: bool,
    headless: bool,
) -> None:
    """Answer HTTP requests in OpenAI's API with MODEL.

    Several models share the memory; requests choose by name, and the first is the default. With
    --load-on-demand each is loaded when a request names it, and so is any that quire list shows.
    Without MODEL quire-tiny is loaded, and the others on demand.

    SIGTERM or Ctrl-C lets running requests finish for --shutdown-timeout seconds.
    """
    others = [_for_model(config, name) for name in more_models]
    if dry_run:
        _tell((config, *others), options)
    elif headless or config.parallel.node_rank:
        _compute_only(config, options, headless, bool(others))
    else:
        _answer((config, *others), options)


def _answer(configs: Sequence[EngineConfig], options: ServerOptions) -> None:
    """Load models, the default one first, and answer requests until a signal arrives."""
    started = time.perf_counter()
    use_background_stderr()  # a slow reader of stderr, or none, holds nothing up
    # The port first, then what takes long to import: clients are told, not refused.
    from quire.llm.process.child import start_engine_process
    from quire.server.listener import address, bind

    listener = bind(options)
    listener.listen(BACKLOG)
    # It imports the engine on another core. The kernel ends it with this thread, the main one.
    process = start_engine_process() if options.preload or not options.load_on_demand else None
    from quire.cli.serve_plan import first_name
    from quire.llm.load_state import Loading
    from quire.server.access.authentication import ApiKey
    from quire.server.lifecycle import LoadModels, Server, handle_signals, run_server
    from quire.server.loading_app import create_loading_app
    from quire.system.collector import collect_seldom
    from quire.system.log import set_format

    # The thread that reads the engine's outputs and the event loop share the GIL. At Python's 5 ms
    # per turn a small model, which makes a token in 0.3 ms, would wait for its own server.
    sys.setswitchinterval(0.001)
    options, keys, plan = _plan(configs, options)
    set_format(options.log_format)
    url = address(listener, "http" if options.ssl_certfile is None else "https")
    if options.uds is None and options.host not in LOOPBACK and not (keys or options.api_key):
        _say(options, f"{options.host} is reachable by others and needs no key", "warning")
    if not plan.is_checked_by_engine:
        plan.check()
    loading, name = Loading(), first_name(configs[0].model)
    every_key = (*keys, *map(ApiKey.create, options.api_key))
    meanwhile = create_loading_app(options, every_key, loading, name)

    def create() -> tuple[ManagedModels, ASGIApp]:
        from quire.cli.serve_models import load_models

        models = load_models(plan, keys, loading, process)
        from quire.server.app import create_app

        return models, create_app(models)

    def announce(models: ManagedModels) -> None:
        collect_seldom()
        seconds = time.perf_counter() - started
        served = ", ".join(model.names[0] for model in models.known())
        _say(options, f"ready: {url} serves {served} after {seconds:.1f} s")

    server = Server(options, LoadModels(create, meanwhile, loading), announce)
    handle_signals(server.handle_exit)  # a reader of the next line may send a signal
    _say(options, f"loading: {url} answers 503 until {name} is there")
    run_server(server, listener, options.uds)


def _plan(
    configs: Sequence[EngineConfig], options: ServerOptions
) -> tuple[ServerOptions, list[ApiKey], ServingPlan]:
    """Return the server's options with all keys, those of its file, and what it serves.

    Raises:
        ConfigError: Settings do not go together.
    """
    from quire.cli.serve_plan import plan_serving
    from quire.server.access.authentication import read_key_file

    key = env.get("QUIRE_API_KEY")
    if key is not None:
        options = replace(options, api_key=(*options.api_key, key))
    keys = [] if options.api_key_file is None else read_key_file(options.api_key_file)
    named, has_keys = _is_named(click.get_current_context()), bool(keys or options.api_key)
    return options, keys, plan_serving(configs, options, named=named, has_keys=has_keys)


def _tell(configs: Sequence[EngineConfig], options: ServerOptions) -> None:
    """Print what serving would take, without loading anything; refuse what it would refuse."""
    from quire.llm.planning.dry_run import dry_run_lines

    _, _, plan = _plan(configs, options)
    plan.check()
    for config in plan.granted:
        for line in dry_run_lines(config, plan.machine, plan.roles):
            click.echo(line)


def _compute_only(
    config: EngineConfig, options: ServerOptions, headless: bool, has_others: bool
) -> None:
    """Run the ranks or engines of a machine other than the server's, until a signal arrives.

    Raises:
        ConfigError: The settings do not say which machine this is.
    """
    if not headless or not config.parallel.node_rank:
        raise ConfigError(
            "[config] --headless must come with --node-rank above 0, and the other way round; got "
            f"--node-rank {config.parallel.node_rank}{' --headless' if headless else ''}."
        )
    if has_others:
        raise ConfigError("[config] --nnodes is of one model; got several. Name one.")
    from quire.llm.replicas.headless import compute_for_server
    from quire.system.log import set_format

    use_background_stderr()
    set_format(options.log_format)
    compute_for_server(config, options.log_format)


def _is_named(context: click.Context) -> bool:
    """Return whether the command line or a file says which model."""
    given = context.get_parameter_source("model") is not ParameterSource.DEFAULT
    return given or context.params.get("model_argument") is not None


def _for_model(config: EngineConfig, name: str) -> EngineConfig:
    """Return the settings for one more model; settings of a single model are refused.

    Raises:
        ConfigError: A setting of a single model is given.
    """
    for setting in ("served_model_name", "tokenizer", "revision"):
        value = getattr(config.model, setting)
        if value:
            raise ConfigError(
                f"[config] --{setting.replace('_', '-')} must be left out with several models; got "
                f"{value}."
            )
    return replace(config, model=replace(config.model, model=name))


def _say(options: ServerOptions, line: str, level: str = "info") -> None:
    """Write a line that people wait for."""
    if options.log_format == "json" or level != "info":
        from quire.system.log import get_logger

        getattr(get_logger(__name__), level)("%s", line)
    else:
        with suppress(OSError):  # stderr on a full disk is no reason not to serve
            click.echo(line, err=True)
