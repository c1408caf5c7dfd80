"""``quire chat``: a conversation with a model that is loaded for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quire.cli.flags.engine_flags import EngineCommand, engine_flags
from quire.cli.flags.lora_flag import lora_option, with_adapter
from quire.cli.flags.sampling_flags import sampling_flags
from quire.settings.config import EngineConfig


@click.command(
    cls=EngineCommand,
    text_goes="A chat is typed into the terminal. For one answer: quire run {model} {text}; "
    "without a server: quire generate {model} --chat --prompt {text}",
)
@engine_flags
@click.option("--system", help="system prompt")
@lora_option
@sampling_flags
def chat(
    config: EngineConfig, system: str | None, lora: Path | None, sampling: dict[str, Any]
) -> None:
    """Talk to MODEL (default: quire-tiny) in the terminal.

    Answers appear on stdout, all else on stderr. /help lists the commands; Ctrl-C stops an answer,
    Ctrl-D leaves.
    """
    from quire.cli.chat.answers import loaded_engine
    from quire.cli.chat.chat_loop import converse
    from quire.cli.chat.chat_session import ChatSession
    from quire.cli.chat.local_chat import LocalChat

    with loaded_engine(with_adapter(config, lora)) as engine:
        model = LocalChat(engine, lora)
        converse(ChatSession(model, system=system, sampling=sampling), config.model.model)
