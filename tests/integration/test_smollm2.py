"""A real model, where it was pulled: sensible answers, its template, its end, the same tokens."""

import pytest

from quire import LLM, SamplingParams
from quire.store.hub import find_model

QUESTIONS = ["What is 2+2?", "Explain in one sentence why the sky is blue.", "Name three fruits."]
#: What people ask first, and what its 135 million parameters answer when nothing is rounded but
#: the weights: wrong things, too.
FIRST = [
    *(f"What is the capital of {name}?" for name in ("France", "Italy", "Germany", "Japan")),
    *("What is the capital of Spain?", "What is 2+2?", "What is 7+5?", "What is 10 minus 3?"),
    *("How many days are in a week?", "How many months are in a year?"),
    *("What color is the sky on a clear day?", "What is the opposite of hot?"),
    "What color do you get when you mix red and white?",
    "What is the largest planet in our solar system?",
    *("Who wrote Romeo and Juliet?", "What is H2O commonly called?"),
]


def load(device, **settings):
    if find_model("smollm2") is None:
        pytest.skip("smollm2 is not on this machine: quire pull smollm2")
    limits = {"memory": 512 * 2**20, "max_model_len": 256}
    return LLM("smollm2", device=device, threads=1, **limits, **settings)


@pytest.fixture(scope="module")
def model(device):
    with load(device) as llm:
        yield llm


def ask(model, questions):
    messages = [[{"role": "user", "content": question}] for question in questions]
    outputs = model.chat(messages, SamplingParams(temperature=0, max_tokens=60), use_tqdm=False)
    return [output.outputs[0] for output in outputs], outputs[0].prompt_token_ids


def test_answers_make_sense_and_end(model):
    (number, sky, fruits), prompt = ask(model, QUESTIONS)
    assert "4" in number.text and "light" in sky.text and "Bananas" in fruits.text
    assert number.finish_reason == sky.finish_reason == "stop"
    assert "<|im_end|>" not in number.text + sky.text
    text = model.get_tokenizer().decode(prompt, skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n")


def test_sampling_defaults_are_those_of_its_card(model):
    """At temperature 1 a model this small talks nonsense, and its file has no defaults."""
    params = model.get_default_sampling_params()
    assert (params.temperature, params.top_p) == (0.2, 0.9)


def test_company_changes_no_token(model):
    together, _ = ask(model, QUESTIONS)
    alone = [ask(model, [question])[0][0] for question in QUESTIONS]
    assert [o.token_ids for o in alone] == [o.token_ids for o in together]


def test_first_answers_are_those_of_exact_activations(model, device):
    """Rounded to 8 bits, it answered "What is the capital of France?" in French without end."""
    with load(device, activations="fp32") as exact:
        want = [output.text for output in ask(exact, FIRST)[0]]
    got = [output.text for output in ask(model, FIRST)[0]]
    assert "Paris" in got[0]
    assert sum(ours == theirs for ours, theirs in zip(got, want, strict=True)) >= 14
