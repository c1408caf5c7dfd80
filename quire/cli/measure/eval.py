"""``quire eval``: what a model is worth, by texts and questions, alone or next to a reference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from quire.cli.flags.engine_flags import CountType, EngineCommand, some_engine_flags
from quire.core.errors import ConfigError
from quire.settings.config import EngineConfig

if TYPE_CHECKING:
    from quire.evaluation.task import Task

#: Of the engine's flags those that change what a model computes, or how fast.
FLAGS = (
    "model", "tokenizer", "revision", "allow_special_tokens_in_content", "dtype", "quantization",
    "quantization_group_size", "quantization_overrides", "activations", "packed_weights_cache",
    "max_model_len", "chat_template", "default_chat_template_kwargs", "block_size",
    "kv_cache_dtype", "max_num_batched_tokens", "device", "threads",
)  # fmt: skip
#: Those that mean something next to --base-url.
OF_SERVER = ("model", "tokenizer")
FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = CountType(False, minimum=1)


@click.command("eval", cls=EngineCommand)
@some_engine_flags(FLAGS)
@click.option("--perplexity", "text", type=FILE, metavar="FILE",
    help="text, or .jsonl with text or messages; default: MODEL/eval/heldout.txt")  # fmt: skip
@click.option("--choices", type=FILE, metavar="FILE",
    help=".jsonl with question, choices and answer (an index)")  # fmt: skip
@click.option("--chat", is_flag=True, help="ask the questions in the model's chat template")
@click.option("--reference", metavar="MODEL",
    help="model to compare with: divergence, agreement")  # fmt: skip
@click.option("--reference-dtype", type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    metavar="NAME",
    help="element type of the reference's weights (auto, float32, ...) [auto]")  # fmt: skip
@click.option("--long-context", is_flag=True, help="the loss by position, in windows of all that "
    "the model takes")  # fmt: skip
@click.option("--window", type=COUNT, metavar="N", help="tokens that are seen together [512]")
@click.option("--stride", type=COUNT, metavar="N", help="new tokens of each further window")
@click.option("--max-tokens", type=COUNT, metavar="N",
    help="most tokens of the text, and of the questions")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option("--output", type=FILE, metavar="FILE", help="write the JSON to a file, too")
@click.option("--base-url", "server", metavar="URL", help="judge a running server by "
    "its completions route; MODEL is a name there")  # fmt: skip
def evaluate(
    config: EngineConfig,
    reference: str | None,
    reference_dtype: str | None,
    as_json: bool,
    output: Path | None,
    server: str | None,
    **asked: Any,
) -> None:
    """Judge MODEL (default: quire-tiny) by a text, by questions, or next to a reference.

    Every figure has a 95% interval. Windows of a text begin anew, and only tokens after their first
    count. Figures do not depend on how windows are computed together.
    """
    _check_output(output)
    if reference is None and reference_dtype is not None:
        raise click.UsageError("--reference-dtype must come with --reference.")
    if server is not None:
        _check_flags(reference)
        report = _judge_server(config, _task(asked, []), server)
    else:
        report = _judge_here(config, asked, reference, reference_dtype or "auto")
    written = json.dumps(report, ensure_ascii=False, indent=2)
    if output is not None:
        output.write_text(written + "\n", encoding="utf-8")
    if as_json:
        click.echo(written)
        return
    from quire.cli.measure.eval_report import print_report

    print_report(report)


def _check_output(output: Path | None) -> None:
    if output is not None and not output.parent.is_dir():
        raise ConfigError(f"[eval] --output must be in a folder that exists; got {output}.")


def _check_flags(reference: str | None) -> None:
    """Refuse flags whose values a server decides itself.

    Raises:
        click.UsageError: Such a flag is given; it is named.
    """
    if reference is not None:
        raise click.UsageError(
            "--reference needs all logits of both models, in this process; got --base-url. "
            "Leave one out."
        )
    context = click.get_current_context()
    for name in set(FLAGS) - set(OF_SERVER):
        given = context.get_parameter_source(name)
        if given not in (None, ParameterSource.DEFAULT):
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{flag} is the server's own setting; got --base-url. Leave one out."
            )


def _task(asked: dict[str, Any], folders: list[Path]) -> Task:
    """Return what is asked; without a file, by the text that lies with a model of ``folders``."""
    from quire.evaluation.task import Task

    texts = (folder / "eval" / "heldout.txt" for folder in folders)
    if asked["text"] is None and asked["choices"] is None:
        asked = asked | {"text": next((text for text in texts if text.is_file()), None)}
    return Task(**asked)


def _judge_here(
    config: EngineConfig, asked: dict[str, Any], reference: str | None, reference_dtype: str
) -> dict[str, Any]:
    """Judge a checkpoint in this process."""
    from quire.evaluation.evaluate import judge
    from quire.evaluation.local_model import LocalModel
    from quire.evaluation.scorer import LocalEncoder
    from quire.evaluation.task import prepare
    from quire.llm.progress import loading_bar
    from quire.llm.requests.request_reader import RequestReader
    from quire.llm.stage_bar import stage_bar
    from quire.models.config.config_reader import read_model_config

    reader = RequestReader(config.model, (), config.adapters)
    folders, configs = [reader.folder], [config]
    if reference is not None:
        configs.append(_reference_config(config, reference, reference_dtype))
        folders.append(_reference_folder(reader, reference))
    task = _task(asked, folders)
    limit = read_model_config(reader.folder).max_position_embeddings
    limits = [limit, *(each.model.max_model_len or limit for each in configs[:1])]
    if reference is not None:
        limits.append(read_model_config(folders[1]).max_position_embeddings)
    work = prepare(task, LocalEncoder(reader.tokenizer, min(limits)))
    models = []
    for folder, each in zip(folders, configs, strict=True):
        with loading_bar() as on_progress:
            models.append(LocalModel(folder, each, work.longest, on_progress))
    model = models[0]
    return {
        "model": config.model.model,
        "quantization": model.quantization,
        "dtype": model.dtype,
        "kv_cache_dtype": model.kv_cache_dtype,
        "weight_bytes": model.weight_bytes,
        "reference": reference,
        "reference_dtype": None if reference is None else models[1].dtype,
        "reference_weight_bytes": None if reference is None else models[1].weight_bytes,
    } | judge(task, work, model, models[1] if reference is not None else None, stage_bar)


def _reference_config(config: EngineConfig, reference: str, dtype: str) -> EngineConfig:
    """Return the settings of a reference: its own checkpoint's, computed in steps as the model's.

    So a quantization, a type of the KV cache and the like are the judged model's alone.
    """
    from quire.settings.cache_options import CacheOptions

    plain = EngineConfig.from_keywords(model=reference, dtype=dtype)
    return replace(
        plain,
        scheduler=config.scheduler,
        parallel=config.parallel,
        cache=CacheOptions(block_size=config.cache.block_size),
    )


def _reference_folder(reader: Any, reference: str) -> Path:
    """Return the reference's checkpoint, whose tokens are those of the model."""
    from quire.evaluation.vocabulary import check_same_vocabulary
    from quire.models.config.config_reader import read_model_config
    from quire.store.hub import resolve_model
    from quire.text.tokenizers.tokenizer import load_tokenizer

    folder = resolve_model(reference)
    sizes = [read_model_config(path).vocab_size for path in (reader.folder, folder)]
    check_same_vocabulary(
        reference, (sizes[0], sizes[1]), (reader.tokenizer, load_tokenizer(folder))
    )
    return folder


def _judge_server(config: EngineConfig, task: Task, url: str) -> dict[str, Any]:
    """Judge a running server."""
    from quire.cli.server_connection import connect, read_answer, request
    from quire.evaluation.evaluate import judge
    from quire.evaluation.scorer import Encoder, LocalEncoder
    from quire.evaluation.server_model import ServerEncoder, ServerModel
    from quire.evaluation.task import prepare
    from quire.llm.stage_bar import stage_bar

    connection, prefix = connect(url)

    def post(path: str, body: dict[str, Any] | None) -> Any:
        try:
            method = "GET" if body is None else "POST"
            return read_answer(request(connection, method, f"{prefix}{path}", body))
        finally:
            connection.close()  # a server may end one that waits; the next request opens another

    name, limit = _served_model(post("/v1/models", None), config)
    encoder: Encoder = ServerEncoder(post, name)
    if config.model.tokenizer is not None:
        from quire.store.hub import resolve_model
        from quire.text.tokenizers.tokenizer import load_tokenizer

        folder = resolve_model(config.model.tokenizer, weights=False)
        encoder = LocalEncoder(load_tokenizer(folder), None if limit is None else limit - 1)
    work = prepare(task, encoder)
    report = judge(task, work, ServerModel(post, name), None, stage_bar)
    return {"model": name, "server": url} | report


def _served_model(listed: Any, config: EngineConfig) -> tuple[str, int | None]:
    """Return the name of the model that is asked for, the server's first, and its context.

    Raises:
        ConfigError: The server lists none.
    """
    context = click.get_current_context()
    sources = [context.get_parameter_source(name) for name in ("model", "model_argument")]
    named = (
        config.model.model
        if any(s not in (None, ParameterSource.DEFAULT) for s in sources)
        else None
    )
    try:
        cards = {card["id"]: card.get("max_model_len") for card in listed["data"]}
        name = named or next(iter(cards))
    except (KeyError, TypeError, AttributeError, StopIteration):
        raise ConfigError(
            "[eval] the server must list its models at /v1/models; got none. Give --model."
        ) from None
    limit = cards.get(name)
    return name, limit if isinstance(limit, int) else None
