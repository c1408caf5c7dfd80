"""How a model scores texts: by the probability of a token of its answer, or by their vectors."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import ConfigError, RequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.server.options import ServerOptions
from quire.text.chat_template import ChatTemplate
from quire.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scoring of one served model.

    Attributes:
        labels: Texts of the classes.
        token_ids: Of their tokens; none where scores come from vectors.
        template: Renders a query and a document; None joins them as they are.
    """

    labels: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    template: Tokenizer | None = None

    @classmethod
    def resolve(cls, options: ServerOptions, tokenizer: Tokenizer) -> Scoring:
        """Read the flags.

        Raises:
            ConfigError: A class is no token, or the template cannot be read.
        """
        labels = options.classifier_from_token
        if len(labels) == 1 or len(set(labels)) != len(labels):
            raise ConfigError(
                "[config] --classifier-from-token must be given for two or more different "
                f"tokens; got {', '.join(labels)}."
            )
        template = None
        if options.score_template is not None:
            path = Path(options.score_template)
            try:
                source = path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"[config] --score-template must be a Jinja file; got {path}: {error}."
                ) from error
            template = copy(tokenizer)
            template.chat_template = ChatTemplate({"default": source}, tokenizer.special_tokens)
        return cls(labels, tuple(_token_id(tokenizer, label) for label in labels), template)

    def check_pairs(self) -> None:
        """Return when a pair of texts can be scored.

        Raises:
            RequestError: There are more classes than "no" and "yes".
        """
        if len(self.token_ids) > 2:
            raise RequestError(
                f"[model] a score needs two classes, no and yes; got {len(self.token_ids)}. Ask "
                "/classify, or start the server with two --classifier-from-token.",
                "model",
            )

    def prompt(self, query: str, document: str) -> str | list[str]:
        """Return the prompt of a pair, whole or in parts.

        Raises:
            RequestError: The template refuses it.
        """
        if self.template is None:
            return query + document
        messages = [
            {"role": "query", "content": query},
            {"role": "document", "content": document},
        ]
        return self.template.render_chat(messages)

    def params(self) -> SamplingParams:
        """Return the settings that ask for the classes' probabilities."""
        return SamplingParams(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            speculative=False,
            logprob_token_ids=self.token_ids,
            output_kind=RequestOutputKind.DELTA,
        )

    def probabilities(self, output: RequestOutput) -> list[float]:
        """Return the classes' probabilities next to each other alone, in their order."""
        (completion,) = output.outputs
        assert completion.logprobs, f"request {output.request_id} has no log-probabilities"
        found = [completion.logprobs[0][token_id].logprob for token_id in self.token_ids]
        best = max(found)
        parts = [math.exp(logprob - best) for logprob in found]
        return [part / math.fsum(parts) for part in parts]


def cosine(first: bytes, second: bytes) -> float:
    """Return the cosine of two vectors of length 1, each (D,) float32 little-endian."""
    one, other = array("f", first), array("f", second)
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _token_id(tokenizer: Tokenizer, text: str) -> int:
    ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise ConfigError(
            f"[config] --classifier-from-token must be one token of the model; got {text!r}, "
            f"which is {len(ids)}."
        )
    return ids[0]
