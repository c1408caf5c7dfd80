"""Pictures of conversations, read into prompts in the caller's thread; a server has other ways."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.core.config import ModelOptions
from quire.core.errors import RequestError
from quire.core.vision_config import VisionConfig
from quire.llm.engine_client import Prompt
from quire.llm.pictures.reader import PictureReader
from quire.llm.pictures.sources import picture_sources
from quire.text.tokenizer import Tokenizer


class ConversationPictures:
    """Reads what conversations show; its process is started for the first picture.

    Args:
        vision: The model's; None where it reads text alone.
        options: Say where pictures may be, and how many a prompt may have.
        tokenizer: The model's.
    """

    def __init__(
        self, vision: VisionConfig | None, options: ModelOptions, tokenizer: Tokenizer
    ) -> None:
        self._vision, self._options, self._tokenizer = vision, options, tokenizer
        self._reader: PictureReader | None = None
        self._lock = threading.Lock()

    def add_to(self, prompt: Prompt, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """Return a conversation's prompt with the pictures that are in it.

        Args:
            prompt: Of :func:`quire.llm.prompts.chat_prompt`, with one token for each picture.
            messages: The conversation.

        Raises:
            RequestError: A picture cannot be read, or there are too many.
        """
        if self._vision is None:
            return prompt  # a template of text has refused them
        sources = picture_sources(
            (f"messages[{index}].content", message.get("content"))
            for index, message in enumerate(messages)
        )
        if not sources:
            return prompt
        assert isinstance(prompt, dict)
        with self._lock:
            if self._reader is None:
                self._reader = PictureReader(self._vision, self._options, self._tokenizer)
        self._reader.check_count(sources)
        read = [self._reader.read_now(source, len(sources)) for source in sources]
        token_ids, pictures = self._reader.place(prompt["prompt_token_ids"], read)
        return {**prompt, "prompt_token_ids": token_ids, "pictures": pictures}

    def close(self) -> None:
        """End the process, if there is one."""
        if self._reader is not None:
            self._reader.close()


def picture_part(path: Path) -> dict[str, Any]:
    """Return a file as a part of a message's content.

    Raises:
        RequestError: It cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"[image] {path} must be a readable file: {error.strerror}.") from None
    # What the file holds says what it is, not its name.
    url = f"data:image/*;base64,{base64.b64encode(data).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": url}}
