"""Drafts with another vocabulary than the model: the same answers in fewer steps (SPD-16)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.outputs import RequestOutput
from tests.draft_vocabularies import retokenized
from tests.integration.conftest import once, share
from tests.integration.test_speculation_draft import (
    DRAFT,
    FEW_BLOCKS,
    KINDS,
    PROMPTS,
    TINY,
    accepted,
    draft_model,
    num_steps,
    params,
    results,
)
from tests.integration.test_speculation_rejection import square
from tests.sizes import sized

WAYS = ["intersection", "text"]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 16, "block_size": 8, "threads": 2},
    {"kv_layout": "contiguous", "max_model_len": 256, "max_num_seqs": 4},
    {
        "block_size": 8,
        "max_model_len": 128,
        "num_gpu_blocks_override": FEW_BLOCKS,
        "looks_ahead": False,
    },
]

Create = Callable[..., LLM]
Answers = Callable[..., list[RequestOutput]]


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return copies of the draft with shuffled ids, by the number of merges left out."""
    folder = tmp_path_factory.mktemp("drafts")
    return {n: retokenized(DRAFT, folder / str(n), n) for n in (0, 300, 1300)}


@pytest.fixture
def create(create_llm: Create, device: str) -> Create:
    """Return a maker of quire-tiny, by the native kernels: torch does not promise equal bits."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")

    def make(**settings: Any) -> LLM:
        return create_llm(TINY, **settings)

    return make


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_are_the_same(
    create: Create,
    plain_answers: Answers,
    drafts: dict[int, Path],
    way: str,
    settings: dict[str, Any],
) -> None:
    number = 2 * SETTINGS.index(settings) + WAYS.index(way)
    llm = create(**settings, speculative_config=draft_model(4, drafts[300], vocabulary=way))
    tokens = sized(30 if "num_gpu_blocks_override" in settings else 20, 60)
    for kind in share(KINDS, number, len(KINDS), settings):
        expected = plain_answers(TINY, PROMPTS, params(kind, tokens), **settings)
        assert results(llm.generate(PROMPTS, params(kind, tokens))) == results(expected), kind
        assert accepted(llm) > 0.2, kind
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats()["num_preemptions"] > 0


@pytest.mark.parametrize("sampling", ["greedy", "sampled", "penalties"])
def test_shuffled_ids_cost_no_acceptance(
    create: Create, drafts: dict[int, Path], sampling: str
) -> None:
    """All tokens are common: the same proposals as with the same vocabulary."""
    found = []
    for model in (DRAFT, drafts[0]):
        llm = create(speculative_config=draft_model(4, model))
        llm.generate(PROMPTS, params(sampling, sized(30, 60)))
        found.append((accepted(llm), num_steps(llm)))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_one_stream_takes_fewer_steps(
    create: Create, drafts: dict[int, Path], way: str, sampling: str
) -> None:
    """SPD-16: at least 1.3 tokens a step."""
    num_tokens = sized(32, 100)
    llm = create(speculative_config=draft_model(4, drafts[300], vocabulary=way))
    for prompt, own in zip(PROMPTS, params(sampling, num_tokens), strict=True):
        llm.generate(prompt, own)
    assert num_tokens * len(PROMPTS) >= 1.3 * num_steps(llm)


def test_chats_long_prompts_and_other_scripts(create: Create, drafts: dict[int, Path]) -> None:
    """Special tokens in the middle, prompts of several drafting steps, characters cut in tokens."""
    messages = [
        {"role": "user", "content": "The dog ran to the park and played. " * sized(40, 120)},
        {"role": "assistant", "content": "\u00c4rger, na\u00efve \u65e5\u672c\u8a9e \U0001f600!"},
        {"role": "user", "content": "Tell me a story about the dog."},
    ]
    own = SamplingParams(temperature=0.8, seed=3, max_tokens=sized(20, 60), ignore_eos=True)
    cut = [*range(20, 60), 200, 201]  # bytes that are no characters
    expected = create().chat([messages], own), create().generate([cut], own)
    for way in WAYS:
        llm = create(speculative_config=draft_model(4, drafts[1300], vocabulary=way))
        for _ in range(2):
            assert results(llm.chat([messages], own)) == results(expected[0])
            assert accepted(llm) > 0
            assert results(llm.generate([cut], own)) == results(expected[1])


@pytest.mark.parametrize("way", WAYS)
def test_answers_go_on_where_the_draft_ends(
    create: Create, plain_answers: Answers, drafts: dict[int, Path], way: str
) -> None:
    own = params("sampled", sized(60, 100))  # each goes on for long after its prompt and 50 tokens
    expected = plain_answers(TINY, PROMPTS, own)
    method = draft_model(4, drafts[300], vocabulary=way, max_model_len=50)
    llm = create(speculative_config=method)
    assert results(llm.generate(PROMPTS, own)) == results(expected)
    drafted = llm.engine.stats()['spec_decode_num_draft_tokens{method="draft_model"}']
    assert 0 < drafted < 50 * len(PROMPTS) * 4


@pytest.mark.parametrize("way", WAYS)
def test_rejection_keeps_the_distribution(
    create: Create, drafts: dict[int, Path], way: str
) -> None:
    num = sized(40, 100)  # of 15 sequences: of more at once, few rows are left for proposals
    settings: dict[str, Any] = {"temperature": 1.8, "top_k": 8, "n": 15}
    own = [SamplingParams(max_tokens=3, ignore_eos=True, seed=i, **settings) for i in range(num)]
    method = draft_model(2, drafts[300], vocabulary=way, acceptance="rejection")
    llm = create(speculative_config=method, max_num_seqs=16)

    def answers(llm: LLM) -> list[tuple[int, ...]]:
        outputs = llm.generate(PROMPTS[1:2] * num, own, use_tqdm=False)
        return [tuple(one.token_ids) for output in outputs for one in output.outputs]

    found = [once(lambda: answers(create(max_num_seqs=16)), "distribution", own), answers(llm)]
    num_drafted = llm.engine.stats()['spec_decode_num_draft_tokens{method="draft_model"}']
    assert num_drafted >= len(found[1])
    assert accepted(llm) > 0.1
    assert found[0] != found[1]
    for length in (2, 3):
        plain, drafted = (Counter(answer[:length] for answer in answers) for answers in found)
        value, degrees = square(drafted, plain)
        assert degrees > 5
        assert value < degrees + 3.3 * np.sqrt(2 * degrees), (length, value, degrees)


def test_the_way_is_chosen_by_what_is_common(
    create: Create, drafts: dict[int, Path], quire_log: list[logging.LogRecord]
) -> None:
    for num_dropped in (300, 1300):
        create(speculative_config=draft_model(4, drafts[num_dropped]))
    lines = [record.getMessage() for record in quire_log]
    starts = [line for line in lines if "of the model's 2,048 tokens are its own, too" in line]
    assert starts[0].endswith("it draws among these")
    assert starts[1].endswith("the model's tokens are made of the text that it writes")
