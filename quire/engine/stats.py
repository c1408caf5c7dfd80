"""What the engine counts; plain numbers, no exporter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was built.

    Attributes:
        num_steps: Plans executed.
        num_computed_tokens: Token positions that went through the model, recomputation included.
        num_preemptions: Requests whose blocks were taken back to recompute later.
        num_block_copies: Blocks copied on write.
        prompt_tokens: Prompt tokens of requests that were started; sequences that share a prompt's
            computation count once.
        generation_tokens: Sampled tokens.
        prefix_cache_queries: Tokens looked up in the prefix cache, once per started request.
        prefix_cache_hits: Of these, found.
        finished: Sequences that ended, by finish reason.
    """

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_block_copies: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    finished: Counter[str] = field(default_factory=Counter)
