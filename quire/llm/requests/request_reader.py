"""Requests as callers give them, read against a model: its tokenizer, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.checkpoints.gguf.gguf_file import forget_gguf
from quire.core.engine_request import EngineRequest, salt_keys
from quire.core.model.model_config import ModelConfig
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.speculative_params import choose_speculation
from quire.llm.engine_client import Prompt
from quire.llm.requests.adapter_references import AdapterReferences, LoRARequest
from quire.llm.requests.allowed_tokens import first_tokens
from quire.llm.requests.generation_defaults import add_recommended, read_generation_config
from quire.llm.requests.params import check_task, complete_params
from quire.llm.requests.prompts import tokenize_prompt
from quire.settings.adapter_options import AdapterOptions
from quire.settings.config import ModelOptions
from quire.store.hub import model_preset, resolve_model
from quire.store.manifests import Preset
from quire.text.templates.chat_template import ChatTemplate
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from quire.text.grammars.grammar import GrammarCompiler


class RequestReader:
    """All of a model but its weights; any thread may use it.

    Args:
        options: Settings that name the model.
        speculative_methods: Methods that requests may ask for.
        adapters: Settings of the adapters that requests may have.

    Attributes:
        adapters: The reader of adapters.
        folder: The checkpoint.
        tokenizer_folder: The folder of the model's tokenizer.
        default_sampling_params: The model's own defaults, as keywords.
        eos_token_ids: Ids that end a sequence, besides those of ``config.json``.
        vocab_size: Size of the model's output, once it is loaded.
        grammars: The compiler of structured outputs, once the model is loaded.

    Raises:
        ModelLoadError: A file is missing or cannot be read.
    """

    def __init__(
        self,
        options: ModelOptions,
        speculative_methods: Sequence[SpeculativeMethod],
        adapters: AdapterOptions,
    ) -> None:
        preset = model_preset(options.model)
        self.folder: Path = resolve_model(options.model, options.revision)
        of_text = self.folder
        if options.tokenizer is not None:
            of_text = resolve_model(options.tokenizer, weights=False)
        self.tokenizer_folder = of_text
        self.adapters = AdapterReferences(self.folder, adapters)
        self._options, self._preset = options, preset
        self._has_preset_template = preset.template is not None and options.chat_template is None
        generation = read_generation_config(
            self.folder,
            options.generation_config,
            options.json_object("override_generation_config"),
        )
        self._file_sampling = generation.sampling
        self._set_sampling(options, preset)
        self.eos_token_ids = generation.eos_token_ids
        self.vocab_size = 0
        self._model_config: ModelConfig | None = None
        self.grammars: GrammarCompiler | None = None
        self._picture_text: str | None = None
        self._picture_margins = ("", "")
        self._max_logprobs = options.max_logprobs
        self._compact_json = options.disable_any_whitespace
        self._speculative_methods = speculative_methods

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, read at the first use.

        Raises:
            ModelLoadError: The tokenizer cannot be read.
        """
        options, preset = self._options, self._preset
        tokenizer = load_tokenizer(self.tokenizer_folder, options.chat_template, preset.template)
        tokenizer.keeps_text = not options.allow_special_tokens_in_content
        _set_template_defaults(tokenizer, options, preset)
        return tokenizer

    def view(self, options: ModelOptions) -> RequestReader:
        """Return the reader of a model with the same files and settings, and a preset of its own.

        Its tokens are this reader's, whose model has no template of a preset.

        Raises:
            ModelLoadError: Files of the model, such as its template, cannot be read.
        """
        assert not self._has_preset_template, self.folder
        preset, made = model_preset(options.model), copy(self)
        made.tokenizer = tokenizer = copy(self.tokenizer)
        if preset.template is not None and options.chat_template is None:
            made._has_preset_template = True
            tokenizer.chat_template = ChatTemplate(
                {"default": preset.template}, tokenizer.special_tokens
            )
        elif tokenizer.chat_template is not None:
            tokenizer.chat_template = copy(tokenizer.chat_template)
        self._show_pictures(tokenizer)
        _set_template_defaults(tokenizer, options, preset)
        made._set_sampling(options, preset)
        return made

    def _show_pictures(self, tokenizer: Tokenizer) -> None:
        """Let the chat template show pictures, if the model takes them."""
        if tokenizer.chat_template is not None:
            tokenizer.chat_template.picture_text = self._picture_text
            tokenizer.chat_template.picture_margins = self._picture_margins

    def _set_sampling(self, options: ModelOptions, preset: Preset) -> None:
        mode, override = (
            options.generation_config,
            options.json_object("override_generation_config"),
        )
        self.default_sampling_params: dict[str, Any] = add_recommended(
            self._file_sampling, mode, override, preset.sampling
        )

    def loaded(self, model_config: ModelConfig) -> GrammarCompiler:
        """Take note of the shape of the loaded model; return its compiler of grammars."""
        # Imported when the model is loaded: a start does not wait for it.
        from quire.text.grammars.grammar import GrammarCompiler

        forget_gguf()
        self.vocab_size = model_config.vocab_size
        self._model_config = model_config
        if model_config.vision is not None:
            writing = model_config.vision.writing
            (self._picture_text,) = self.tokenizer.convert_ids_to_tokens([writing.mark_id])
            self._picture_margins = (writing.text_before, writing.text_after)
            self._show_pictures(self.tokenizer)
        self.grammars = compiler = GrammarCompiler(
            self.tokenizer, model_config.eos_token_ids, self.vocab_size
        )
        return compiler

    def read(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        cache_salt: str | None = None,
        lora_request: LoRARequest | None = None,
        **attributes: Any,
    ) -> EngineRequest:
        """Read a request as users give it.

        Args:
            prompt, params, request_id: Prompt, settings and id of the request.
            cache_salt: A text; only requests with the same salt share cached blocks.
            lora_request: The request's adapter.
            **attributes: Fields of :class:`~quire.core.engine_request.EngineRequest`.

        Raises:
            RequestError: The prompt is wrong.
            ModelLoadError: The adapter cannot be used.
        """
        text, token_ids = tokenize_prompt(prompt, self.tokenizer)
        if isinstance(prompt, Mapping) and "pictures" in prompt:  # of quire.llm.pictures
            attributes["pictures"] = tuple(prompt["pictures"])
        keys = salt_keys(cache_salt)
        request = EngineRequest(
            request_id, token_ids, params, prompt=text, extra_keys=keys, **attributes
        )
        if lora_request is None:
            return request
        adapter = self.adapters.read(lora_request.lora_name, lora_request.lora_path)
        return request.with_adapter(adapter)

    def complete(self, request: EngineRequest) -> EngineRequest:
        """Return a request with settings of its own, checked and completed for this model.

        Raises:
            InvalidSamplingParamsError: The settings are wrong.
            RequestError: The model cannot do what they ask for.
        """
        if self._model_config is not None:
            check_task(request.params, self._model_config)
        completed = complete_params(
            request.params, self.tokenizer, self.vocab_size, self._max_logprobs
        )
        self.first_tokens(completed)
        chosen = choose_speculation(completed.speculative, self._speculative_methods)
        if completed.token_origins and chosen is not None:
            request = replace(request, speculative_method=chosen.method)
        constraint = completed.structured_outputs
        if self._compact_json and constraint is not None and constraint.is_json:
            constraint = replace(constraint, disable_any_whitespace=True)
            completed = replace(completed, structured_outputs=constraint)
        return replace(request, params=completed)

    def first_tokens(self, params: SamplingParams) -> bytes:
        """Return what the settings leave for the beginning of an output; see the function.

        Raises:
            InvalidSamplingParamsError: No token is left.
        """
        if self._model_config is None:
            return b""
        return first_tokens(params, self._model_config.eos_token_ids, self.vocab_size)


def prepare_preset(options: ModelOptions) -> None:
    """Compile the template of a model's preset, where it has one that is used."""
    template = model_preset(options.model).template
    if template is not None and options.chat_template is None:
        ChatTemplate({"default": template}, {}).prepare()


def _set_template_defaults(tokenizer: Tokenizer, options: ModelOptions, preset: Preset) -> None:
    template = tokenizer.chat_template
    if template is not None:
        template.default_kwargs = options.json_object("default_chat_template_kwargs")
        template.default_system = preset.system
        template.default_messages = preset.messages
