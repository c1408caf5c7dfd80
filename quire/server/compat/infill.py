"""The prompt by which a model fills in the middle of a text, as llama-server writes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.protocol.llama_server import InfillRequest
from quire.server.generation.prompts.tokenized_prompts import MARK_CHARACTERS, PromptLimit
from quire.text.offloading import run_by_size
from quire.text.tokenizers.fim_tokens import FimTokens
from quire.text.tokenizers.plain_text import SpecialTexts
from quire.text.tokenizers.tokenizer import Tokenizer

#: What comes between the texts of other files for a model that has no token for it.
_SNIPPET = "\n\n--- snippet ---\n\n"
#: A text may be cut to as many characters for each token that fits before it is tokenized.
_CHARACTERS_PER_TOKEN = 32


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """A prompt in parts; those at the outer ends may have to be left out.

    Attributes:
        extra: Token ids of other files; the last matter most.
        begin: Ids of the tokens that open the prefix.
        prefix: Ids of the text before the middle.
        prompt: Ids of the end of that text, on the line that is to be filled in.
        between: Ids of the tokens that open the suffix.
        suffix: Ids of the text after the middle.
        end: Ids of the tokens that open the middle.
        is_cut: Whether a text of the request has been shortened already.
    """

    extra: list[int]
    begin: list[int]
    prefix: list[int]
    prompt: list[int]
    between: list[int]
    suffix: list[int]
    end: list[int]
    is_cut: bool

    @classmethod
    async def encode(
        cls,
        tokenizer: Tokenizer,
        tokens: FimTokens,
        body: InfillRequest,
        longest: int,
        client_id: str,
        *,
        named: bool = True,
    ) -> InfillPrompt:
        """Tokenize each text of a request by itself; what spells a special token is text.

        A thread does it where it is much: a request may hold thousands of texts.

        Args:
            tokenizer: The served model's tokenizer.
            tokens: The model's tokens for infilling; none that are needed is missing.
            body: The request.
            longest: Tokens of the context.
            client_id: The client's id; clients take turns.
            named: Whether repository and files get names, where the model has tokens for them.

        Raises:
            PromptTooLongError: ``prompt`` alone is far beyond the context.
        """
        plain = SpecialTexts(filter(None, tokenizer.convert_ids_to_tokens(tokens.all)))

        def encode(text: str) -> list[int]:
            special = tokenizer.special_texts.cut(text)
            parts = [part for one in special for part in plain.cut(one)]
            return tokenizer.encode_parts(parts, False) if text else []

        most = _CHARACTERS_PER_TOKEN * longest
        parts = [*_extra_parts(tokens, body)] if named else []
        prefix, suffix = body.input_prefix[-most:], body.input_suffix[:most]
        is_cut = (prefix, suffix) != (body.input_prefix, body.input_suffix)
        is_cut |= any(len(chunk.text) > most for chunk in body.input_extra or ())
        assert tokens.prefix is not None and tokens.suffix is not None
        assert tokens.middle is not None
        start = tokenizer.encode("")[:1]
        begin = [*(start if start == [tokenizer.bos_token_id] else []), tokens.prefix]
        between, end = [tokens.suffix], [tokens.middle]

        def encode_all() -> InfillPrompt:
            PromptLimit(longest, "prompt").check(tokenizer, [body.prompt])
            extra: list[int] = []
            for part in parts:
                extra += [part] if isinstance(part, int) else encode(part[-most:])
            prompt = tokenizer.encode(body.prompt, False)
            return cls(extra, begin, encode(prefix), prompt, between, encode(suffix), end, is_cut)

        texts = [*(part for part in parts if isinstance(part, str)), prefix, body.prompt, suffix]
        size = tokenizer.work_size(sum(len(text) + MARK_CHARACTERS for text in texts))
        return await run_by_size(size, client_id, encode_all)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all parts together."""
        texts = len(self.extra) + len(self.prefix) + len(self.prompt) + len(self.suffix)
        return texts + len(self.begin) + len(self.between) + len(self.end)

    def fit(self, room: int) -> tuple[list[int], bool]:
        """Return the prompt, and whether it lacks something that was sent.

        What is nearest to the middle stays: of the suffix the beginning, in a quarter of the room
        where all of it is too long, of the prefix the end, and of other files what then fits.

        Args:
            room: Tokens that it may have.
        """
        marks = len(self.begin) + len(self.between) + len(self.end)
        free = max(0, room - marks - len(self.prompt))
        suffix = self.suffix[: max(free // 4, free - len(self.prefix))]
        free -= len(suffix)
        prefix = _last(self.prefix, free)
        extra = _last(self.extra, free - len(prefix))
        parts = [extra, self.begin, prefix, self.prompt, self.between, suffix, self.end]
        token_ids = [token for part in parts for token in part]
        return token_ids, self.is_cut or len(token_ids) < self.num_tokens


def _extra_parts(tokens: FimTokens, body: InfillRequest) -> Iterator[int | str]:
    """Yield texts and ids of what comes before; the repository's name is llama-server's own."""
    if tokens.repository is not None:
        yield tokens.repository
        yield "myproject\n"
    for chunk in body.input_extra or ():
        if tokens.separator is None:
            yield _SNIPPET + chunk.text
        else:
            yield tokens.separator
            yield f"{chunk.filename}\n{chunk.text}"
    if tokens.separator is not None:
        yield tokens.separator
        yield "filename\n"


def _last(token_ids: list[int], count: int) -> list[int]:
    return token_ids[max(0, len(token_ids) - count) :]
