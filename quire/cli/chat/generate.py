"""``quire generate``: prompts in, text out, streamed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli.chat.prompt_text import read_prompt
from quire.cli.flags.engine_flags import EngineCommand, engine_flags
from quire.cli.flags.lora_flag import adapter_attributes, lora_option, with_adapter
from quire.cli.flags.sampling_flags import sampling_flags
from quire.settings.config import EngineConfig

if TYPE_CHECKING:
    from quire.cli.chat.answers import GrowingAnswer
    from quire.llm.text_engine import TextEngine

#: Without --max-tokens; enough to read, and it ends with models that never stop.
MAX_TOKENS = 256


@click.command(cls=EngineCommand, text_goes="Say quire generate {model} --prompt {text}")
@engine_flags
@click.option("--prompt", "-p", "prompts", multiple=True, help="text, - for stdin; may be repeated")
@click.option("--chat", is_flag=True, help="ask in the model's chat template")
@click.option(
    "--image",
    "images",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="picture to ask about, as with --chat; may be repeated",
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object per prompt, in order")
@lora_option
@sampling_flags
def generate(
    config: EngineConfig,
    prompts: tuple[str, ...],
    chat: bool,
    images: tuple[Path, ...],
    as_json: bool,
    lora: Path | None,
    sampling: dict[str, Any],
) -> None:
    """Complete prompts with MODEL (default: quire-tiny) and print the text.

    Prompts run together, each with all pictures; their texts come in the order given. Speed is
    reported on stderr.
    """
    if not prompts:
        raise click.UsageError("Give at least one --prompt (- reads it from stdin).")
    from quire.cli.chat.answers import follow, loaded_engine
    from quire.core.sampling_params import SamplingParams
    from quire.llm.interrupts import collect_interrupts

    texts = [read_prompt(text) for text in prompts]
    with loaded_engine(with_adapter(config, lora)) as engine:
        defaults = {"max_tokens": MAX_TOKENS, **engine.default_sampling_params}
        params = SamplingParams(**{**defaults, **sampling})
        items = _chats(engine, texts, images) if chat or images else list(texts)
        writer = _Writer(as_json)
        fits, attributes = "max_tokens" not in sampling, adapter_attributes(lora)
        with collect_interrupts() as interrupted:
            for answers in follow(engine, items, params, fit_output=fits, attributes=attributes):
                writer.write(answers)
                if interrupted:
                    raise click.Abort
        click.echo("; ".join(answer.summary() for answer in answers), err=True)
        if not (chat or images) and engine.tokenizer.chat_template is not None:
            _explain_empty(answers)


def _explain_empty(answers: list[GrowingAnswer]) -> None:
    """Say why a chat model may answer with nothing."""
    if any(not answer.text.strip() for answer in answers):
        click.echo(
            "An answer is empty: generate completes text and uses no chat template. Add --chat, or "
            "ask with quire run or quire ask.",
            err=True,
        )


def _chats(engine: TextEngine, texts: list[str], images: tuple[Path, ...]) -> list[Any]:
    """Return the prompts that ask each text in a chat, with all pictures in front of it."""
    from quire.llm.pictures.conversations import ConversationPictures, picture_part
    from quire.llm.requests.prompts import chat_prompt

    shown = [picture_part(path) for path in images]
    prompts = []
    made = ConversationPictures(engine.model_config.vision, engine.config.model, engine.tokenizer)
    with closing(made) as pictures:
        for text in texts:
            content = [*shown, {"type": "text", "text": text}] if shown else text
            messages = [{"role": "user", "content": content}]
            prompts.append(pictures.add_to(chat_prompt(messages, engine.tokenizer), messages))
    return prompts


class _Writer:
    """Writes answers to stdout in the prompts' order: text as it grows, or JSON when it is done."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._current = 0
        self._shown = 0

    def write(self, answers: list[GrowingAnswer]) -> None:
        while self._current < len(answers):
            answer = answers[self._current]
            if not self._as_json:
                click.echo(answer.text[self._shown :], nl=False)
                self._shown = len(answer.text)
            if not answer.finished:
                return
            click.echo(_as_line(answer) if self._as_json else "")
            self._current, self._shown = self._current + 1, 0


def _as_line(answer: GrowingAnswer) -> str:
    output = answer.output
    assert output is not None
    sequence = output.outputs[0]
    return json.dumps(
        {
            "prompt": output.prompt,
            "text": sequence.text,
            "token_ids": sequence.token_ids,
            "finish_reason": sequence.finish_reason,
            "stop_reason": sequence.stop_reason,
            "num_prompt_tokens": len(output.prompt_token_ids),
            "num_output_tokens": len(sequence.token_ids),
            "num_cached_tokens": output.num_cached_tokens,
        },
        ensure_ascii=False,
    )
