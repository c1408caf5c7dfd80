"""``AutoTokenizer``: a model's tokenizer, called as transformers' are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from quire.core.errors import ConfigError
from quire.models.config_fields import read_json
from quire.models.hub import resolve_model
from quire.pretrained.options import Option, done, idle, read_options, refused
from quire.pretrained.saved_folder import save_folder
from quire.text.chat_template import ChatTemplate, check_template, no_template_error
from quire.text.encoding import BatchEncoding
from quire.text.tokenizer import Tokenizer, load_tokenizer

_PAIRS = "is not done: models take one text"
CALL: dict[str, Option] = {
    "text": done(),
    "add_special_tokens": done(True),
    "padding": done(False),
    "truncation": done(False),
    "max_length": done(),
    "padding_side": done(),
    "return_tensors": done(),
    "return_attention_mask": done(),
    "text_pair": refused(_PAIRS),
    "text_target": refused(_PAIRS),
    "text_pair_target": refused(_PAIRS),
    "stride": refused("is not done: what is cut off goes", 0),
    "is_split_into_words": refused("is not done: give the text", False),
    "pad_to_multiple_of": refused("is not done"),
    "return_token_type_ids": refused("is not done: models are decoders", None, False),
    "return_overflowing_tokens": refused("is not done: what is cut off goes", False),
    "return_special_tokens_mask": refused("is not done", False),
    "return_offsets_mapping": refused("is not done", False),
    "return_length": refused("is not done: take len() of input_ids", False),
    "tokenizer_kwargs": refused("is not done"),
    "verbose": idle("warnings are lines of the log", True),
}
CHAT: dict[str, Option] = {
    "conversation": done(),
    "tools": done(),
    "documents": done(),
    "chat_template": done(),
    "add_generation_prompt": done(False),
    "continue_final_message": done(False),
    "tokenize": done(True),
    "padding": done(False),
    "truncation": done(False),
    "max_length": done(),
    "return_tensors": done(),
    "return_dict": done(True),
    "sanitize_control_tokens": done(False),
    "return_assistant_tokens_mask": refused("is not done", False),
    "tokenizer_kwargs": refused("is not done"),
}
LOAD: dict[str, Option] = {
    "revision": done(),
    "padding_side": done(),
    "chat_template": done(),
    "use_fast": idle("there is one kind", True),
    "trust_remote_code": idle("code of a checkpoint is never run", False),
    "legacy": refused("must be as the files say"),
    "add_bos_token": refused("must be as the files say"),
    "add_eos_token": refused("must be as the files say"),
}
DECODE: dict[str, Option] = {
    "clean_up_tokenization_spaces": refused(
        "must be False: text is as the model wrote it", None, False
    ),
}
#: Of a checkpoint, what is the tokenizer's.
FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


class PretrainedTokenizer:
    """A tokenizer; :meth:`AutoTokenizer.from_pretrained` makes it.

    Args:
        tokenizer: Does the work.
        folder: Where it is from.

    Attributes:
        padding_side: ``left`` or ``right``.
        pad_token, eos_token, bos_token: As text; None where there is none.
        model_max_length: Tokens; None where nothing says.
        chat_template: The template of an ``apply_chat_template`` without one; None for the model's.
    """

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        self.tokenizer, self._folder = tokenizer, folder
        path = folder / "tokenizer_config.json"
        stored = read_json(path) if path.is_file() else {}
        self.padding_side: str = stored.get("padding_side", "right")
        self.model_max_length: int | None = stored.get("model_max_length")
        special = tokenizer.special_tokens
        self.pad_token, self.eos_token = special.get("pad_token"), special.get("eos_token")
        self.bos_token = special.get("bos_token")
        self.chat_template: str | None = None

    @property
    def pad_token_id(self) -> int | None:
        """The id of :attr:`pad_token`."""
        return self.tokenizer.token_to_id(self.pad_token)

    @property
    def eos_token_id(self) -> int | None:
        """The id of :attr:`eos_token`."""
        return self.tokenizer.token_to_id(self.eos_token)

    @property
    def bos_token_id(self) -> int | None:
        """The id of :attr:`bos_token`."""
        return self.tokenizer.token_to_id(self.bos_token)

    def __len__(self) -> int:
        return self.tokenizer.vocab_size

    def __call__(self, text: str | Sequence[str], **options: Any) -> BatchEncoding:
        """Return the token ids of a text or of several.

        Args:
            text: One, or a list.
            **options: Of :data:`CALL`.

        Raises:
            ConfigError: An option is unknown, or asks for what is not done.
            RequestError: A text is no Unicode.
        """
        given = read_options("tokenizer", CALL, options)
        texts = [text] if isinstance(text, str) else list(text)
        rows = [self.tokenizer.encode(each, given["add_special_tokens"]) for each in texts]
        return self._encoding(rows, isinstance(text, str), given)

    def encode(self, text: str, **options: Any) -> Any:
        """Return the token ids of a text alone; as of a call otherwise."""
        return self(text, **options)["input_ids"]

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of token ids, or the texts of rows of them.

        Raises:
            ConfigError: An option is unknown.
        """
        read_options("decode", DECODE, options)
        ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        if isinstance(ids, int):
            ids = [ids]
        if ids and isinstance(ids[0], list | tuple):
            return [self.decode(row, skip_special_tokens) for row in ids]
        return self.tokenizer.decode(ids, skip_special_tokens)

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False) -> list[str]:
        """Return the texts of rows of token ids."""
        return [self.decode(row, skip_special_tokens) for row in sequences]

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """Return the vocabulary's strings of ids, or of one."""
        found = self.tokenizer.convert_ids_to_tokens([ids] if isinstance(ids, int) else list(ids))
        return found[0] if isinstance(ids, int) else found

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the ids of the vocabulary's strings, or of one."""
        if isinstance(tokens, str):
            return self.tokenizer.token_to_id(tokens)
        return [self.tokenizer.token_to_id(token) for token in tokens]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the prompt for a conversation, or for each of several.

        Args:
            conversation: Messages in OpenAI's form, or a list of such lists.
            **options: Of :data:`CHAT`; others are variables of the template.

        Returns:
            An encoding; with ``tokenize=False`` text, with ``return_dict=False`` ids.

        Raises:
            ConfigError: An option asks for what is not done.
            RequestError: The model has no template, or it refuses the conversation.
        """
        variables = {name: options[name] for name in options if name not in CHAT}
        known = {name: value for name, value in options.items() if name in CHAT}
        given = read_options("apply_chat_template", CHAT, known)
        single = bool(conversation) and isinstance(conversation[0], Mapping)
        if given["documents"] is not None:
            variables["documents"] = given["documents"]
        parts = [
            self._template(given["chat_template"]).render_parts(
                self.tokenizer.special_texts if given["sanitize_control_tokens"] else None,
                messages,
                add_generation_prompt=given["add_generation_prompt"],
                continue_final_message=given["continue_final_message"],
                tools=given["tools"],
                **variables,
            )
            for messages in ([conversation] if single else conversation)
        ]
        if not given["tokenize"]:
            texts = ["".join(each) for each in parts]
            return texts[0] if single else texts
        rows = [self.tokenizer.encode_parts(each, False) for each in parts]
        names = ("padding", "truncation", "max_length", "return_tensors")
        asked = read_options("tokenizer", CALL, {name: given[name] for name in names})
        made = self._encoding(rows, single, asked)
        return made if given["return_dict"] else made["input_ids"]

    def save_pretrained(self, save_directory: str | PathLike[str]) -> None:
        """Copy the tokenizer's files to a new or an empty folder.

        Raises:
            ConfigError: The folder holds something.
        """
        save_folder("save_pretrained", self._folder, Path(save_directory), FILES)

    def _template(self, given: str | None) -> ChatTemplate:
        source = given or self.chat_template
        if source is not None:
            check_template(source)
            return ChatTemplate({"default": source}, self.tokenizer.special_tokens)
        if self.tokenizer.chat_template is None:
            raise no_template_error()
        return self.tokenizer.chat_template

    def _encoding(
        self, rows: list[list[int]], single: bool, given: Mapping[str, Any]
    ) -> BatchEncoding:
        """Return rows of ids, cut and filled up as asked."""
        where, limit = "tokenizer", given["max_length"] or self.model_max_length
        if given["truncation"] not in (False, True, "longest_first", "do_not_truncate"):
            raise ConfigError(f"[{where}] truncation must be True; got {given['truncation']!r}.")
        if given["truncation"] in (True, "longest_first") and limit is not None:
            rows = [row[:limit] for row in rows]
        masks = [[1] * len(row) for row in rows]
        width = _width(given["padding"], rows, limit)
        if width is not None:
            side, pad = given.get("padding_side") or self.padding_side, self.pad_token_id
            if pad is None:
                raise ConfigError(
                    f"[{where}] padding needs a pad token; got none. Set pad_token = eos_token."
                )
            rows = [_filled(row, width, pad, side) for row in rows]
            masks = [_filled(row, width, 0, side) for row in masks]
        encoding = BatchEncoding(input_ids=rows)
        if given.get("return_attention_mask") is not False:
            encoding["attention_mask"] = masks
        kind = given["return_tensors"]
        if kind is None and single:
            return BatchEncoding({name: found[0] for name, found in encoding.items()})
        return BatchEncoding({name: _as(kind, found) for name, found in encoding.items()})


class AutoTokenizer:
    """Reads tokenizers; it has no objects of its own.

    Raises:
        ConfigError: Always.
    """

    def __init__(self) -> NoReturn:
        raise ConfigError("[AutoTokenizer] a tokenizer is made by from_pretrained; got a call.")

    @classmethod
    def from_pretrained(cls, name: str | PathLike[str], **options: Any) -> PretrainedTokenizer:
        """Read a model's tokenizer.

        Args:
            name: As of :meth:`AutoModelForCausalLM.from_pretrained`.
            **options: Of :data:`LOAD`.

        Raises:
            ConfigError: An option is unknown, or asks for what is not done.
            ModelLoadError: There is none, or it cannot be read.
        """
        given = read_options("from_pretrained", LOAD, options)
        folder = resolve_model(str(name), given["revision"], weights=False)
        made = PretrainedTokenizer(load_tokenizer(folder), folder)
        made.padding_side = given["padding_side"] or made.padding_side
        made.chat_template = given["chat_template"]
        return made


def _width(padding: Any, rows: Sequence[Sequence[int]], limit: int | None) -> int | None:
    """Return the tokens that rows are filled up to; None where they are not."""
    if padding in (False, "do_not_pad"):
        return None
    if padding == "max_length":
        if limit is None:
            raise ConfigError("[tokenizer] padding to max_length must come with max_length.")
        return limit
    if padding not in (True, "longest"):
        raise ConfigError(
            f"[tokenizer] padding must be True, longest or max_length; got {padding!r:.40}."
        )
    return max(map(len, rows), default=0)


def _filled(row: list[int], width: int, value: int, side: str) -> list[int]:
    if side not in ("left", "right"):
        raise ConfigError(f"[tokenizer] padding_side must be left or right; got {side!r:.40}.")
    more = [value] * (width - len(row))
    return more + row if side == "left" else row + more


def _as(kind: Any, rows: list[list[int]]) -> Any:
    """Return rows as lists, numpy's array or torch's tensor."""
    if kind is None:
        return rows
    if kind not in ("np", "pt"):
        raise ConfigError(f"[tokenizer] return_tensors must be np or pt; got {kind!r:.40}.")
    if len({len(row) for row in rows}) > 1:
        raise ConfigError(
            "[tokenizer] return_tensors must come with texts of one length; got others. Give "
            "padding=True."
        )
    if kind == "np":
        return np.array(rows, np.int64)
    try:
        # Who asks for tensors has torch; nothing else here needs it.
        return import_module("torch").tensor(rows)
    except ImportError:
        raise ConfigError(
            "[tokenizer] return_tensors='pt' needs torch; got an environment without. Give 'np', "
            "or install it."
        ) from None
