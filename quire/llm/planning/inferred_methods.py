"""The methods of drafters that settings name without one, by what their checkpoints hold."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import QuireError
from quire.core.speculative_config import MethodName, SpeculativeMethod
from quire.settings.config import EngineConfig
from quire.store.hub import resolve_model
from quire.system.log import get_logger

log = get_logger(__name__)


def infer_methods(config: EngineConfig) -> EngineConfig:
    """Return settings in which each method is named.

    Raises:
        ConfigError: The methods that are found contradict the other settings.
    """
    return replace(config, speculative=config.speculative.with_methods(_find))


def _find(method: SpeculativeMethod) -> MethodName:
    # Imported here: settings that name their methods do not wait for it.
    from quire.models.draft_heads.find_method import find_method

    assert method.model is not None, "a method was inferred without a model"
    try:
        found = find_method(resolve_model(method.model, method.revision))
    except QuireError:
        return method.method  # its loader says what is wrong
    log.info("drafts by %s: method %s, by its tensors", method.model, found)
    return found
