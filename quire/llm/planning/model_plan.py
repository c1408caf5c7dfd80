"""The plan of an engine, with the model's texts and drafts checked; nothing is loaded."""

from __future__ import annotations

from quire.checkpoints.checkpoint import refuse_pickles
from quire.llm.planning.draft_vocabulary import pair_draft_vocabularies
from quire.llm.planning.inferred_methods import infer_methods
from quire.llm.requests.request_reader import RequestReader
from quire.runner.memory.engine_plan import EnginePlan, plan_engine
from quire.settings.config import EngineConfig
from quire.system.machine import Machine


def plan_model(config: EngineConfig, machine: Machine) -> EnginePlan:
    """Return an engine's plan; whether its memory suffices is for the plan to say.

    Raises:
        ModelLoadError: The model does not exist, or it cannot be used.
        ConfigError: The settings contradict each other, or do not fit the model.
        NoKernelError: The backend cannot be used.
    """
    config = infer_methods(config)
    methods = config.speculative.methods()
    reader = RequestReader(config.model, methods, config.adapters)
    if reader.folder.is_dir():
        refuse_pickles(reader.folder)
    plan = plan_engine(reader.folder, config, machine)
    reader.tokenizer  # noqa: B018 - read for its errors
    pair_draft_vocabularies(methods, reader.tokenizer_folder)
    return plan
