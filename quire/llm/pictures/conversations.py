"""Pictures of conversations, read into prompts in the caller's thread; servers do it otherwise."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.core.errors import RequestError
from quire.core.model.vision_config import VisionConfig
from quire.llm.engine_client import Prompt
from quire.llm.pictures.reader import PictureReader
from quire.llm.pictures.sources import PictureSource, picture_sources
from quire.llm.requests.prompts import tokenize_prompt
from quire.settings.config import ModelOptions
from quire.system.regular_files import TABLE_BYTES, read_regular
from quire.text.tokenizers.tokenizer import Tokenizer


class ConversationPictures:
    """Reads what conversations show; its process is started for the first picture.

    Args:
        vision: The model's; None where it reads text alone.
        options: Settings that say where pictures may be, and how many a prompt may have.
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
            prompt: The result of :func:`quire.llm.requests.prompts.chat_prompt`, with one token for
                each picture.
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
        assert isinstance(prompt, Mapping)
        return self._with_pictures(prompt, sources)

    def read(self, prompt: Prompt) -> Prompt:
        """Return a prompt whose ``multi_modal_data``, if it has any, is read into it.

        Raises:
            RequestError: The model reads no pictures, it holds anything else, or as of
                :meth:`add_to`.
        """
        if not isinstance(prompt, Mapping) or "multi_modal_data" not in prompt:
            return prompt
        rest = {name: value for name, value in prompt.items() if name != "multi_modal_data"}
        pictures = read_picture_data(prompt["multi_modal_data"])
        if not pictures:
            return rest
        if self._vision is None:
            raise RequestError(
                "[multi_modal_data] the model must read pictures; this one reads text alone.",
                "multi_modal_data",
            )
        _, rest["prompt_token_ids"] = tokenize_prompt(rest, self._tokenizer)
        sources = [PictureSource("multi_modal_data", _data_url(one)) for one in pictures]
        return self._with_pictures(rest, sources)

    def _with_pictures(self, prompt: Mapping[str, Any], sources: Sequence[PictureSource]) -> Prompt:
        assert self._vision is not None
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
        RequestError: The file cannot be read.
    """
    try:
        data = read_regular(path, TABLE_BYTES)
    except OSError as error:
        raise RequestError(f"[image] {path} must be a readable file: {error.strerror}.") from None
    return {"type": "image_url", "image_url": {"url": _data_url(data)}}


def read_picture_data(data: Any) -> list[bytes]:
    """Return the files of vLLM's ``multi_modal_data``: ``{"image": picture}`` or a list of them.

    Args:
        data: Pictures, each an object of Pillow or the bytes of a file.

    Raises:
        RequestError: The data holds other things.
    """
    if not isinstance(data, Mapping) or not data.keys() <= {"image"}:
        raise RequestError(
            f'[multi_modal_data] must be {{"image": ...}}; got {data!r:.80}.', "multi_modal_data"
        )
    given = data.get("image", [])
    return [_file(one) for one in (given if isinstance(given, list | tuple) else [given])]


def _file(picture: Any) -> bytes:
    if isinstance(picture, bytes):
        return picture
    if not hasattr(picture, "save"):
        raise RequestError(
            "[multi_modal_data] pictures must be objects of Pillow or bytes of a file; got "
            f"{type(picture).__name__}.",
            "multi_modal_data",
        )
    written = io.BytesIO()
    picture.save(written, "PNG")  # loses nothing
    return written.getvalue()


def _data_url(data: bytes) -> str:
    # What the file holds says what it is, not its name.
    return f"data:image/*;base64,{base64.b64encode(data).decode('ascii')}"
