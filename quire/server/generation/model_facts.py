"""Facts about a server's models, loaded or not; no model is loaded to find them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quire.core.errors import QuireError
from quire.core.metrics import add_up
from quire.core.model.model_config import ModelConfig
from quire.llm.engine_views import actual_engine
from quire.llm.requests.generation_defaults import read_generation_config
from quire.models.config.config_reader import supported_config
from quire.server.generation.answer_parser import AnswerFormats
from quire.server.generation.served_models import KnownModel, Models
from quire.server.generation.service import Service, meant_name
from quire.server.server_options import ServerOptions
from quire.settings.known_settings import QUANTIZATIONS
from quire.store.manifests import Preset
from quire.store.model_details import ModelDetails
from quire.store.store import Store, StoredModel
from quire.text.templates.chat_template import ChatTemplate
from quire.text.templates.file_texts import FileTexts, read_file_texts
from quire.text.tokenizers.fim_tokens import FimTokens

log = logging.getLogger(__name__)

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
#: A quantization at the end of a GGUF file's name, or the tag of a repository of such files.
_QUANTIZATION = re.compile(
    r"[-.:_]((?:I?Q\d|TQ\d|MXFP4)\w*|BF16|F16|F32)(?:\.gguf)?$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model: from its engine when it is loaded, else from its files.

    Attributes:
        model: The model's names and state.
        stored: The model's files; None where they are not found.
        details: The model's shape.
        config: The architecture's settings; None if they cannot be read.
        context: Most tokens of a request and its answer: the number that the memory of a loaded
            model holds, else the number that the model was made for; None if unknown.
        chat_template: The model's template; None when it has none.
        formats: The formats by which its answers are read.
        fills_in: Whether it has the tokens to fill in the middle of a text.
        sampling: Defaults of its requests; only :func:`find_facts` sets them.
    """

    model: KnownModel
    stored: StoredModel | None
    details: ModelDetails
    config: ModelConfig | None
    context: int | None
    chat_template: ChatTemplate | None
    formats: AnswerFormats
    fills_in: bool
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def created(self) -> int:
        """Unix time at which it was pulled or made, else first served, in seconds; 0 if unknown."""
        if self.stored is not None:
            return int(self.stored.manifest.modified.timestamp())
        return 0 if self.model.service is None else self.model.service.created

    @property
    def num_bytes(self) -> int:
        """Size of its files, else of its weights in memory; 0 if unknown."""
        if self.stored is not None and self.stored.nbytes:
            return self.stored.nbytes
        return 0 if self.model.service is None else weight_bytes(self.model.service)

    @property
    def is_gguf(self) -> bool:
        """Whether its weights are in a GGUF file."""
        path = None if self.stored is None else self.stored.path
        return _named_type(self.model) is not None if path is None else path.is_file()

    @property
    def preset(self) -> Preset:
        """The settings that are stored with the model."""
        return Preset() if self.stored is None else self.stored.preset

    @property
    def capabilities(self) -> list[str]:
        """The model's capabilities, by Ollama's names."""
        return capabilities(self.formats, self.fills_in, self.config)

    def meant_name(self, name: str) -> str:
        """Return the served name that a request's name stands for, the first if none does."""
        return meant_name(name, self.model.config.model) or self.model.names[0]


def capabilities(formats: AnswerFormats, fills_in: bool, config: ModelConfig | None) -> list[str]:
    """Return what a model can do, in Ollama's words; see :class:`ModelFacts`.

    Every model gives vectors; all but encoders and those with a head of classes complete text.
    """
    found = ["completion", "embedding"] if config is None or config.generates else ["embedding"]
    if formats.shows_tools and formats.tool_parser is not None:
        found.append("tools")
    if formats.reasoning is not None:
        found.append("thinking")
    if config is not None and config.vision is not None:
        found.append("vision")
    return [*found, "insert"] if fills_in else found


async def list_facts(models: Models, loaded: bool = False) -> list[ModelFacts]:
    """Return what is known of all models that requests may name, or of those that are loaded."""
    if loaded:
        known = [model for model in models.known() if model.service is not None]
    else:
        known = await models.listed()
    options = models.shared.options
    return await asyncio.to_thread(lambda: [_read(model, options) for model in known])


async def find_facts(models: Models, name: str | None) -> ModelFacts:
    """Return what is known of the model of a name; without one, of the first.

    Raises:
        ApiError: 404, no model has that name.
    """
    model = await models.look_up(name)

    def read() -> ModelFacts:
        facts = _read(model, models.shared.options)
        return replace(facts, sampling=_sampling(facts))

    return await asyncio.to_thread(read)


def weight_bytes(service: Service) -> int:
    """Return what a loaded model's weights take in memory; models of one engine have the same."""
    return int(add_up(actual_engine(service.engine).stats(), "memory_bytes", pool="weights"))


def _read(model: KnownModel, options: ServerOptions) -> ModelFacts:
    stored, service = _stored(model), model.service
    path = None if stored is None else stored.path
    details = ModelDetails() if stored is None else stored.details
    if service is None:
        config = None if path is None else supported_config(path)
        texts = _texts(model, stored)
        template, tokens = texts.chat_template, texts.fim_tokens
        formats = AnswerFormats.resolve(options, template)
        longest = model.config.model.max_model_len
    else:
        config, tokenizer = service.engine.model_config, service.engine.tokenizer
        template, tokens = tokenizer.chat_template, FimTokens.find(tokenizer)
        formats, longest = service.formats, service.engine.max_model_len
    if config is not None:
        details = _of_config(config, details)
    details = replace(details, quantization=_quantization(model, details, config))
    return ModelFacts(
        model=model,
        stored=stored,
        details=details,
        config=config,
        context=longest or details.context or None,
        chat_template=template,
        formats=formats,
        fills_in=not tokens.missing,
    )


def _stored(model: KnownModel) -> StoredModel | None:
    """Return a model as the store sees it, or None where its files are not found."""
    store, name = Store(), model.config.model.model
    try:
        found = store.find(name) or store.look_at(name)
    except (QuireError, OSError, RuntimeError) as error:  # loading it says so, too
        log.debug("%s", error)
        return None
    return None if found is None or found.path is None else found


def _texts(model: KnownModel, stored: StoredModel | None) -> FileTexts:
    if stored is None or stored.path is None:
        return FileTexts()
    options, preset = model.config.model, stored.preset
    path = stored.path if options.tokenizer is None else Path(options.tokenizer).expanduser()
    try:
        return read_file_texts(path, options.chat_template, preset.template)
    except QuireError as error:
        log.debug("%s", error)
        return FileTexts()


def _sampling(facts: ModelFacts) -> Mapping[str, Any]:
    service, options = facts.model.service, facts.model.config.model
    if service is not None:
        return service.engine.default_sampling_params
    if facts.stored is None or facts.stored.path is None:
        return {}
    try:
        return read_generation_config(
            facts.stored.path,
            options.generation_config,
            options.json_object("override_generation_config"),
            recommended=facts.preset.sampling,
        ).sampling
    except QuireError as error:  # loading it says so, too
        log.debug("%s", error)
        return {}


def _of_config(config: ModelConfig, details: ModelDetails) -> ModelDetails:
    """Return details with what a model's configuration knows better."""
    return replace(
        details,
        architecture=config.architecture,
        parameters=config.num_parameters,
        context=config.max_position_embeddings,
        layers=config.num_layers,
        embedding=config.hidden_size,
    )


def _quantization(model: KnownModel, details: ModelDetails, config: ModelConfig | None) -> str:
    dtype = "" if config is None else _DTYPES.get(config.dtype, "")
    rounded: str | None = model.config.model.quantization
    if rounded in QUANTIZATIONS:
        is_stored = config is None or config.stored_quantization
        rounded = None if is_stored else QUANTIZATIONS[rounded][0]
    chosen = rounded or details.quantization
    return chosen or _named_type(model) or dtype


def _named_type(model: KnownModel) -> str | None:
    """Return the quantization that a model's name says."""
    found = _QUANTIZATION.search(model.config.model.model)
    return None if found is None else found[1].upper()
