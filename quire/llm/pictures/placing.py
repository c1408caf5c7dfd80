"""Where pictures stand in a prompt: a mark each, made as long as what the picture is written as."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import RequestError
from quire.core.vision_config import VisionConfig


def find_marks(token_ids: Sequence[int], num_pictures: int, vision: VisionConfig) -> list[int]:
    """Return where the marks of a prompt's pictures are.

    Args:
        token_ids: With one mark for each picture.
        num_pictures: At least 1.
        vision: Says which token that is.

    Raises:
        RequestError: The marks are not as many as the pictures.
    """
    mark = vision.writing.mark_id
    places = [index for index, token_id in enumerate(token_ids) if token_id == mark]
    if len(places) != num_pictures:
        raise RequestError(
            f"[messages] the prompt must show {num_pictures} pictures, as the conversation has; "
            f"the model's chat template shows {len(places)}. Use a template for pictures "
            "(--chat-template), and no placeholders in texts.",
            "messages",
        )
    return places


def make_room(
    token_ids: Sequence[int], places: Sequence[int], written: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return a prompt with its pictures written out, and where each begins.

    Args:
        token_ids: With one mark for each picture.
        places: Of the marks, in order.
        written: What takes the place of each.
    """
    made: list[int] = []
    starts, done = [], 0
    for place, tokens in zip(places, written, strict=True):
        made += token_ids[done:place]
        starts.append(len(made))
        made += tokens
        done = place + 1
    return [*made, *token_ids[done:]], starts


def least_written(vision: VisionConfig) -> list[int]:
    """Return what the smallest picture is written as."""
    writing = vision.writing
    return [*writing.before, *[writing.row_id] * vision.least_tokens, *writing.after]


def tiles_text(rows: int, columns: int, row_texts: str) -> str:
    """Return what a picture is written as that is cut into tiles, if into any.

    Args:
        rows, columns: Of tiles.
        row_texts: The tokens that stand for the rows of one of them.
    """
    text = ""
    for row in range(rows):
        for column in range(columns):
            text += f"<fake_token_around_image><row_{row + 1}_col_{column + 1}>{row_texts}"
        text += "\n"
    around = "<fake_token_around_image>"
    return f"{text}{chr(10) if rows else ''}{around}<global-img>{row_texts}{around}"
