"""``generate``: the tokens of transformers and of ``LLM``, whatever the prompts come in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import SamplingParams
from quire.core.errors import ConfigError, QuireError
from quire.pretrained import AutoModelForCausalLM, GenerationConfig
from quire.pretrained.pretrained_model import PretrainedModel
from quire.store.hub import resolve_model
from tests.sizes import sized

PROMPTS = ["Once upon a time", "The cat sat on the", "A"]


@pytest.fixture(scope="module")
def model(small: dict[str, Any]) -> Iterator[PretrainedModel]:
    settings = {"dtype": "float32", "device_map": "cpu", **small}
    with AutoModelForCausalLM.from_pretrained("quire-tiny", **settings) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def rows(model: PretrainedModel) -> list[list[int]]:
    return model.llm.get_tokenizer()(PROMPTS).input_ids


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The same model in transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    folder = resolve_model("quire-tiny")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 12},
        {"max_length": 16},
        {"max_new_tokens": 12, "repetition_penalty": 1.3},
        {"max_new_tokens": 12, "eos_token_id": 283},
        {"max_new_tokens": 12, "eos_token_id": [27, 1354], "min_new_tokens": 5},
        {"max_new_tokens": 12, "eos_token_id": 27, "min_length": 9},
        {"max_new_tokens": 12, "bad_words_ids": [[283], [1479, 1354]]},
        {"max_new_tokens": 12, "suppress_tokens": [27, 283]},
        {"max_new_tokens": 12, "do_sample": True, "temperature": 1.0, "top_k": 1},
    ],
    ids=lambda options: "-".join(list(options)[-2:]),
)
def test_tokens_are_those_of_transformers(
    model: PretrainedModel, theirs: Any, rows: list[list[int]], options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    for row in rows[: sized(2, 3)]:
        ids = torch.tensor([row])
        mask = torch.ones_like(ids)
        want = theirs.generate(ids, attention_mask=mask, **options)
        found = model.generate(ids, **options)
        assert found.dtype == want.dtype
        assert found.tolist() == want.tolist()


def test_prompts_that_are_filled_up_are_told_apart(model: PretrainedModel, theirs: Any) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = resolve_model("quire-tiny")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    batch = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    want = theirs.generate(**batch, max_new_tokens=8)
    assert model.generate(**batch, max_new_tokens=8).tolist() == want.tolist()
    # Without a mask, pad tokens are none of the prompt.
    assert model.generate(batch.input_ids, max_new_tokens=8).tolist() == want.tolist()
    width = batch.input_ids.shape[1]
    tokenizer.padding_side = "right"
    right = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    found = model.generate(**right, max_new_tokens=8)
    assert torch.equal(found[:, width:], want[:, width:])


SETTINGS = [
    ({"max_new_tokens": 6}, {"max_tokens": 6, "temperature": 0.0}),
    (
        {"max_new_tokens": 9, "do_sample": True, "temperature": 0.7, "seed": 1},
        {"max_tokens": 9, "temperature": 0.7, "top_k": 50, "seed": 1},
    ),
    (
        {"max_new_tokens": 9, "do_sample": True, "top_p": 0.8, "top_k": 0, "seed": 2},
        {"max_tokens": 9, "temperature": 1.0, "top_p": 0.8, "seed": 2},
    ),
    (
        {"max_new_tokens": 9, "do_sample": True, "min_p": 0.1, "top_k": 20, "seed": 3},
        {"max_tokens": 9, "temperature": 1.0, "min_p": 0.1, "top_k": 20, "seed": 3},
    ),
    (
        {"max_new_tokens": 9, "do_sample": True, "num_return_sequences": 3, "seed": 4},
        {"max_tokens": 9, "temperature": 1.0, "top_k": 50, "n": 3, "seed": 4},
    ),
    (
        {"max_new_tokens": 20, "stop_strings": [",", "and"]},
        {"max_tokens": 20, "temperature": 0.0, "stop": [",", "and"]},
    ),
    ({"min_new_tokens": 4}, {"max_tokens": 256, "min_tokens": 4, "temperature": 0.0}),
    (
        {"max_new_tokens": 30, "eos_token_id": []},
        {"max_tokens": 30, "temperature": 0.0, "ignore_eos": True},
    ),
]


@pytest.mark.parametrize(("options", "params"), SETTINGS)
def test_tokens_are_those_of_llm(
    model: PretrainedModel, rows: list[list[int]], options: dict[str, Any], params: dict[str, Any]
) -> None:
    rows = rows[: sized(2, 3)]
    outputs = model.llm.generate(rows, SamplingParams(**params))
    want = [
        [*row, *sequence.token_ids]
        for row, output in zip(rows, outputs, strict=True)
        for sequence in output.outputs
    ]
    longest, pad = max(map(len, want)), model.generation_config.pad_token_id
    filled = [[*row, *[pad] * (longest - len(row))] for row in want]
    assert model.generate(rows, **options) == filled
    config = GenerationConfig(**options)
    assert model.generate(rows, generation_config=config) == filled


def test_settings_of_sampling_without_it_are_told(
    model: PretrainedModel, rows: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    want = model.generate(rows, max_new_tokens=3)
    assert not caplog.messages
    assert model.generate(rows, max_new_tokens=3, temperature=0.5, top_p=0.9) == want
    assert caplog.messages == ["[generate] temperature, top_p changes nothing without do_sample"]


def test_kinds_of_prompts_come_back(model: PretrainedModel, rows: list[list[int]]) -> None:
    row = rows[0]
    want = model.generate([row], max_new_tokens=3)
    assert model.generate(row, max_new_tokens=3) == want
    assert model.generate(input_ids=[row], max_new_tokens=3) == want
    found = model.generate(np.array([row]), max_new_tokens=3)
    assert isinstance(found, np.ndarray) and found.tolist() == want
    assert model.generate(bos_token_id=row[0], max_new_tokens=3)[0][0] == row[0]


def test_the_model_s_own_settings_may_be_replaced(
    model: PretrainedModel, rows: list[list[int]]
) -> None:
    assert (model.generation_config.max_new_tokens, model.generation_config.pad_token_id) == (
        256,
        3,
    )
    before = model.generation_config
    model.generation_config = GenerationConfig(max_new_tokens=2)
    try:
        assert len(model.generate([rows[0]])[0]) == len(rows[0]) + 2
        model.generation_config = GenerationConfig()
        assert len(model.generate([rows[0]], eos_token_id=[])[0]) == len(rows[0]) + 20
    finally:
        model.generation_config = before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_ids": None, "bos_token_id": None}, "got none"),
        ({"inputs": [[]]}, "at least one token"),
        ({"inputs": "text"}, "input_ids must be rows of token ids"),
        ({"inputs": [["a"]]}, "input_ids must be rows of token ids"),
        ({"inputs": [[5]], "attention_mask": [[1, 1]]}, "must have the shape of input_ids"),
        ({"inputs": [[5]], "attention_mask": [[0]]}, "at least one token"),
        ({"inputs": [[5]], "num_return_sequences": 2}, "must be 1 without do_sample"),
        ({"inputs": [[5]], "do_sample": True, "temperature": 0.0}, "temperature must be over 0"),
        ({"inputs": [[5]], "do_sample": True, "top_p": 1.5}, "top_p"),
        ({"inputs": [[5, 5]], "max_new_tokens": None, "max_length": 2}, "Give max_new_tokens"),
        ({"inputs": [[5]], "num_beams": 4}, "num_beams is a setting of beam search"),
        ({"inputs": [[5]], "streamer": object()}, "streamer is not done: AsyncLLM streams"),
        ({"inputs": [[5]], "stopping_criteria": [len]}, "stopping_criteria is code"),
        ({"inputs": [[5]], "max_token": 3}, "got max_token"),
        ({"inputs": [[99999]]}, "99999"),
    ],
)
def test_what_is_wrong_is_refused(
    model: PretrainedModel, options: dict[str, Any], message: str
) -> None:
    before = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        with pytest.raises(QuireError, match=message):
            model.generate(**options)
    finally:
        model.generation_config = before


def test_the_model_is_where_it_is(model: PretrainedModel) -> None:
    assert model.eval() is model and model.to("cpu:0") is model and model.device == "cpu"
    assert model.config.vocab_size == 2048 and model.config.to_dict()["model_type"] == "llama"
    with pytest.raises(ConfigError, match="the model is on cpu and stays there; got cuda"):
        model.to("cuda")
    with pytest.raises(AttributeError, match="config.json has no entry 'rope'"):
        _ = model.config.rope


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_map": "cuda"}, "device_map must be auto or cpu; got 'cuda'"),
        ({"device_map": {"model": "cpu", "lm_head": "cpu"}}, "must put the whole model in one"),
        ({"dtype": "int8"}, "dtype must be one of float32"),
        ({"torch_dtype": "half"}, "torch_dtype must be one of float32"),
        ({"use_safetensors": False}, "pickles are not read"),
        ({"max_memory": {"cpu": "1GB"}}, "max_memory is said by memory"),
        ({"load_in_4bit": True}, "got load_in_4bit"),
    ],
)
def test_what_cannot_be_loaded_so_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AutoModelForCausalLM.from_pretrained("quire-tiny", **options)


def test_a_saved_model_is_the_same(model: PretrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "out")
    source = resolve_model("quire-tiny")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    with pytest.raises(ConfigError, match="must be new or empty"):
        model.save_pretrained(tmp_path / "out")
