"""Scripts written for vLLM, as its guides print them: only the import and the model change."""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import logging
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image
from pydantic import BaseModel

import quire
from quire import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    BeamSearchParams,
    EngineArgs,
    KvCacheConfig,
    LLMEngine,
    SamplingParams,
    StructuredOutputsParams,
    TextPrompt,
)
from quire.checkpoints.embedded import ASSETS
from quire.core.errors import ConfigError, InvalidSamplingParamsError, RequestError
from quire.llm.metric_readings import Counter, Gauge, Histogram
from quire.settings.config import SETTINGS
from quire.text.tokenizers.tokenizer import load_tokenizer
from quire.vllm_modules import MODULES

CONSTRUCTORS: list[dict[str, Any]] = [
    {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.5, "max_model_len": 256},
    {"tensor_parallel_size": 4, "max_model_len": 256, "enable_prefix_caching": True},
    {"block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 512, "swap_space": 4},
    {"enable_chunked_prefill": True, "max_num_batched_tokens": 512, "dtype": "bfloat16"},
    {"quantization": "awq", "dtype": "half"},
    {"quantization": "gptq", "tensor_parallel_size": 2},
    {"quantization": "fp8", "kv_cache_dtype": "fp8", "enforce_eager": True},
    {"speculative_model": "draft", "num_speculative_tokens": 5, "use_v2_block_manager": True},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
    {"enable_lora": True, "max_loras": 3, "max_lora_rank": 64},
    {"trust_remote_code": True, "disable_log_stats": True, "seed": 0, "tokenizer_mode": "auto"},
    {"kv_cache_config": KvCacheConfig(free_gpu_memory_fraction=0.5, enable_block_reuse=True)},
]


@pytest.mark.parametrize("keywords", CONSTRUCTORS, ids=str)
def test_constructors_of_scripts(folder: Path, device: str, keywords: dict[str, Any]) -> None:
    sized = "kv_cache_config" in keywords or "gpu_memory_utilization" in keywords
    small = {"max_num_seqs": 2, **({} if sized else {"memory": "64MiB"})}
    if "speculative_model" in keywords:
        keywords = {**keywords, "speculative_model": str(folder)}
    with LLM(model=str(folder), device=device, threads=1, **{**small, **keywords}) as llm:
        sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=4, seed=1)
        outputs = llm.generate(["Hello, my name is", "The future of AI is"], sampling_params)
        for output in outputs:
            assert output.prompt and output.outputs[0].token_ids
            assert isinstance(output.outputs[0].text, str)


def test_notices_are_logged_and_tokens_stay(
    folder: Path, device: str, small: dict[str, Any], quire_log: list[logging.LogRecord]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    with LLM(str(folder), device=device, **small) as llm:
        expected = llm.generate("abc", params)[0].outputs[0].token_ids
    with LLM(str(folder), device=device, preemption_mode="swap", swap_space=4, **small) as llm:
        assert llm.generate("abc", params)[0].outputs[0].token_ids == expected
    said = [r.getMessage() for r in quire_log if r.levelno == logging.WARNING]
    assert [line.split()[0] for line in said] == ["preemption_mode='swap'", "swap_space=4"]


async def test_the_async_engine_of_scripts(
    folder: Path, device: str, small: dict[str, Any]
) -> None:
    engine_args = AsyncEngineArgs(
        model=str(folder), device=device, tensor_parallel_size=1, enforce_eager=True, **small
    )
    engine = AsyncLLMEngine.from_engine_args(engine_args)

    async def generate(prompt: str, request_id: str) -> tuple[str, list[str]]:
        sampling_params = SamplingParams(temperature=0.7, max_tokens=5, seed=3, ignore_eos=True)
        seen = []
        async for output in engine.generate(prompt, sampling_params, request_id=request_id):
            seen.append(output.request_id)
            if output.finished:
                return output.outputs[0].text, seen
        raise AssertionError("no output had finished set")

    try:
        answers = await asyncio.gather(*(generate(f"prompt {i}", f"req-{i}") for i in range(3)))
    finally:
        await engine.shutdown()
    assert [set(seen) for _, seen in answers] == [{f"req-{i}"} for i in range(3)]


def test_engine_args_are_attributes_and_checked() -> None:
    args = EngineArgs("m", max_model_len="4k", seed=3, served_model_name="a")
    assert (args.model, args.max_model_len, args.seed) == ("m", 4096, 3)
    assert args.served_model_name == ("a",)
    assert args.max_num_seqs == 128
    with pytest.raises(AttributeError, match="no setting 'pages'"):
        _ = args.pages
    unknown: Any = {"max_pages": 3}
    with pytest.raises(ConfigError, match="max_pages"):
        EngineArgs("m", **unknown)


def test_settings_as_a_dictionary_are_settings_again() -> None:
    """``LLM(**asdict(EngineArgs(...)))`` had no fields, and ``vars`` held what no keyword is."""
    method = {"method": "ngram", "num_speculative_tokens": 3}
    args = EngineArgs("m", max_model_len="4k", memory="1GiB", speculative_config=method)
    assert EngineArgs(**asdict(args)).config == EngineArgs(**vars(args)).config == args.config


@pytest.mark.parametrize("module", MODULES)
def test_modules_have_vllms_paths(module: str) -> None:
    """``from vllm.lora.request import LoRARequest`` had no module after changing the word."""
    found = importlib.import_module(f"quire.{module}")
    assert found.__all__ == list(MODULES[module])
    for name in MODULES[module]:
        assert getattr(found, name) is getattr(quire, name)


def test_modules_of_ours_win_over_vllms_paths() -> None:
    for name in MODULES:
        path = Path(quire.__file__).parent / name.replace(".", "/")
        assert not path.exists() and not path.with_suffix(".py").exists()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_modle_len", "max_model_len"), ("n_ctx", "max_model_len"), ("ctx_size", "max_model_len")],
)
def test_an_unknown_setting_names_the_nearest(name: str, meant: str) -> None:
    unknown: Any = {name: 5}
    with pytest.raises(ConfigError, match=f"got {name}. Did you mean {meant}?"):
        EngineArgs("m", **unknown)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("dtype", "fp16", ""),
        ("dtype", "bf16", ""),
        ("kv_cache_dtype", "q8_0", "must be int8; got q8_0"),
        ("quantization", "q4_k_m", "quire convert --type writes"),
        ("quantization", "4bit", "must be int4 or nf4"),
    ],
)
def test_values_of_llama_cpp_and_transformers_had_no_remedy(
    name: str, value: str, said: str
) -> None:
    asked: Any = {name: value}
    if not said:
        assert EngineArgs("m", **asked).dtype in ("float16", "bfloat16")
        return
    with pytest.raises(ConfigError, match=said):
        EngineArgs("m", **asked)


def test_a_gpu_is_named_as_missing() -> None:
    for device in ("cuda", "gpu", "mps"):
        asked: Any = {"device": device}
        with pytest.raises(ConfigError, match="there is no GPU backend yet"):
            EngineArgs("m", **asked)


def test_vllms_name_of_structured_outputs(llm: LLM) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["aa", "ab"]))
    assert llm.generate("abc", params)[0].outputs[0].text in ("aa", "ab")


def test_defaults_that_settings_override(folder: Path, device: str, small: dict[str, Any]) -> None:
    override = {"temperature": 0.25, "max_new_tokens": 7}
    with LLM(str(folder), device=device, override_generation_config=override, **small) as llm:
        defaults = llm.get_default_sampling_params()
        assert (defaults.temperature, defaults.max_tokens) == (0.25, 7)
    for wrong, words in (({"beams": 3}, "got beams"), ({"top_p": 7}, "top_p")):
        with pytest.raises(ConfigError, match=f"--override-generation-config.*{words}"):
            LLM(str(folder), device=device, override_generation_config=wrong, **small)


def test_variables_of_every_conversation(
    folder: Path, device: str, small: dict[str, Any], tmp_path: Path
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ mood }}:{{ messages[0].content }}")
    params = SamplingParams(max_tokens=1)
    with LLM(
        str(folder),
        device=device,
        chat_template=template,
        default_chat_template_kwargs={"mood": "calm"},
        **small,
    ) as llm:
        message = [{"role": "user", "content": "hi"}]
        assert llm.chat(message, params)[0].prompt == "calm:hi"
        own = {"mood": "wild"}
        assert llm.chat(message, params, chat_template_kwargs=own)[0].prompt == "wild:hi"


def test_what_scripts_leave_at_vllms_defaults(llm: LLM) -> None:
    """Options that ask for nothing were unknown: of a chat, of beams, of the constructor."""
    params, hello = SamplingParams(max_tokens=1), [{"role": "user", "content": "hi"}]
    assert llm.chat(hello, params, mm_processor_kwargs=None)[0].outputs
    with pytest.raises(RequestError, match="mm_processor_kwargs"):
        llm.chat(hello, params, mm_processor_kwargs={"num_crops": 4})
    beams = BeamSearchParams(2, 1, include_stop_str_in_output=False)
    assert beams == BeamSearchParams(2, 1)
    with pytest.raises(InvalidSamplingParamsError, match="include_stop_str_in_output"):
        BeamSearchParams(2, 1, include_stop_str_in_output=True)
    assert EngineArgs("m", skip_tokenizer_init=False, disable_cascade_attn=False).model == "m"


def test_an_llm_of_engine_args(folder: Path, device: str, small: dict[str, Any]) -> None:
    args = EngineArgs(str(folder), device=device, **small)
    with LLM.from_engine_args(args) as llm:
        assert llm.generate("a", SamplingParams(max_tokens=1))[0].outputs


def test_several_texts_at_once(llm: LLM) -> None:
    """Scripts that count and show tokens call the tokenizer with a list, and ``batch_decode``."""
    tokenizer, texts = llm.get_tokenizer(), ["ab", "c d"]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert ids == [tokenizer.encode(text, False) for text in texts]
    assert tokenizer.batch_decode(ids) == [tokenizer.decode(one) for one in ids]


def test_wrong_kinds_of_arguments_are_request_errors(llm: LLM) -> None:
    """A dict of settings and a name of an adapter were AttributeErrors deep inside."""
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: llm.generate("a", {"temperature": 0}), "Write SamplingParams"),  # type: ignore[arg-type]
        (lambda: llm.generate("a", [{"temperature": 0}]), "Write SamplingParams"),  # type: ignore[list-item]
        (lambda: llm.generate("a", lora_request="x"), "Write LoRARequest"),  # type: ignore[arg-type]
        (lambda: llm.chat("hello"), r"Write \[{\"role\": \"user\""),
        (lambda: llm.chat(["hello"]), r"Write \[{\"role\": \"user\""),
        (lambda: llm.chat({"role": "user", "content": "a"}), "got a message alone"),
        (lambda: llm.chat(SamplingParams()), "must be a list of messages"),
        (lambda: llm.generate([{"role": "user", "content": "a"}]), "of roles are for chat"),
    ]
    for call, hint in wrong:
        with pytest.raises(RequestError, match=hint):
            call()


def test_settings_of_other_libraries_name_ours() -> None:
    for name, hint in {
        "max_new_tokens": "Did you mean max_tokens",
        "guided_decoding": "Did you mean structured_outputs",
        "temprature": "Did you mean temperature",
        "best_of": "Take n",
    }.items():
        given: Any = {name: 1}
        with pytest.raises(TypeError, match=f"no field '{name}'.* {hint}"):
            SamplingParams(**given)


@pytest.mark.parametrize("name", ["num_predict", "repeat_penalty", "guided_json", "stop_strings"])
def test_settings_of_ollama_and_llama_cpp_had_no_remedy(name: str) -> None:
    with pytest.raises(TypeError, match="Did you mean|Take structured_outputs"):
        SamplingParams(**{name: 1})


def test_methods_and_keywords_had_no_remedy(llm: LLM) -> None:
    """They were AttributeErrors and TypeErrors of Python's, and ``dir(quire)`` named nothing."""
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: llm.genrate("a"), "Did you mean generate?"),
        (lambda: llm.close(), r"Take shutdown\(\)"),
        (lambda: llm.create_chat_completion([]), r"Take chat\(messages\)"),
        (lambda: llm.generate("a", temperature=0), r"SamplingParams\(temperature=...\)"),
        (lambda: llm.generate("a", prompt_token_ids=[1]), '"prompt_token_ids": ids'),
        (lambda: llm.generate("a", lora_reqest=None), "Did you mean lora_request?"),
        (lambda: llm.chat([], max_tokens=1), r"SamplingParams\(max_tokens=...\)"),
        (lambda: quire.SamplingParam, "Did you mean SamplingParams?"),
    ]
    for call, meant in calls:
        with pytest.raises((AttributeError, TypeError), match=meant):
            call()
    assert {"LLM", "SamplingParams"} <= set(dir(quire))


def test_settings_are_cloned_and_made_of_options() -> None:
    params = SamplingParams.from_optional(temperature=0.5, top_p=None, stop=["a"])
    assert (params.temperature, params.top_p) == (0.5, 1.0)
    copy = params.clone()
    copy.temperature = 1.0
    assert params.temperature == 0.5 and copy.stop == params.stop
    assert pickle.loads(pickle.dumps(params)) == params


def test_constraints_may_be_classes_of_pydantic_and_dicts(llm: LLM) -> None:
    """Both were refused without a word on what to give."""

    class Answer(BaseModel):
        ok: Literal["y", "n"]

    schema = Answer.model_json_schema()
    expected = StructuredOutputsParams(json=schema)
    for given in (Answer, {"json": schema}):
        params = SamplingParams(temperature=0, max_tokens=2, structured_outputs=given)  # type: ignore[arg-type]
        assert params.structured_outputs == expected
        assert llm.generate("a", params)[0].outputs[0].text.startswith("{")
    with pytest.raises(RequestError, match='{"json": schema}'):
        SamplingParams(structured_outputs=schema)


def test_the_engine_of_scripts(folder: Path, device: str, small: dict[str, Any]) -> None:
    args = EngineArgs(str(folder), device=device, **small)
    engine = LLMEngine.from_engine_args(args)
    try:
        engine.add_request("1", "abc", SamplingParams(max_tokens=3, ignore_eos=True))
        finished = []
        while engine.has_unfinished_requests():
            finished += [output for output in engine.step() if output.finished]
        assert [len(output.outputs[0].token_ids) for output in finished] == [3]
    finally:
        engine.shutdown()


def test_what_an_llm_of_scripts_has(llm: LLM) -> None:
    prompt, params = TextPrompt(prompt="abc" * 20), SamplingParams(max_tokens=1, temperature=0)
    llm.generate(prompt, params)
    assert llm.generate(prompt, params)[0].num_cached_tokens
    assert llm.reset_prefix_cache()
    assert not llm.generate(prompt, params)[0].num_cached_tokens
    found = {type(one): one for one in llm.get_metrics()}
    assert found.keys() == {Counter, Gauge, Histogram}
    (steps,) = [one for one in llm.get_metrics() if one.name == "quire:iteration_tokens_total"]
    assert isinstance(steps, Histogram) and steps.buckets["+Inf"] == steps.count > 0
    assert llm.llm_engine is llm.engine
    for name in ("sleep", "collective_rpc", "apply_model", "start_profile"):
        with pytest.raises(AttributeError, match=f"no '{name}': "):
            getattr(llm, name)


def test_a_conversation_may_have_a_template_of_its_own(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (output,) = llm.chat(
        messages, SamplingParams(max_tokens=1), chat_template="{{ messages[0].content }}!"
    )
    assert output.prompt == "Hi!"
    wrong: Any = {"add_generation_promt": True}
    with pytest.raises(TypeError, match="Did you mean add_generation_prompt"):
        llm.chat(messages, **wrong)


def test_the_tokenizer_of_scripts() -> None:
    tokenizer = load_tokenizer(ASSETS / "quire-tiny")
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    assert ids == tokenizer.encode(text, False) == tokenizer(text, False).input_ids
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.eos_token_id in ids
    assert tokenizer.eos_token_id in tokenizer.all_special_ids


def test_loading_logs_one_line(
    folder: Path,
    device: str,
    small: dict[str, Any],
    quire_log: list[logging.LogRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There were 15 lines for each model, a screen of a notebook."""
    monkeypatch.delenv("QUIRE_LOG_LEVEL")
    with LLM(str(folder), device=device, **small):
        assert len(quire_log) == 1 and "verbose=True" in quire_log[0].getMessage()
    with LLM("quire-tiny", quantization="int8", max_model_len=32, threads=1):
        assert "activations in int16 as it is small" in quire_log[-1].getMessage()
    quire_log.clear()
    with LLM(str(folder), device=device, verbose=True, **small):
        assert len(quire_log) > 10


def test_the_help_lists_the_settings() -> None:
    for name in SETTINGS.keys() - {"model"}:
        assert f"\n        {name}: " in str(LLM.__doc__)


def test_pictures_of_a_prompt_are_those_of_a_conversation(device: str) -> None:
    """``multi_modal_data`` was refused as a key that a prompt must not hold."""
    picture, written = Image.new("RGB", (64, 48), (200, 30, 30)), io.BytesIO()
    picture.save(written, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
    params = SamplingParams(temperature=0, max_tokens=4)
    with LLM("quire-tiny-vision", device=device, memory="64MiB", threads=1) as llm:
        asked = llm.chat([{"role": "user", "content": shown}], params)[0]
        for given in (picture, written.getvalue(), [picture]):
            data = {"prompt": asked.prompt, "multi_modal_data": {"image": given}}
            (output,) = llm.generate(data, params)
            assert output.prompt_token_ids == asked.prompt_token_ids
            assert output.outputs[0].token_ids == asked.outputs[0].token_ids
        for wrong in ({"image": "a.png"}, {"video": picture}):
            with pytest.raises(RequestError, match=r"\[multi_modal_data\]"):
                llm.generate({"prompt": "a", "multi_modal_data": wrong}, params)
