"""The offline face: shapes of prompts and outputs, order, refusals that leave no trace."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import (
    EngineDeadError,
    InvalidSamplingParamsError,
    PromptTooLongError,
    RequestError,
)
from quire.core.structured_outputs import StructuredOutputs

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def is_idle(llm: LLM) -> bool:
    stats = llm.engine.stats()
    llm.engine.engine.scheduler.kv.check_integrity()
    return stats["kv_cache_usage_perc"] == 0 and not llm.engine.has_unfinished_requests()


def test_all_forms_of_a_prompt_give_the_same_tokens(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("abc")
    prompts: list[Any] = ["abc", ids, {"prompt": "abc"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(prompts, GREEDY)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["abc", None, "abc", None]
    assert all(output.prompt_token_ids == ids for output in outputs)
    for single in prompts:
        assert llm.generate(single, GREEDY)[0].outputs[0] == outputs[0].outputs[0]


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [9, 1, 5, 3]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate([f"prompt {n}" for n in lengths], params)
    assert [output.prompt for output in outputs] == [f"prompt {n}" for n in lengths]
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert all(
        output.finished and output.outputs[0].finish_reason == "length" for output in outputs
    )
    assert is_idle(llm)


def test_the_model_s_own_limit_gives_way_to_the_context(
    folder: Path, device: str, small: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 60, "do_sample": false}')
    with LLM(str(tmp_path), device=device, **{**small, "max_model_len": 64}) as llm:
        short, long = llm.generate([[1] * 3, [1] * 50])
        assert len(long.outputs[0].token_ids) <= 14 < len(short.outputs[0].token_ids)
        with pytest.raises(RequestError, match="50 \\+ 60 = 110"):
            llm.generate([[1] * 50], llm.get_default_sampling_params())


def test_end_tokens_beyond_the_vocabulary_end_nothing(
    folder: Path, tmp_path: Path, device: str, small: dict[str, Any]
) -> None:
    """One such id stopped the engine at the first request with min_tokens or a grammar."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["eos_token_id"] = [2, 5000, 2_000_000_000]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [-1, 2, 9999]}')
    choice = StructuredOutputs(choice=["aa", "ab"])
    with LLM(str(tmp_path), device=device, **small) as llm:
        assert llm.engine.model_config.eos_token_ids == (2,)
        (least,) = llm.generate("abc", replace(GREEDY, min_tokens=6))
        assert len(least.outputs[0].token_ids) == 6
        (chosen,) = llm.generate("abc", SamplingParams(seed=1, structured_outputs=choice))
        assert chosen.outputs[0].text in ("aa", "ab")


def test_settings_may_be_changed_and_are_checked_again(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.max_tokens, params.temperature = 3, 0
    requests = [llm.engine.prepare("a", [1, 2], params)]
    params.max_tokens = 5
    assert requests[0].params.max_tokens == 3, "a request keeps the settings it came with"
    assert len(llm.generate([1, 2], params)[0].outputs[0].token_ids) <= 5
    params.temperature = -1
    with pytest.raises(InvalidSamplingParamsError, match="temperature"):
        llm.generate([1, 2], params)


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_metrics_are_in_order_of_time(llm: LLM) -> None:
    metrics = llm.generate("x", GREEDY)[0].metrics
    times = [
        metrics.arrival_time,
        metrics.first_scheduled_time,
        metrics.first_token_time,
        metrics.last_token_time,
    ]
    assert times == sorted(times) and times[0] > 0


def test_chat_renders_the_template_once(llm: LLM) -> None:
    message = {"role": "user", "content": "hi"}
    output = llm.chat([message], GREEDY)[0]
    assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    tokenizer = llm.get_tokenizer()
    assert output.prompt_token_ids == tokenizer.encode(output.prompt, add_special_tokens=False)
    several = llm.chat([[message], [message]], GREEDY)
    assert [other.outputs[0] for other in several] == [output.outputs[0]] * 2


@pytest.mark.parametrize(
    "prompts, params, error, words",
    [
        (["fine", ""], GREEDY, RequestError, ["at least one token"]),
        ([[]], GREEDY, RequestError, ["at least one token"]),
        ([[1, 2, 320]], GREEDY, RequestError, ["320"]),
        ([[1, -1]], GREEDY, RequestError, ["-1"]),
        ([["a"]], GREEDY, RequestError, ["token ids"]),
        ([[True]], GREEDY, RequestError, ["token ids"]),
        ([3.5], GREEDY, RequestError, ["3.5"]),
        ([{"text": "x"}], GREEDY, RequestError, ["prompt_token_ids", "text"]),
        ([{"prompt": "x", "image": 1}], GREEDY, RequestError, ["image"]),
        ([{"prompt": 5}], GREEDY, RequestError, ["5"]),
        (["fine", "x" * 2048], GREEDY, PromptTooLongError, ["2048"]),
        (["x" * 1_000_000], GREEDY, PromptTooLongError, ["1000000", "2048"]),
        (["a", "b"], [GREEDY], RequestError, ["one per prompt (2)", "1"]),
        ("a", SamplingParams(logprobs=21), InvalidSamplingParamsError, ["20", "21"]),
        ("a", SamplingParams(prompt_logprobs=-1), InvalidSamplingParamsError, ["20", "-1"]),
        ("a", SamplingParams(logit_bias={320: 1.0}), InvalidSamplingParamsError, ["319", "320"]),
        ("a", SamplingParams(allowed_token_ids=[-1]), InvalidSamplingParamsError, ["-1"]),
        ("a", SamplingParams(stop="x", detokenize=False), InvalidSamplingParamsError, ["stop"]),
        ("a", SamplingParams(bad_words=[" "]), InvalidSamplingParamsError, ["bad_words"]),
        (5, GREEDY, RequestError, ["must be text, a list of token ids", "got 5"]),
        (b"abc", GREEDY, RequestError, ["must be text, a list of token ids"]),
        ("a", SamplingParams(n=9), RequestError, ["--max-num-seqs (8)", "9"]),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_nothing(
    llm: LLM, prompts: Any, params: Any, error: type[Exception], words: list[str]
) -> None:
    steps = llm.engine.stats()["num_steps"]
    with pytest.raises(error) as caught:
        llm.generate(prompts, params)
    assert all(word in str(caught.value) for word in words), caught.value
    assert is_idle(llm)
    assert llm.engine.stats()["num_steps"] == steps
    assert len(llm.generate("still works", GREEDY)[0].outputs[0].token_ids) > 0


def test_low_level_steps(llm: LLM) -> None:
    expected = llm.generate("abc", GREEDY)[0].outputs[0].token_ids
    llm.engine.add_request("mine", "abc", GREEDY)
    seen = []
    while llm.engine.has_unfinished_requests():
        with pytest.raises(RequestError, match="must be idle"):
            llm.generate("another", GREEDY)
        seen += llm.engine.step()
    assert [output.outputs[0].token_ids for output in seen] == [
        expected[: i + 1] for i in range(len(expected))
    ]
    assert [output.finished for output in seen] == [False] * (len(expected) - 1) + [True]


class Interrupting:
    """An executor during whose steps Ctrl-C is pressed."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def submit(self, plan: Any, request_arrived: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return self._executor.submit(plan, request_arrived)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def test_an_interrupt_waits_for_the_step_and_leaves_a_working_engine(llm: LLM) -> None:
    expected = llm.generate("abc", GREEDY)[0].outputs
    before = signal.getsignal(signal.SIGINT)
    llm.engine.engine.executor = Interrupting(llm.engine.engine.executor)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "def"], SamplingParams(max_tokens=2000, ignore_eos=True))
    assert signal.getsignal(signal.SIGINT) is before
    assert is_idle(llm)
    llm.engine.engine.executor = llm.engine.executor
    assert llm.generate("abc", GREEDY)[0].outputs == expected


def test_a_failed_step_ends_everything_and_says_so(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm()
    llm.engine.executor.shutdown()  # the next step finds no model
    with pytest.raises(EngineDeadError, match="submit after shutdown"):
        llm.generate(["a", "b"], GREEDY)
    with pytest.raises(EngineDeadError):
        llm.generate("c", GREEDY)


def test_json_without_white_space_is_a_setting_too(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm(disable_any_whitespace=True)
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": [2, 3]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for constraint, text in (({"json": schema}, '{"a":1,"b":[2,3]}'), ({"regex": "a b"}, "a b")):
        params = SamplingParams(max_tokens=60, structured_outputs=StructuredOutputs(**constraint))
        assert llm.generate("A", params, use_tqdm=False)[0].outputs[0].text == text


def test_log_probabilities_of_tokens_by_name(llm: LLM) -> None:
    """However unlikely they are: the same figures as among all of the vocabulary."""
    named, prompt = [250, 3, 17], [5, 9, 200]
    settings = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}
    (asked,) = llm.generate([prompt], SamplingParams(logprob_token_ids=named, **settings))
    vocabulary = llm.engine.model_config.vocab_size
    (every,) = llm.generate([prompt], SamplingParams(logprobs=20, **settings))
    for found, token_id in zip(asked.outputs[0].logprobs, asked.outputs[0].token_ids, strict=True):
        assert set(found) == {*named, token_id}
        assert all(1 <= one.rank <= vocabulary for one in found.values())
    for some, most in zip(asked.outputs[0].logprobs, every.outputs[0].logprobs, strict=True):
        for token_id in set(some) & set(most):
            assert some[token_id] == most[token_id]
    for token_id in named:
        only = SamplingParams(
            allowed_token_ids=[token_id], logprobs=0, max_tokens=1, ignore_eos=True
        )
        (alone,) = llm.generate([prompt], only)
        assert alone.outputs[0].logprobs[0][token_id] == asked.outputs[0].logprobs[0][token_id]
    with pytest.raises(RequestError, match="logprob_token_ids"):
        llm.generate([prompt], SamplingParams(logprob_token_ids=[vocabulary]))
    with pytest.raises(RequestError, match="at most 128"):
        SamplingParams(logprob_token_ids=list(range(129)))
