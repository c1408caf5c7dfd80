"""The places of pictures in a prompt: one mark each, which becomes the picture's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import RequestError
from quire.core.model.vision_config import VisionConfig, Writing
from quire.text.tokenizers.tokenizer import Tokenizer


def cut_at_marks(
    token_ids: Sequence[int], num_pictures: int, vision: VisionConfig
) -> list[list[int]]:
    """Return the tokens before, between and after the marks of a prompt's pictures.

    Args:
        token_ids: The prompt's token ids, with one mark for each picture.
        num_pictures: Number of pictures, at least 1.
        vision: The settings that say which token is the mark.

    Raises:
        RequestError: The marks are not as many as the pictures.
    """
    parts: list[list[int]] = [[]]
    for token_id in token_ids:
        if token_id == vision.writing.mark_id:
            parts.append([])
        else:
            parts[-1].append(token_id)
    if len(parts) - 1 != num_pictures:
        raise RequestError(
            f"[messages] the prompt must show each picture of the conversation, which has "
            f"{num_pictures}; the model's chat template shows {len(parts) - 1}. Use a "
            "template for pictures (--chat-template), and no placeholders in texts.",
            "messages",
        )
    return parts


def join(parts: Sequence[list[int]], written: Sequence[list[int]]) -> tuple[list[int], list[int]]:
    """Return a prompt with the pictures' tokens, and the index at which each begins.

    Args:
        parts: The result of :func:`cut_at_marks`.
        written: Tokens that take the place of each mark.
    """
    made = list(parts[0])
    starts = []
    for tokens, after in zip(written, parts[1:], strict=True):
        starts.append(len(made))
        made += tokens
        made += after
    return made, starts


def least_written(vision: VisionConfig) -> list[int]:
    """Return what the smallest picture is written as."""
    writing = vision.writing
    return [*writing.before, *[writing.row_id] * vision.least_tokens, *writing.after]


def introduced(token_ids: Sequence[int], tokenizer: Tokenizer, vision: VisionConfig) -> list[int]:
    """Return the tokens before a picture, with the text that announces its crops.

    Args:
        token_ids: The tokens before the mark, from the last mark on.
        tokenizer: The model's tokenizer. The text after the last special token is tokenized again,
            as the added text may continue in the token that ended it.
        vision: The settings that say what is written before pictures.
    """
    special = tokenizer.pieces.special_ids
    start = max((i + 1 for i, token_id in enumerate(token_ids) if token_id in special), default=0)
    pieces = b"".join(tokenizer.pieces[token_id] for token_id in token_ids[start:])
    text = pieces.decode(errors="replace").removesuffix(vision.writing.text_before)
    text += f"Here is the original image {vision.writing.text_before}"
    parts = tokenizer.special_texts.cut(text)
    return [*token_ids[:start], *(i for part in parts for i in tokenizer.encode_after(part))]


def crops_text(num_crops: int, picture_text: str, writing: Writing) -> str:
    """Return the text for a picture with crops, from its first token to its last.

    Args:
        num_crops: Number of crops, at least 1.
        picture_text: The tokens of a picture.
        writing: The settings that say what is written around it.
    """
    before, after = writing.text_before, writing.text_after
    told = f"{after} and here are some crops to help you see better {before}"
    return f"{picture_text}{told}" + f"{after} {before}".join([picture_text] * num_crops)


def tiles_text(rows: int, columns: int, row_texts: str) -> str:
    """Return the text for a picture that may be cut into tiles.

    Args:
        rows, columns: Numbers of rows and columns of tiles.
        row_texts: The tokens that stand for the rows of one tile.
    """
    text = ""
    for row in range(rows):
        for column in range(columns):
            text += f"<fake_token_around_image><row_{row + 1}_col_{column + 1}>{row_texts}"
        text += "\n"
    around = "<fake_token_around_image>"
    return f"{text}{chr(10) if rows else ''}{around}<global-img>{row_texts}{around}"
