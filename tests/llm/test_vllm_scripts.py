"""Scripts written for vLLM, as its guides print them: only the import and the model change."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from quire import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    KvCacheConfig,
    SamplingParams,
    StructuredOutputsParams,
)
from quire.core.errors import ConfigError

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
