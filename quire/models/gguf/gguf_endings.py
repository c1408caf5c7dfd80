"""Tokens that end a text by how they are spelled, in GGUF files that name others or none.

Many files of fine-tuned models name ``<|endoftext|>`` alone, while their template ends a turn with
``<|im_end|>``.

Source: llama.cpp's src/llama-vocab.cpp (``special_eog_ids``), as of 2026, without its tokens of
infilling.
"""

from __future__ import annotations

from quire.checkpoints.gguf.gguf_file import GgufHeader
from quire.checkpoints.gguf.gguf_keys import PREFIX

SPELLINGS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "▁<EOT>", "[EOT]",
    "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
})  # fmt: skip
#: What is no end where the model has all of the others.
EXCEPTIONS = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("</s>", {"<|tool_response>"}),
)


def ending_ids(file: GgufHeader) -> tuple[int, ...]:
    """Return the ids that end a text: those that the file names first, each once."""
    keys = (f"{PREFIX}{kind}_token_id" for kind in ("eos", "eot", "eom"))
    named = [token_id for key in keys if (token_id := file.token_id(key)) is not None]
    tokens = file.texts(f"{PREFIX}tokens")
    spelled = {text: number for number, text in enumerate(tokens) if text in SPELLINGS}
    wrong = {text for text, others in EXCEPTIONS if others <= spelled.keys()}
    named = [token_id for token_id in named if token_id not in {spelled.get(t) for t in wrong}]
    return tuple(dict.fromkeys((*named, *(n for text, n in spelled.items() if text not in wrong))))
