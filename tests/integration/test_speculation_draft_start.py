"""What a start with a drafter says, counts and refuses."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.cli.main import run
from quire.core.errors import ConfigError
from quire.llm.planning.memory_needs import memory_needs
from quire.llm.text_engine import TextEngine
from quire.settings.config import EngineConfig
from quire.system.machine import read_machine

TINY = ASSETS / "quire-tiny"
DRAFT = ASSETS / "quire-tiny-draft"

Create = Callable[..., LLM]


def draft_model(model: Path | str = DRAFT, **further: Any) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(model), **further}


def weight_bytes(llm: LLM) -> float:
    return float(llm.engine.stats()['memory_bytes{pool="weights"}'])


def copy_of_draft(folder: Path) -> Path:
    shutil.copytree(DRAFT, folder)
    return folder


def refusal(create_llm: Create, method: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        create_llm(TINY, speculative_config=method, **settings)
    return str(caught.value)


def test_other_tokens_are_refused_where_they_must_be_the_same(
    create_llm: Create, tmp_path: Path
) -> None:
    path = copy_of_draft(tmp_path / "draft") / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(tokenizer))
    message = refusal(create_llm, draft_model(path.parent, tree_width=2))
    assert '"tree_width" must be left out: a draft with other tokens proposes a chain' in message
    message = refusal(create_llm, draft_model(path.parent, vocabulary="same"))
    assert "where 2 of 2,048 ids are other tokens, such as " in message
    assert "'b' in place of 'a'" in message and "same family" in message


def test_other_special_tokens_are_refused(create_llm: Create, tmp_path: Path) -> None:
    folder = copy_of_draft(tmp_path / "draft")
    for path in folder.glob("*.json"):
        path.write_text(path.read_text().replace("<|im_start|>", "<|other|>"))
    message = refusal(create_llm, draft_model(folder))
    assert "with the special tokens of the model; got " in message
    assert "which lacks <|im_start|>. Take a draft of the same family" in message
    llm = create_llm(TINY, speculative_config=draft_model(folder, vocabulary="text"))
    (output,) = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=9))
    assert output.outputs[0].token_ids


def test_equal_tokens_in_another_file_are_taken(
    create_llm: Create, gguf: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf)
    llm = create_llm(TINY, speculative_config=draft_model(path))
    assert llm.generate(["Once"], SamplingParams(max_tokens=9))[0].outputs[0].token_ids


def test_a_draft_larger_than_memory_is_refused(create_llm: Create) -> None:
    memory = 40 * 2**20
    create_llm(TINY, memory=memory, max_model_len=512)
    message = refusal(create_llm, draft_model(TINY), memory=memory, max_model_len=512)
    assert message.startswith(f"[config] --speculative-config: {TINY} must fit in memory next to")
    assert "it needs " in message and "3.0 KiB for each token of KV" in message


def test_more_tokens_than_the_context_are_refused(create_llm: Create) -> None:
    message = refusal(create_llm, draft_model(num_speculative_tokens=16), max_model_len=16)
    assert (
        '"num_speculative_tokens" must be less than the 16 tokens of a request; got 16' in message
    )


@pytest.mark.parametrize("model", ["no-such-folder/", "not-a-model.gguf"])
def test_a_drafter_that_cannot_be_loaded_is_refused(
    create_llm: Create, tmp_path: Path, model: str
) -> None:
    path = tmp_path / model
    if path.suffix:
        path.write_bytes(b"GGUF")
    message = refusal(create_llm, draft_model(path))
    assert message.startswith(
        "[config] --speculative-config must name a drafter that can be loaded"
    )


def test_a_model_that_is_rounded_already_is_refused(create_llm: Create, tmp_path: Path) -> None:
    path = tmp_path / "tiny-q8_0.gguf"
    assert run(["convert", str(TINY), str(path), "--type", "q8_0"]) == 0
    with pytest.raises(ConfigError, match="needs a checkpoint of floats"):
        create_llm(path, speculative_config={"method": "self", "quantization": "int4"})


def test_memory_is_counted(create_llm: Create, quire_log: list[logging.LogRecord]) -> None:
    alone = create_llm(TINY)
    both = create_llm(TINY, speculative_config=draft_model())
    size = (DRAFT / "model.safetensors").stat().st_size
    assert 0.99 * size < weight_bytes(both) - weight_bytes(alone) < 1.5 * size
    executors = [llm.engine.executor for llm in (alone, both)]
    spec = executors[0].kv_cache_spec
    draft_bytes = 2 * 2 * 2 * 32 * 2  # K and V, 2 layers of 2 heads of 32 in 16 bits
    for executor, token_bytes in zip(executors, (0, draft_bytes), strict=True):
        kv_bytes = executor.stats()['memory_bytes{pool="kv_cache"}']
        per_token = kv_bytes / executor.num_blocks / spec.block_size
        assert per_token == spec.token_bytes + token_bytes
    assert executors[1].num_blocks < executors[0].num_blocks
    lines = [record.getMessage() for record in quire_log]
    assert any(line.startswith(f"drafts by {DRAFT}: weights 1.") for line in lines)
    machine = read_machine()
    needs = [
        memory_needs(
            EngineConfig.from_keywords(model=str(TINY), speculative_config=config), machine
        )
        for config in (None, json.dumps(draft_model()))
    ]
    assert needs[1].least - needs[0].least > size


def test_progress_is_of_all_that_loads(small: dict[str, Any], device: str) -> None:
    seen: list[tuple[int, int]] = []
    config = EngineConfig.from_keywords(
        model=str(TINY), device=device, speculative_config=json.dumps(draft_model()), **small
    )
    TextEngine(config, on_progress=lambda done, total: seen.append((done, total))).shutdown()
    size = sum((folder / "model.safetensors").stat().st_size for folder in (TINY, DRAFT))
    parts = [done / total for done, total in seen]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    assert all(0.99 * size < total <= size for _, total in seen)


@pytest.mark.parametrize(
    "method",
    [draft_model(quantization="int8"), {"method": "self", "quantization": "int4"}],
    ids=str,
)
def test_packed_weights_of_the_drafter_are_kept(
    create_llm: Create, device: str, tmp_path: Path, method: dict[str, Any]
) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    outputs = []
    for _ in range(2):
        llm = create_llm(TINY, packed_weights_cache=str(tmp_path), speculative_config=method)
        (output,) = llm.generate(["Once upon a"], SamplingParams(max_tokens=20, temperature=0.0))
        outputs.append(output.outputs[0].token_ids)
        assert len(list(tmp_path.glob("*.packed"))) == 2
    assert outputs[0] == outputs[1]
