"""Where pictures stand in a prompt: one placeholder each, made as long as the picture's rows."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import RequestError
from quire.core.vision_config import VisionConfig


def make_room(
    token_ids: Sequence[int], num_pictures: int, vision: VisionConfig
) -> tuple[list[int], list[int]]:
    """Return a prompt with room for its pictures, and where each begins.

    Args:
        token_ids: With one placeholder for each picture.
        num_pictures: At least 1.
        vision: Says which token that is, and how many rows a picture has.

    Raises:
        RequestError: The placeholders are not as many as the pictures.
    """
    places = [index for index, token_id in enumerate(token_ids) if token_id == vision.token_id]
    if len(places) != num_pictures:
        raise RequestError(
            f"[messages] the prompt must show {num_pictures} pictures, as the conversation has; "
            f"the model's chat template shows {len(places)}. Use a template for pictures "
            "(--chat-template), and no placeholders in texts.",
            "messages",
        )
    more = vision.num_tokens - 1
    made = list(token_ids)
    for index in reversed(places):
        made[index:index] = [vision.token_id] * more
    return made, [index + number * more for number, index in enumerate(places)]
