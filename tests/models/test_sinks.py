"""Attention sinks from a checkpoint, in a model that has nothing else of its own."""

from dataclasses import replace

import numpy as np
import pytest

from quire.models.config import registry
from quire.models.families import llama
from tests.lazy_packages import lazy_package
from tests.models.conftest import SHARED

torch = pytest.importorskip("torch")
gpt_oss = lazy_package("transformers.models.gpt_oss.modeling_gpt_oss")


def test_logits_are_those_of_transformers(
    create_oracle, oracle_logits, backend, create_driver, random_prompts, tmp_path, monkeypatch
):
    """A Llama whose attention is that of gpt-oss."""
    model = create_oracle("Llama", {**SHARED, "attn_implementation": "eager"})
    for number, layer in enumerate(model.model.layers):
        sinks = torch.tensor([-2.0, 0.0, 2.0, 6.0]).roll(number)
        layer.self_attn.sinks = torch.nn.Parameter(sinks)
    llama_attention = "transformers.models.llama.modeling_llama.eager_attention_forward"
    monkeypatch.setattr(llama_attention, gpt_oss.eager_attention_forward)
    model.save_pretrained(tmp_path)
    with_sinks = registry.Family(
        lambda fields: replace(llama.read_llama(fields), attention_sinks=True),
        replace(llama.NAMES, sinks="self_attn.sinks"),
    )
    monkeypatch.setitem(registry.FAMILIES, "LlamaForCausalLM", with_sinks)
    driver = create_driver(tmp_path, backend)
    for prompt in random_prompts([1, 17, 40]):
        driver.start(1)
        got, want = driver.step([np.array(prompt)]), oracle_logits(model, prompt)
        assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert driver.decoder.config.num_parameters == parameters
