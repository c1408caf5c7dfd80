"""Modules with vLLM's paths (``quire.sampling_params`` ...), so that scripts change one word.

Each holds names of the package ``quire``, as the table says, and nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_OUTPUTS = ("CompletionOutput", "RequestOutput")
MODULES: dict[str, tuple[str, ...]] = {
    "engine.arg_utils": ("AsyncEngineArgs", "EngineArgs"),
    "engine.async_llm_engine": ("AsyncLLMEngine",),
    "engine.llm_engine": ("LLMEngine",),
    "entrypoints": (),
    "entrypoints.llm": ("LLM",),
    "inputs": ("PromptType", "TextPrompt", "TokensPrompt"),
    "lora": (),
    "lora.request": ("LoRARequest",),
    "outputs": _OUTPUTS,
    "sampling_params": (
        "BeamSearchParams",
        "GuidedDecodingParams",
        "RequestOutputKind",
        "SamplingParams",
        "StructuredOutputsParams",
    ),
    "utils": ("FlexibleArgumentParser", "random_uuid"),
    "utils.argparse_utils": ("FlexibleArgumentParser",),
    "v1": (),
    "v1.engine": (),
    "v1.engine.async_llm": ("AsyncLLM",),
    "v1.engine.llm_engine": ("LLMEngine",),
}


def random_uuid() -> str:
    """Return 32 random hexadecimal digits, for the id of a request."""
    return uuid.uuid4().hex


class VllmModules(MetaPathFinder, Loader):
    """Finds the modules of :data:`MODULES` where no file has that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of the table is loaded; None for others."""
        package, _, name = fullname.partition(".")
        if package != "quire" or name not in MODULES:
            return None
        is_package = any(other.startswith(f"{name}.") for other in MODULES)
        return ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        """Put the names into a new module."""
        package, _, name = module.__name__.partition(".")
        for attribute in MODULES[name]:
            setattr(module, attribute, getattr(import_module(package), attribute))
        module.__dict__["__all__"] = list(MODULES[name])
