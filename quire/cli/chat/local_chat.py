"""A model in this process that answers in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quire.cli.chat.answers import GrowingAnswer, follow
from quire.cli.flags.lora_flag import adapter_attributes
from quire.core.plurals import counted
from quire.core.sampling_params import SamplingParams
from quire.llm.requests.prompts import chat_prompt
from quire.llm.text_engine import TextEngine
from quire.text.templates.chat_template import no_template_error


class LocalChat:
    """See :class:`quire.cli.chat.chat_session.ChatModel`.

    Args:
        engine: A loaded model with a chat template.
        lora: Folder of an adapter for the answers.

    Raises:
        RequestError: The model has no chat template.
    """

    def __init__(self, engine: TextEngine, lora: Path | None = None) -> None:
        if engine.tokenizer.chat_template is None:
            raise no_template_error()
        self._engine = engine
        self._attributes = adapter_attributes(lora)
        self._answer = GrowingAnswer()
        self.defaults: dict[str, Any] = engine.default_sampling_params

    def answer(
        self,
        messages: list[dict[str, Any]],
        sampling: dict[str, Any],
        stopped: Callable[[], bool],
    ) -> Iterator[str]:
        shown = 0
        continues = messages[-1]["role"] == "assistant"
        options = {"add_generation_prompt": not continues, "continue_final_message": continues}
        prompt = chat_prompt(messages, self._engine.tokenizer, **options)
        params, attributes = SamplingParams(**sampling), self._attributes
        steps = follow(self._engine, [prompt], params, fit_output=True, attributes=attributes)
        for (self._answer,) in steps:
            yield self._answer.text[shown:]
            shown = len(self._answer.text)
            if stopped():
                steps.close()
                break

    @property
    def num_tokens(self) -> int:
        return self._answer.num_tokens

    @property
    def was_cut(self) -> bool:
        output = self._answer.output
        return output is not None and output.outputs[0].finish_reason == "length"

    def describe(self) -> str:
        model = self._engine.config.model.model
        return f"{model}: {counted(self._engine.max_model_len, 'token')} of context"

    def summary(self) -> str:
        return self._answer.summary()

    def stats(self) -> str:
        stats = self._engine.stats().items()
        return "\n".join(f"{name:60} {v:g}" for name, v in stats if not isinstance(v, list))
