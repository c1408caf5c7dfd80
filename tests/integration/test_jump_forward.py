"""Tokens that a grammar decides alone change nothing but the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire import LLM, SamplingParams, StructuredOutputs
from quire.core.errors import RequestError
from quire.runner.step import jump_forward
from quire.store.hub import resolve_model
from tests.integration.conftest import share
from tests.integration.schemas import schemas
from tests.sizes import sized

pytestmark = pytest.mark.usefixtures("patient")
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "full name": {"type": "string", "maxLength": 6},
        "answer": {"const": "a long constant text"},
        "tags": {"type": "array", "items": {"enum": ["red", "reddish", "blue"]}, "maxItems": 3},
    },
    "required": ["full name", "answer", "tags"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "schema": {"json": PERSON},
    "object": {"json_object": True},
    "regex": {"regex": "(year: (19|20)[0-9]{2}; ){1,3}end of the list"},
    "choice": {"choice": ["the first of two", "the first of three", "the third", "é東京"]},
    "one text": {"regex": "a{75}"},
    "grammar": {"grammar": 'start: "<b>" word "</b>" start?\nword: /[a-c]{1,3}/'},
}
#: After its first token, which is like no other.
LATER = {"later text": {"regex": "ya{75}"}}
MODELS = ["tiny-llama", "tiny-gpt2", "quire-tiny"]
HOW: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 5, "n": 4},
    {"seed": 1, "top_p": 0.7, "repetition_penalty": 2},
]
PROMPTS = ["A:", "Who is Anna? Tell me about her: ", "x" * 40]
Create = Callable[..., LLM]


class Pair:
    """Two engines of one kind: one draws every token, the other jumps."""

    def __init__(self, create_llm: Create, model: str, **settings: Any) -> None:
        folder = model if model != "quire-tiny" else resolve_model(model)
        self.drawing, self.jumping = (create_llm(folder, **settings) for _ in range(2))
        self.num_forced = 0
        self.num_steps = [0, 0]

    def equal(self, prompts: list[str], params: Any) -> list[Any]:
        """Run both; return the outputs, which must be the same but for their times."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jump_forward, "MAX_FORCED_TOKENS", 0)
            drawn = self._run(0, self.drawing, prompts, params)
        assert self.num_forced == 0
        jumped = self._run(1, self.jumping, prompts, params)
        assert jumped == drawn
        return jumped

    def _run(self, index: int, llm: LLM, prompts: list[str], params: Any) -> list[Any]:
        before = llm.engine.engine.scheduler.stats.num_steps
        outputs = llm.generate(prompts, params, use_tqdm=False)
        scheduler = llm.engine.engine.scheduler
        stats = scheduler.stats
        self.num_steps[index], self.num_forced = stats.num_steps - before, stats.num_forced_tokens
        # What the pool has of a prompt depends on when it is computed.
        varies = scheduler.prefill.divides or stats.num_preemptions > 0
        return [(o.error, None if varies else o.num_cached_tokens, o.outputs) for o in outputs]


@pytest.fixture
def create_pair(create_llm: Create) -> Callable[..., Pair]:
    def create(model: str = "tiny-llama", **settings: Any) -> Pair:
        return Pair(create_llm, model, **settings)

    return create


@pytest.fixture(scope="module")
def one_pair(checkpoint: Callable[..., Any], device: str, small: Any) -> Iterator[Pair]:
    """One token per byte, so that whole names are forced."""
    made: list[LLM] = []

    def create(folder: str, **settings: Any) -> LLM:
        made.append(LLM(str(checkpoint(folder, max_position_embeddings=512)), **settings))
        return made[-1]

    yield Pair(create, "tiny-llama", device=device, **small)
    for llm in made:
        llm.engine.engine.scheduler.kv.check_integrity()
        llm.shutdown()


def of(name: str, **settings: Any) -> SamplingParams:
    constraint = StructuredOutputs(**(CONSTRAINTS | LATER)[name])
    return SamplingParams(
        **{"max_tokens": sized(90, 120), "structured_outputs": constraint, **settings}
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", HOW, ids=["greedy", "seeded", "penalized"])
def test_each_kind(create_pair: Callable[..., Pair], model: str, how: dict[str, Any]) -> None:
    pair = create_pair(model)
    for name in share(CONSTRAINTS, MODELS.index(model) + HOW.index(how), 3, {}):
        pair.equal(PROMPTS, of(name, max_tokens=sized(60, 120), **how))
    assert pair.num_forced > 20


def test_a_text_without_choice_takes_few_steps(one_pair: Pair) -> None:
    one_pair.equal(["A:"], of("one text"))
    drawn = 75 + 1  # and its end-of-sequence token
    assert one_pair.num_steps[0] == drawn
    assert one_pair.num_steps[1] == -(-drawn // (1 + jump_forward.MAX_FORCED_TOKENS))


@settings(
    max_examples=sized(10, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(schema=schemas(), seed=st.integers(0, 2**31), greedy=st.booleans())
def test_any_schema(one_pair: Pair, schema: Any, seed: int, greedy: bool) -> None:
    params = SamplingParams(
        n=1 if greedy else 3,
        seed=seed,
        temperature=0.0 if greedy else 1.0,
        max_tokens=100,
        structured_outputs=StructuredOutputs(json=schema),
    )
    try:
        one_pair.equal(["A:", "B: "], params)
    except RequestError as error:
        assert error.param == "structured_outputs"


@pytest.mark.parametrize(
    "settings",
    [
        {"num_gpu_blocks_override": 14, "looks_ahead": False},
        {
            "num_gpu_blocks_override": 27,
            "enable_prefix_caching": False,
            "block_size": 8,
            "looks_ahead": False,
        },  # fmt: skip
        {"use_cache": False},
        {"enable_chunked_prefill": False, "max_model_len": 256, "max_num_batched_tokens": 256},
        {"max_num_batched_tokens": 9, "long_prefill_token_threshold": 5},
        {"mixed_prefill_tokens": 2, "block_size": 1, "takes_more": True},
        {"kv_cache_dtype": "int8"},
        {"threads": 2},
    ],
    ids=str,
)
def test_a_batch_under_each_schedule(
    create_pair: Callable[..., Pair], device: str, settings: dict[str, Any]
) -> None:
    """Constrained with free requests, more than run at once, some preempted."""
    if device != "cpu":
        pytest.skip("the reference does not promise equal bits")
    pair = create_pair(**settings)
    mixed = [
        of(name, seed=i, n=1 + i % 2, max_tokens=sized(60, 120))
        for i, name in enumerate(CONSTRAINTS)
    ]
    mixed += [SamplingParams(max_tokens=sized(20, 40), seed=9, ignore_eos=True)] * 3
    prompts = [PROMPTS[i % 3] * (1 + i % 2) for i in range(len(mixed))]
    pair.equal(prompts, mixed)
    assert pair.num_forced > 50
    if "num_gpu_blocks_override" in settings:
        assert pair.jumping.engine.engine.scheduler.stats.num_preemptions > 0


def test_a_prompt_that_was_cached(create_pair: Callable[..., Pair]) -> None:
    """Hits after the prompt's end save work, and are no ``cached_tokens``."""
    pair = create_pair(block_size=4)
    for _ in range(2):
        ((_, num_cached, outputs),) = pair.equal(["x" * 41], of("one text"))
    assert num_cached == 40
    assert outputs[0].text == "a" * 75


@pytest.mark.parametrize("max_tokens", [1, 2, 31, 32, 33, 34, 66, 74, 75, 76, 77])
def test_the_length_ends_it(one_pair: Pair, max_tokens: int) -> None:
    ((_, _, (output,)),) = one_pair.equal(["A:"], of("one text", max_tokens=max_tokens))
    assert len(output.token_ids) == min(max_tokens, 76)
    assert output.finish_reason == ("length" if max_tokens < 76 else "stop")


def test_the_context_ends_it(create_pair: Callable[..., Pair]) -> None:
    pair = create_pair(max_model_len=64)
    ((_, _, (output,)),) = pair.equal(["A:"], of("one text", max_tokens=None))
    assert output.finish_reason == "length"
    assert 60 < len(output.token_ids) < 64


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", [["9"], ["19"], ["; e"], ["of"], ["d of the l", "zz"], ["year"]])
def test_stop_strings_end_it(one_pair: Pair, stop: list[str], include: bool) -> None:
    """In the midst of forced tokens too: what comes after is no part of text, ids or usage."""
    params = of("regex", seed=1, n=3, stop=stop, include_stop_str_in_output=include)
    ((_, _, outputs),) = one_pair.equal(["A:"], params)
    assert any(output.stop_reason in stop for output in outputs)


def test_stop_tokens_end_it(one_pair: Pair) -> None:
    for text in "a1; d":
        (token,) = one_pair.jumping.get_tokenizer().encode(text, add_special_tokens=False)
        ((_, _, outputs),) = one_pair.equal(["A:"], of("regex", seed=2, stop_token_ids=[token]))
        assert outputs[0].token_ids[-1] == token or text not in outputs[0].text


@pytest.mark.parametrize("text", ["later text", "regex"])
def test_what_is_forbidden_is_not_forced(one_pair: Pair, text: str) -> None:
    """The request ends with the same error as when the sampler finds no token.

    What leaves no first token is refused before it runs.
    """
    tokenizer = one_pair.jumping.get_tokenizer()
    (a, e, y) = (tokenizer.encode(c, add_special_tokens=False)[0] for c in "aey")
    for further in (
        {"bad_words": ["a"]},
        {"bad_words": ["ea", "aaaa"]},
        {"allowed_token_ids": [a, e, y]},
        {"logit_bias": {a: -100.0, e: 100.0}},
    ):
        one_pair.equal(["A:"], of(text, temperature=0.0, **further))
    ((error, _, _),) = one_pair.equal(["A:"], of(text, bad_words=["a"]))
    assert error is not None and "structured_outputs" in error


def test_with_logprobs_the_model_is_asked(one_pair: Pair) -> None:
    before = one_pair.jumping.engine.engine.scheduler.stats.num_forced_tokens
    one_pair.num_forced = 0
    outputs = one_pair.jumping.generate("A:", of("one text", logprobs=0), use_tqdm=False)
    assert len(outputs[0].outputs[0].logprobs or ()) == 76
    assert one_pair.jumping.engine.engine.scheduler.stats.num_forced_tokens == before


def test_a_request_without_a_grammar_is_not_asked(one_pair: Pair) -> None:
    """Not even in a row that had one before."""
    one_pair.equal(["A:"], of("one text"))
    before = one_pair.num_forced
    one_pair.equal(["A:"] * 3, SamplingParams(max_tokens=30, seed=1))
    assert one_pair.num_forced == before > 0
