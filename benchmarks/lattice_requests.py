"""What the equality lattice asks: prompts, some with pictures, and settings of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import SamplingParams, StructuredOutputs
from quire.core.engine_request import Picture
from quire.core.model.model_config import ModelConfig
from quire.core.model.vision_config import VisionConfig
from quire.llm.engine_client import Prompt

BLOCK_SIZE = 8
NUM_OUTPUT_TOKENS = 20


def requests(config: ModelConfig) -> list[tuple[Prompt, SamplingParams]]:
    """Make prompts and settings: greedy and seeded, one and several sequences, every logprob.

    A model that reads pictures gets one in every prompt.
    """
    vision, made = config.vision, _texts(config.vocab_size)
    if vision is None:
        return [(prompt, params) for prompt, params in made]
    return [
        (_illustrated(prompt, number, vision), params)
        for number, (prompt, params) in enumerate(made)
    ]


def _illustrated(prompt: list[int], number: int, vision: VisionConfig) -> Prompt:
    """Return a prompt with a picture in it, which two prompts in turn have."""
    shape, key, mark = vision.input, number // 2, vision.writing.row_id
    count = vision.num_tokens(shape.height, shape.width)
    texts = [3 if token_id == mark else token_id for token_id in prompt]
    token_ids = [*texts[:1], *[mark] * count, *texts[1:]]
    size = 3 * shape.height * shape.width
    pixels = np.random.default_rng(key).integers(0, 256, size, dtype=np.uint8).tobytes()
    picture = Picture(1, count, str(key), pixels, shape.height, shape.width)
    return {"prompt_token_ids": token_ids, "pictures": [picture]}


def token_ids_of(prompt: Prompt) -> list[int]:
    """Return the tokens of one of the prompts."""
    found = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt
    assert isinstance(found, list)
    return found


def _texts(vocab_size: int) -> list[tuple[list[int], SamplingParams]]:
    random = np.random.default_rng(11)

    def prompt(length: int) -> list[int]:
        return random.integers(5, vocab_size, length).tolist()

    def params(**settings: Any) -> SamplingParams:
        return SamplingParams(max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True, **settings)

    shared = prompt(70)
    return [
        (prompt(3), params(temperature=0.0, logprobs=2)),
        (prompt(37), params(temperature=0.0, logprobs=0, prompt_logprobs=2)),
        (shared + prompt(30), params(temperature=0.9, top_p=0.9, seed=1, n=3, logprobs=1)),
        (
            shared + prompt(7),
            params(temperature=1.0, seed=2, repetition_penalty=1.2, presence_penalty=0.3),
        ),
        (
            prompt(33),
            params(
                temperature=0.7, top_k=9, min_p=0.01, seed=3, n=2, logprobs=5, logit_bias={7: 2.0}
            ),
        ),
        (prompt(2 * BLOCK_SIZE), params(temperature=0.0, prompt_logprobs=0)),
        (
            prompt(29),
            SamplingParams(
                max_tokens=NUM_OUTPUT_TOKENS,
                structured_outputs=StructuredOutputs(regex="[a-f ]{1,200}[0-9]{2}"),
                temperature=1.0,
                seed=4,
                n=2,
                logprobs=1,
            ),
        ),
    ]
