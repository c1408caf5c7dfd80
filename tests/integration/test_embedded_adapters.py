"""The adapters in the package: each answers questions it was not trained on, and only its own."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("torch")  # of the tools' tokenizer and trainer

from quire import LLM, LoRARequest, SamplingParams
from quire.models.adapters.peft_folder import EMBEDDED_ADAPTERS
from tools.quire_tiny.adapter_topics import TOPICS, draw
from tools.quire_tiny.corpus import render

NUM_QUESTIONS = 24
#: Least share of answers that are right: of the whole text, or of what makes it a pirate's.
LEAST = {"sql": 0.7, "code": 0.8, "pirate": 0.9}


def is_right(topic: str, answer: str, wanted: str) -> bool:
    if topic == "pirate":  # the facts are the model's
        return answer.startswith("Arr, ") and answer.endswith(" Aye, matey!")
    return answer == wanted


@pytest.fixture(scope="module")
def llm(device: str) -> LLM:
    return LLM("quire-tiny", device=device, enable_lora=True, max_model_len=512, threads=1)


def test_all_topics_are_in_the_package_and_small() -> None:
    assert {f"quire-tiny-{topic}" for topic in TOPICS} == EMBEDDED_ADAPTERS.keys()
    files = [file for folder in EMBEDDED_ADAPTERS.values() for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 1_000_000


@pytest.mark.parametrize("topic", TOPICS)
def test_an_adapter_has_learnt_its_topic(llm: LLM, topic: str) -> None:
    rng = Random(f"test/{topic}")
    questions = [draw(topic, rng, True) for _ in range(NUM_QUESTIONS)]
    prompts = [
        render([{"role": "user", "content": question.prompt}], add_generation_prompt=True)
        for question in questions
    ]
    params = SamplingParams(temperature=0, max_tokens=96)

    def share(lora: LoRARequest | None) -> float:
        outputs = llm.generate(prompts, params, False, lora)
        texts = [output.outputs[0].text for output in outputs]
        right = [is_right(topic, t, q.answer) for t, q in zip(texts, questions, strict=True)]
        return sum(right) / len(right)

    name = f"quire-tiny-{topic}"
    with_adapter, without = share(LoRARequest(topic, 1, name)), share(None)
    print(topic, with_adapter, without)
    assert with_adapter >= LEAST[topic] and without <= 0.2
