"""Requests as callers give them, read against a model: its tokenizer, defaults and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.client import SHARED, Client
from quire.core.config import ModelOptions
from quire.core.model_config import ModelConfig
from quire.core.sampling_params import SamplingParams
from quire.llm.engine_client import Prompt
from quire.llm.generation_config import read_generation_config
from quire.llm.grammars.checker import GrammarChecker
from quire.llm.params import ParamsLimits, complete_params
from quire.llm.prompts import TokenizedPrompt, tokenize_prompt
from quire.models.gguf_file import forget_gguf
from quire.models.hub import resolve_model
from quire.text.grammar import GrammarCompiler
from quire.text.off_loop import INLINE_CHARACTERS, run_by_size
from quire.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that was read and checked, and that the engine has not seen."""

    request_id: str
    prompt: TokenizedPrompt
    params: SamplingParams
    priority: int
    extra_keys: tuple[str, ...]
    deadline: float | None = None
    client: Client = SHARED


async def prepare_off_loop(
    prepare: Callable[..., PreparedRequest],
    request_id: str,
    prompt: Prompt,
    params: SamplingParams,
    **options: Any,
) -> PreparedRequest:
    """Prepare a request for an event loop, which long texts and grammars must not hold up.

    Args:
        prepare: :meth:`RequestReader.prepare`, or what leads there.
        request_id, prompt, params, **options: Its arguments.

    Raises:
        RequestError: The prompt or a setting is wrong.
    """
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    size = len(text) if isinstance(text, str) else 0
    if params.structured_outputs is not None:
        size = INLINE_CHARACTERS
    return await run_by_size(size, partial(prepare, request_id, prompt, params, **options))


class RequestReader:
    """Everything of a model but its weights; any thread may use it.

    Args:
        options: Names the model.

    Attributes:
        folder: The checkpoint.
        tokenizer, tokenizer_folder: Of the model.
        default_sampling_params: The model's own defaults, as keywords.
        eos_token_ids: Ids that end a sequence, beside those of ``config.json``.
        vocab_size: Of the model's output, once it is loaded.
        grammars: Compiles or checks structured outputs, once the model is loaded.

    Raises:
        ModelLoadError: A file is missing or cannot be read.
    """

    def __init__(self, options: ModelOptions) -> None:
        self.folder: Path = resolve_model(options.model, options.revision)
        of_text = self.folder
        if options.tokenizer is not None:
            of_text = resolve_model(options.tokenizer, weights=False)
        self.tokenizer_folder = of_text
        self.tokenizer: Tokenizer = load_tokenizer(of_text, options.chat_template)
        generation = read_generation_config(self.folder, options.generation_config)
        self.default_sampling_params: dict[str, Any] = generation.sampling
        self.eos_token_ids = generation.eos_token_ids
        self.vocab_size = 0
        self.grammars: GrammarCompiler | GrammarChecker | None = None
        self._max_logprobs = options.max_logprobs

    def loaded(self, model_config: ModelConfig) -> GrammarCompiler:
        """Take note of the shape of the loaded model; return its compiler of grammars."""
        forget_gguf()
        self.vocab_size = model_config.vocab_size
        self.grammars = compiler = GrammarCompiler(
            self.tokenizer, model_config.eos_token_ids, model_config.vocab_size
        )
        return compiler

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        deadline: float | None = None,
        client: Client = SHARED,
    ) -> PreparedRequest:
        """Read a request; a grammar is compiled here, beside the engine.

        Raises:
            RequestError: The prompt or a setting is wrong.
        """
        limits = ParamsLimits(self.vocab_size, self._max_logprobs)
        tokenized = tokenize_prompt(prompt, self.tokenizer)
        completed = complete_params(params, self.tokenizer, limits)
        if completed.structured_outputs is not None:
            assert self.grammars is not None, "structured outputs before the model is loaded"
            self.grammars.compile(completed.structured_outputs)
        return PreparedRequest(
            request_id,
            tokenized,
            completed,
            priority,
            () if cache_salt is None else (f"salt:{cache_salt}",),
            deadline,
            client,
        )
