"""The model's shape, and a chat's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from transformers import LlamaConfig, LlavaConfig, SiglipVisionConfig

from quire.store.hub import resolve_model
from tools.quire_tiny.tokenizer import ENDOFTEXT_ID, IM_END_ID, PAD_ID

#: Pictures are made this large; a cell of the encoder's grid is one of its patches.
EDGE, PATCH = 64, 8
CELLS = EDGE // PATCH
NUM_TOKENS = CELLS * CELLS
#: The first of quire-tiny's reserved tokens stands for a picture.
IMAGE_TOKEN, IMAGE_ID, RESERVED = "<image>", 10, "<|reserved_6|>"
MAX_LENGTH = 2048
VOCAB_SIZE = 2048


def model_config() -> LlavaConfig:
    """Return the shape: a SigLIP encoder and a Llama decoder, 1.5 million weights together."""
    vision = SiglipVisionConfig(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=8,
        image_size=EDGE,
        patch_size=PATCH,
        vision_use_head=False,
    )
    text = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=ENDOFTEXT_ID,
        eos_token_id=IM_END_ID,
        pad_token_id=PAD_ID,
        rms_norm_eps=1e-5,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE_ID,
        image_seq_length=NUM_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )


def load_tokenizer() -> Tokenizer:
    """Return quire-tiny's tokenizer with a token for pictures."""
    text = (resolve_model("quire-tiny") / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(text.replace(RESERVED, IMAGE_TOKEN))
    assert tokenizer.token_to_id(IMAGE_TOKEN) == IMAGE_ID
    return tokenizer


class ChatTokens:
    """Tokens of a chat as the chat template writes it; each part is looked up once."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer()
        self._known: dict[str, list[int]] = {}

    def opening(self, *, picture: bool) -> list[int]:
        """Return a user's first message as far as its text."""
        rows = [IMAGE_ID] * NUM_TOKENS if picture else []
        return [*self._ids("<|im_start|>user\n"), *rows]

    def turn(self, question: str, answer: str, *, first: bool) -> tuple[list[int], list[bool]]:
        """Return a turn's tokens, and which of them the model is to say.

        Args:
            question, answer: Their texts.
            first: Whether the message was begun by ``opening``.
        """
        before = "" if first else "\n<|im_start|>user\n"
        asked = self._ids(f"{before}{question}<|im_end|>\n<|im_start|>assistant\n")
        said = self._ids(f"{answer}<|im_end|>")
        return [*asked, *said], [False] * len(asked) + [True] * len(said)

    def _ids(self, text: str) -> Sequence[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text).ids
        return self._known[text]
