"""Models of the store that a server loads when requests name them; here none is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.core.errors import ModelLoadError
from quire.models.config.config_reader import supported_config
from quire.server.generation.served_models import KnownModel
from quire.server.generation.service import model_names
from quire.server.registry.model_registry import RegisteredModel
from quire.settings.config import EngineConfig
from quire.store.named_models import named_model
from quire.store.store import Store, StoredModel


class StoredModels:
    """See :class:`quire.server.registry.model_registry.FurtherModels`; its methods read the disk.

    Args:
        config: Settings of every model, but for those that say which model it is.
        register: The function that returns a model of a server from its settings.
    """

    def __init__(
        self, config: EngineConfig, register: Callable[[EngineConfig], RegisteredModel]
    ) -> None:
        self._config = config
        self._register = register
        self._store = Store()

    def list(self) -> list[KnownModel]:
        return [
            self._known(stored)
            for stored in self._store.list()
            if stored.path is not None and supported_config(stored.path) is not None
        ]

    def look_up(self, name: str) -> KnownModel | None:
        stored = self._find(name)
        return None if stored is None else self._known(stored)

    def find(self, name: str) -> RegisteredModel | None:
        stored = self._find(name)
        if stored is None:
            return None
        found = self._register(self._settings(stored))
        found.named = False
        found.is_current = _Watch(self._store, stored)
        return found

    def _find(self, name: str) -> StoredModel | None:
        stored = self._store.find(name)
        return None if stored is None or stored.path is None else stored

    def _known(self, stored: StoredModel) -> KnownModel:
        config = self._settings(stored)
        return KnownModel(model_names(config.model), config, "absent", None)

    def _settings(self, stored: StoredModel) -> EngineConfig:
        manifest = stored.manifest
        # The catalogue has one spelling of a name; requests may have others.
        plain = stored.name.lower() if named_model(stored.name) else stored.name
        revision = None if manifest.parent else manifest.revision  # a name made here has none
        model = replace(self._config.model, model=plain, revision=revision, served_model_name=())
        return replace(self._config, model=model)


class _Watch:
    """Whether a name still stands for the same files and settings."""

    def __init__(self, store: Store, stored: StoredModel) -> None:
        self._store = store
        self._stored = stored
        self._state = stored.state()

    def __call__(self) -> bool:
        state = self._stored.state()
        if state != self._state:
            try:
                now = self._store.find(self._stored.name)
            except ModelLoadError:  # damaged
                return False
            if now is None or now.path is None or now.digest != self._stored.digest:
                return False
            self._state = state  # only written again, as a second pull does
        return True
