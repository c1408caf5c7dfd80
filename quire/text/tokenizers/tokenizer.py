"""A model's tokenizer, read from its folder; templates and streaming have files of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from quire.core.errors import ModelLoadError, QuireError, RequestError
from quire.system.regular_files import TABLE_BYTES, read_regular, read_regular_text
from quire.text.offloading import INLINE_CHARACTERS, PROCESS_CHARACTERS
from quire.text.templates.chat_template import ChatTemplate, find_template, no_template_error
from quire.text.tokenizers import tokenizer_process
from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.encoding import BatchEncoding
from quire.text.tokenizers.fim_tokens import GGUF_NAMES
from quire.text.tokenizers.gguf_tokenizer import read_gguf_tokenizer
from quire.text.tokenizers.library_errors import library_errors
from quire.text.tokenizers.plain_text import SpecialTexts
from quire.text.tokenizers.sentencepiece_model import build_tokenizer, parse_model
from quire.text.tokenizers.token_bytes import Pieces
from quire.text.tokenizers.tokenizer_rules import check_rules

_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

#: A text longer than this per token of a limit is first judged by its beginning.
CHARACTERS_PER_TOKEN = 8
#: More than the tokens by which a beginning may differ from the whole, cut there and templated.
CUT_TOKENS = 64


class Tokenizer:
    """Text to token ids and back.

    Attributes:
        backend: The library's object.
        pieces: Bytes of each token.
        bos_token_id, eos_token_id: Ids that begin and end a text; None when the model has no such
            token.
        special_tokens: Named special tokens (``bos_token`` ...) by name, as text; those of a GGUF
            file that fill in the middle (``fim_pre_token`` ...) need not be special.
        chat_template: None when the model has none.
        vocab_size: All ids are below it; the model's own vocabulary may be larger.
        special_texts: The spellings of the special tokens.
        keeps_text: Whether all that messages and tools spell is text, never a special token.
        folder: Folder from which a process reads the tokenizer again for a very long text; None
            where no process may.
        is_quick: Whether all patterns are known to take time in proportion to a text.
    """

    def __init__(
        self, backend: Backend, special_tokens: dict[str, str], chat_template: ChatTemplate | None
    ) -> None:
        self.backend = backend
        self.pieces = Pieces(backend)
        self.special_tokens = special_tokens
        self.chat_template = chat_template
        self.bos_token_id = self.token_to_id(special_tokens.get("bos_token"))
        self.eos_token_id = self.token_to_id(special_tokens.get("eos_token"))
        added = backend.get_added_tokens_decoder()
        self.vocab_size: int = max(backend.get_vocab_size(), *(i + 1 for i in added), 0)
        self.special_texts = SpecialTexts(t.content for t in added.values() if t.special)
        self.keeps_text = True
        self.folder: Path | None = None
        self.is_quick = True

    def work_size(self, num_characters: int) -> int:
        """Return what texts of that many characters count as for :mod:`quire.text.offloading`."""
        return num_characters if self.is_quick else max(num_characters, INLINE_CHARACTERS)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``; special tokens written in it are recognised.

        Args:
            add_special_tokens: Whether to put the model's own start and end tokens around the text.

        Raises:
            RequestError: ``text`` has lone surrogates, so it is no text, or the tokenizer gives up.
            CapacityError: The text is long, and no process is free for it.
        """
        if self.folder is not None and len(text) >= PROCESS_CHARACTERS:
            return tokenizer_process.encode(self.folder, [text], add_special_tokens)
        with _text_errors(text):
            if self.work_size(len(text)) < INLINE_CHARACTERS:
                found = self.backend.encode(text, add_special_tokens=add_special_tokens)
            else:  # a batch is computed without the interpreter's lock: other threads go on
                backend = self.backend.encode_batch_fast
                (found,) = backend([text], add_special_tokens=add_special_tokens)
        ids: list[int] = found.ids
        return ids

    def with_chat_template(self, source: str) -> Tokenizer:
        """Return the same with another chat template, as Jinja source."""
        other = copy(self)
        other.chat_template = ChatTemplate({"default": source}, self.special_tokens)
        if self.chat_template is not None:
            other.chat_template.picture_text = self.chat_template.picture_text
            other.chat_template.picture_margins = self.chat_template.picture_margins
        return other

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int | None]:
        """Return the token ids of two texts that a model reads together.

        Returns:
            The ids, with the model's own tokens around the texts; and where the second one begins,
            if the tokenizer tells texts apart by types.

        Raises:
            RequestError: The same as in :meth:`encode`.
        """
        with _text_errors(first + second):
            # A batch, as of one text.
            (found,) = self.backend.encode_batch_fast([(first, second)])
        types = found.type_ids
        return found.ids, types.index(1) if 1 in types else None

    def encode_parts(self, parts: Sequence[str], add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text that is cut; what is spelled across a cut is text.

        Args:
            parts: Parts of the text, at least one.
            add_special_tokens: The same as in :meth:`encode`.

        Raises:
            RequestError: The same as in :meth:`encode`.
        """
        if self.folder is not None and sum(map(len, parts)) >= PROCESS_CHARACTERS:
            return tokenizer_process.encode(self.folder, parts, add_special_tokens)
        if len(parts) == 1:
            return self.encode(parts[0], add_special_tokens)
        ids = self.encode(parts[0], False)
        for part in parts[1:]:
            ids += self.encode_after(part)
        if add_special_tokens:
            start, end = self._ends()
            ids = [*start, *ids, *end]
        return ids

    def encode_beginning(self, text: str, num_tokens: int) -> list[int]:
        """Return the token ids of a text, without its end where there are too many.

        Args:
            text: The text, which is read as far as needed.
            num_tokens: Number of token ids, at most, with the model's own around the text.

        Raises:
            RequestError: The same as in :meth:`encode`.
        """
        length = CHARACTERS_PER_TOKEN * (num_tokens + CUT_TOKENS)
        while length < len(text):
            if len(self.encode(text[:length], False)) >= num_tokens + CUT_TOKENS:
                break
            length *= 2
        ids = self.encode(text[:length])
        if len(ids) <= num_tokens:
            return ids
        start, end = self._ends()
        kept = self.encode(text[:length], False)[: max(0, num_tokens - len(start) - len(end))]
        return [*start, *kept, *end]

    def _ends(self) -> tuple[list[int], list[int]]:
        """Return the model's own tokens before and after a text."""
        with_ends, alone = self.encode("a"), self.encode("a", False)
        start = next(i for i in range(len(with_ends)) if with_ends[i:][: len(alone)] == alone)
        return with_ends[:start], with_ends[start + len(alone) :]

    def encode_after(self, text: str) -> list[int]:
        """Tokenize a text that follows another, without the space some put before a text."""
        ids = self.encode(text, False)
        if text[:1].isspace() or not ids or not self.pieces[ids[0]].startswith(b" "):
            return ids
        before, found = self.encode("\n" + text, False), b""
        for number, token_id in enumerate(before, 1):
            found += self.pieces[token_id]
            if found.lstrip(b" ") == b"\n":
                return before[number:]
        return ids

    def limit_cache(self, num_words: int) -> None:
        """Keep the tokens of at most ``num_words`` words, in each thread that encodes.

        By default the library keeps 10,000, about 6 MiB in each thread: with text that is always
        new they fill for hours.
        """
        if hasattr(self.backend.model, "_resize_cache"):  # WordPiece keeps none
            self.backend.model._resize_cache(num_words)

    def __call__(self, text: str | list[str], add_special_tokens: bool = True) -> BatchEncoding:
        """Return the token ids of a text, or of each of several texts, as ``input_ids``.

        Raises:
            RequestError: The same as in :meth:`encode`.
        """
        if isinstance(text, list):
            return BatchEncoding(input_ids=[self.encode(one, add_special_tokens) for one in text])
        return BatchEncoding(input_ids=self.encode(text, add_special_tokens))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **options: Any,
    ) -> str | list[int]:
        """Return the prompt for a conversation as token ids or text, by transformers' name.

        Args:
            conversation: Messages in OpenAI's form.
            tokenize: Whether to return token ids.
            add_generation_prompt: Whether to end with the header of an assistant's message.
            **options: The same as in :meth:`render_chat`.

        Raises:
            RequestError: The same as in :meth:`render_chat`.
        """
        parts = self.render_chat(
            conversation, add_generation_prompt=add_generation_prompt, **options
        )
        return self.encode_parts(parts, False) if tokenize else "".join(parts)

    @property
    def bos_token(self) -> str | None:
        """The start of a text, as text; None where there is none."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The end of a text, as text; None where there is none."""
        return self.special_tokens.get("eos_token")

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of special tokens, ascending."""
        added = self.backend.get_added_tokens_decoder()
        return sorted(token_id for token_id, token in added.items() if token.special)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[str]:
        """Return the prompt for a conversation, for :meth:`encode_parts`.

        Args:
            messages: Messages in OpenAI's form.
            **options: The options of :meth:`ChatTemplate.render_parts`.

        Raises:
            RequestError: The model has no template, or it refuses the conversation.
        """
        if self.chat_template is None:
            raise no_template_error()
        special_texts = self.special_texts if self.keeps_text else None
        return self.chat_template.render_parts(special_texts, messages, **options)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``; bytes that are no UTF-8 become U+FFFD."""
        detokenizer = self.create_detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.add(token_ids) + detokenizer.flush()

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each of several lists of token ids."""
        return [self.decode(token_ids, skip_special_tokens) for token_ids in sequences]

    def create_detokenizer(
        self, *, skip_special_tokens: bool = True, continues: bool = False
    ) -> Detokenizer:
        """Return a detokenizer for one sequence; see there."""
        return Detokenizer(
            self.pieces, skip_special_tokens=skip_special_tokens, continues=continues
        )

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """Return the vocabulary's own strings, None for ids it does not have."""
        return [
            self.backend.id_to_token(token_id) if token_id in self.pieces else None
            for token_id in token_ids
        ]

    def token_to_id(self, token: str | None) -> int | None:
        """Return the id of a vocabulary string, or None when there is none."""
        found: int | None = None if token is None else self.backend.token_to_id(token)
        return found

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes a token stands for; empty for an unknown id."""
        return self.pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """Return one token as text, for display next to its log-probability."""
        return self.pieces[token_id].decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Return whether the token is no text, such as end-of-sequence."""
        return token_id in self.pieces.special_ids


@contextmanager
def _text_errors(text: str) -> Iterator[None]:
    try:
        yield
    except (UnicodeEncodeError, TypeError) as error:
        raise RequestError(
            f"[tokenize] text must be valid Unicode; got {text[:40]!a} ({error}).", "prompt"
        ) from error
    except (QuireError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise RequestError(
            f"[tokenize] text must be what the model's tokenizer can read; got {text[:40]!a} and "
            f"more, {len(text)} characters ({error!s:.200}). Send it in pieces.",
            "prompt",
        ) from error


def load_tokenizer(
    folder: str | Path,
    chat_template: str | None = None,
    preset_template: str | None = None,
    *,
    within_limits: bool = False,
) -> Tokenizer:
    """Read a model's tokenizer: ``tokenizer.json``, else ``tokenizer.model``, or a GGUF file's.

    Args:
        folder: A folder in the layout of the Hugging Face hub, or a GGUF file.
        chat_template: Jinja file used instead of the model's own template.
        preset_template: Jinja source used so where there is no such file.
        within_limits: Whether this process runs under limits; if so, the tokenizer starts no
            process for long texts.

    Raises:
        ModelLoadError: The model has no tokenizer, or a file cannot be read.
    """
    folder = source = Path(folder)
    try:
        config = _read_config(folder)
        is_quick = True
        if folder.is_file():
            backend, config = read_gguf_tokenizer(folder)
        elif (folder / "tokenizer.json").is_file():
            source = folder / "tokenizer.json"
            backend, is_quick = _read_tokenizer_json(source, within_limits)
        elif (folder / "tokenizer.model").is_file():
            source = folder / "tokenizer.model"
            model = parse_model(read_regular(source, TABLE_BYTES))
            model.add_dummy_prefix &= config.get("add_prefix_space") is not False
            with library_errors("a model"):
                backend = build_tokenizer(model, legacy=config.get("legacy") is not False)
            for name, default in zip(("bos", "eos", "unk"), ("<s>", "</s>", "<unk>"), strict=True):
                if default in model.pieces:
                    config.setdefault(f"{name}_token", default)
        else:
            raise ValueError("neither tokenizer.json nor tokenizer.model")
        with library_errors("special tokens"):
            special_tokens = _add_special_tokens(backend, config)
        if source.name != "tokenizer.json":
            _add_start_and_end(backend, config, special_tokens)
        template = find_template(folder, config, chat_template, special_tokens, preset_template)
        tokenizer = Tokenizer(backend, special_tokens, template)
        tokenizer.folder = None if within_limits else folder.absolute()
        tokenizer.is_quick = is_quick
        return tokenizer
    except QuireError:
        raise
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelLoadError(
            f"[tokenizer] {source} must be a readable tokenizer; got {error}. "
            "Complete the model's folder, or name another with --tokenizer."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} that is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} that holds no JSON object but {type(value).__name__}")
    return value


def _read_config(folder: Path) -> dict[str, Any]:
    """Join ``tokenizer_config.json`` with the two older files that hold what it may lack."""
    paths = {
        name: folder / f"{name}.json"
        for name in ("tokenizer_config", "special_tokens_map", "added_tokens")
    }
    files = {name: _read_json(path) if path.exists() else {} for name, path in paths.items()}
    config = files["tokenizer_config"]
    if "added_tokens_decoder" not in config:
        config.update(files["special_tokens_map"])
        special = {_text(config[key]) for key in _special_keys(config)} | set(_extra(config))
        config["added_tokens_decoder"] = {
            index: {
                "content": token,
                "special": token in special,
                "normalized": token not in special,
            }
            for token, index in files["added_tokens"].items()
        }
    return config


def _read_tokenizer_json(path: Path, within_limits: bool) -> tuple[Backend, bool]:
    """Return a file's tokenizer, and whether it is known to be quick."""
    data = read_regular(path, TABLE_BYTES)
    is_quick = check_rules(data)
    if not is_quick and not within_limits:
        try:
            tokenizer_process.try_out(path.parent)
        except tokenizer_process.OverLimits as limit:
            raise ValueError(f"one that takes {limit} at its first use") from limit
    with library_errors("a file"):
        backend = Backend.from_buffer(data)
        backend.encode("a")
    backend.no_truncation()
    backend.no_padding()
    return backend, is_quick


def _text(token: Any) -> str:
    """Return a token's text, which files hold bare or as an object with flags."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"a special token that is no text: {token!r}")
    return text


def _special_keys(config: dict[str, Any]) -> list[str]:
    return [f"{name}_token" for name in _NAMED if config.get(f"{name}_token") is not None]


def _extra(config: dict[str, Any]) -> list[str]:
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    return [_text(token) for token in (extra.values() if isinstance(extra, dict) else extra)]


def _add_special_tokens(backend: Backend, config: dict[str, Any]) -> dict[str, str]:
    """Add the tokens that the configuration names; return the named special ones."""
    added = {int(index): token for index, token in config["added_tokens_decoder"].items()}
    backend.add_tokens(
        [
            AddedToken(_text(token), **{flag: token[flag] for flag in _FLAGS if flag in token})
            for _, token in sorted(added.items())
        ]
    )
    for index, token in added.items():
        found = backend.token_to_id(_text(token))
        if found != index:
            raise ValueError(f"added token {_text(token)!r} with id {found} instead of {index}")
    named = {key: _text(config[key]) for key in _special_keys(config)}
    special = dict.fromkeys([*named.values(), *_extra(config)])
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    fim = [key for name in GGUF_NAMES.values() if (key := f"{name}_token") in config]
    return named | {key: _text(config[key]) for key in fim}


def _add_start_and_end(
    backend: Backend, config: dict[str, Any], special_tokens: dict[str, str]
) -> None:
    """Make ``encode`` put start and end tokens where ``add_bos_token``/``add_eos_token`` say."""
    if "templates" in config:
        single, pair = config["templates"]
        named = {token for token in single + pair if not token.startswith("$")}
        ids = [
            (token, backend.token_to_id(token)) for token in {t.removesuffix(":1") for t in named}
        ]
        backend.post_processor = processors.TemplateProcessing(single, pair, ids)
        return
    before, after = [], []
    if config.get("add_bos_token", True) and "bos_token" in special_tokens:
        before = [special_tokens["bos_token"]]
    if config.get("add_eos_token", False) and "eos_token" in special_tokens:
        after = [special_tokens["eos_token"]]
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[(token, backend.token_to_id(token)) for token in (*before, *after)],
    )
