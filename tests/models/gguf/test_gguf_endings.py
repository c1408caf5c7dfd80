"""Files of fine-tuned models end a turn with a token that they do not name."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.models.gguf.gguf_endings import ending_ids
from quire.models.gguf.gguf_metadata import PlannedFile


def ends(tokens: list[str], **named: int) -> tuple[int, ...]:
    metadata = {f"tokenizer.ggml.{kind}_token_id": index for kind, index in named.items()}
    file = PlannedFile(Path("a.gguf"), {**metadata, "tokenizer.ggml.tokens": tokens}, [])
    return ending_ids(file)


@pytest.mark.parametrize(
    ("tokens", "named", "want"),
    [
        # The model wrote on and played the user's next turn.
        (["a", "<|endoftext|>", "<|im_start|>", "<|im_end|>"], {"eos": 1}, (1, 3)),
        (["<s>", "</s>", "<end_of_turn>"], {"eos": 1, "eot": 2}, (1, 2)),
        (["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], {"eos": 2, "eom": 1}, (2, 1, 0)),
        (["a", "<|im_end|>"], {}, (1,)),
        (["a", "im_end"], {}, ()),
        (["x", "b"], {"eos": 0}, (0,)),
        # Harmony's messages end with <|end|>, and an answer may have several.
        (["<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"], {"eos": 1}, (1, 2, 3)),
        (["<|end|>", "<|endoftext|>"], {"eos": 1}, (1, 0)),
        (["</s>", "<turn|>", "<|tool_response>", "<eos>"], {"eos": 3}, (3, 1, 2)),
        ([], {"eos": 5}, (5,)),
    ],
)
def test_tokens_that_end_a_text(
    tokens: list[str], named: dict[str, int], want: tuple[int, ...]
) -> None:
    assert ends(tokens, **named) == want
