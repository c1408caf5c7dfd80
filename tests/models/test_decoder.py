"""The decoder against transformers in float32: logits, greedy tokens, and its own consistency."""

import numpy as np
import pytest

from tests.sizes import sized

MODELS = [
    "llama", "llama-biased-tied", "mistral", "mixtral", "qwen2", "qwen3", "gpt2",
    "granite", "gemma", "gemma2", "gemma3", "olmo2", "olmo3", "phi", "phi3",
    "phi3-long", "gpt-j", "gpt-neox", "gpt-neox-in-turn", "falcon-7b", "falcon-40b", "falcon-rw",
    "starcoder2", "smollm3", "glm", "glm4", "cohere", "cohere-plus", "cohere2", "ministral",
    "granite-moe", "granite-moe-shared", "qwen2-moe", "qwen3-moe", "glm4-moe", "dots1", "olmoe",
    "gpt-oss", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "llama4", "llama4-plain",
    "ministral3", "seed-oss", "ernie", "exaone4", "exaone4-wide", "stablelm", "stablelm-parallel",
]  # fmt: skip


def relative_error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers(
    name, oracle, backend, create_driver, random_prompts, oracle_logits
):
    model, folder = oracle(name)
    driver = create_driver(folder, backend)
    prompts = random_prompts([1, 17, 40])
    driver.start(len(prompts))
    got = driver.step([np.array(prompt) for prompt in prompts])
    want = np.concatenate([oracle_logits(model, prompt) for prompt in prompts])
    assert got.shape == want.shape
    assert relative_error(got, want) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_match_transformers(
    name, oracle, backend, create_driver, random_prompts, oracle_next
):
    model, folder = oracle(name)
    prompts = random_prompts([5, 23], seed=11)
    # Past windows of 9 and blocks of 16 in any case; torch takes a hundred times the kernels' time.
    count = sized(12, 64) if backend.name == "reference" else sized(32, 64)
    got = create_driver(folder, backend).greedy(prompts, count)
    for prompt, output in zip(prompts, got, strict=True):
        assert len(output) == count and output == oracle_next(model, prompt, output)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_and_company_change_nothing(name, oracle, backend, create_driver, random_prompts):
    _, folder = oracle(name)
    driver = create_driver(folder, backend)
    first, second = (np.array(prompt) for prompt in random_prompts([30, 21]))
    whole = driver.step([first])
    driver.start(2)
    driver.step([first[:7], second[:20]])
    mixed = driver.step([first[7:], second[20:]])[: len(first) - 7]
    driver.start(1)
    driver.step([first[:-1]], wanted="none")
    last = driver.step([first[-1:]], wanted="last")
    if backend.name == "reference":
        # torch's products round differently with the shapes; the kernels promise the bits.
        assert relative_error(mixed, whole[7:]) < 1e-5
        assert relative_error(last, whole[-1:]) < 1e-5
    else:
        assert np.array_equal(mixed, whole[7:])
        assert np.array_equal(last, whole[-1:])


def test_steps_larger_than_reserved_are_served(oracle, backend, create_driver, random_prompts):
    driver = create_driver(oracle("llama")[1], backend)
    (prompt,) = random_prompts([24])
    want = driver.step([np.array(prompt)])
    driver.decoder.reserve(4, 2)
    driver.start(1)
    assert np.array_equal(driver.step([np.array(prompt)]), want)
