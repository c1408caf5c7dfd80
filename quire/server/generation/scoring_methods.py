"""Scores of texts: from a head, from a token of the answer, or from the texts' vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from quire.core.errors import ConfigError, RequestError
from quire.core.model.pooling_config import ClassifierConfig
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.llm.engine_client import EngineClient
from quire.llm.outputs.pooling_outputs import check_scores, class_probabilities
from quire.server.server_options import ServerOptions
from quire.system.regular_files import read_regular_text
from quire.text.templates.chat_template import ChatTemplate
from quire.text.templates.score_templates import SCORE_TEMPLATES
from quire.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scoring of one served model.

    Attributes:
        labels: Texts of the classes.
        token_ids: Ids of the classes' tokens; empty where scores come from a head or from vectors.
        classifier: The model's head, if it has one.
        template: The tokenizer that renders a query and a document; None joins them as they are.
    """

    labels: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    classifier: ClassifierConfig | None = None
    template: Tokenizer | None = None

    @classmethod
    def resolve(cls, options: ServerOptions, engine: EngineClient) -> Scoring:
        """Read the flags.

        Raises:
            ConfigError: A class is no token, the model generates none, or the template cannot be
                read.
        """
        tokenizer, model = engine.tokenizer, engine.model_config
        source = cls.check(options)
        if options.classifier_from_token and not model.generates:
            raise ConfigError(
                "[config] --classifier-from-token needs a model that generates; got "
                f"{model.architecture}. Leave it out."
            )
        labels, template = options.classifier_from_token, None
        if source is not None:
            template = copy(tokenizer)
            template.chat_template = ChatTemplate({"default": source}, tokenizer.special_tokens)
        if model.classifier is not None:
            return cls(model.classifier.labels, (), model.classifier, template)
        token_ids = tuple(_token_id(tokenizer, label) for label in labels)
        return cls(labels, token_ids, None, template)

    @staticmethod
    def check(options: ServerOptions) -> str | None:
        """Return the source of the template that is asked for, if any; no model is needed.

        Raises:
            ConfigError: The classes are too few, or the template cannot be read.
        """
        labels, template = options.classifier_from_token, options.score_template
        if len(labels) == 1 or len(set(labels)) != len(labels):
            raise ConfigError(
                "[config] --classifier-from-token must be given for two or more different "
                f"tokens; got {', '.join(labels)}."
            )
        return None if template is None else _template_source(template)

    def check_pairs(self) -> None:
        """Check that a pair of texts can be scored.

        Raises:
            RequestError: The model has more classes than "no" and "yes", or its head more than one.
        """
        if self.classifier is not None:
            check_scores(self.classifier)
        if len(self.token_ids) > 2:
            raise RequestError(
                f"[model] a score needs two classes, no and yes; got {len(self.token_ids)}. Ask "
                "/classify, or start the server with two --classifier-from-token.",
                "model",
            )

    def prompt(self, query: str, document: str, instruction: str | None = None) -> str | list[str]:
        """Return the prompt of a pair, whole or in parts.

        Raises:
            RequestError: The template refuses it.
        """
        if self.template is None:
            return query + document
        system = [] if instruction is None else [{"role": "system", "content": instruction}]
        messages = [
            *system,
            {"role": "query", "content": query},
            {"role": "document", "content": document},
        ]
        return self.template.render_chat(messages)

    def params(self) -> SamplingParams:
        """Return the settings that ask for the classes' probabilities."""
        if self.classifier is not None:
            return SamplingParams(
                pooling="classify",
                max_tokens=None,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
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
        """Return the classes' probabilities in their order; of tokens, among these alone."""
        if self.classifier is not None:
            assert output.embedding is not None, f"request {output.request_id} has no logits"
            return class_probabilities(self.classifier, output.embedding)
        (completion,) = output.outputs
        assert completion.logprobs, f"request {output.request_id} has no log-probabilities"
        found = [completion.logprobs[0][token_id].logprob for token_id in self.token_ids]
        best = max(found)
        parts = [math.exp(logprob - best) for logprob in found]
        return [part / math.fsum(parts) for part in parts]


def _template_source(name: str) -> str:
    if name in SCORE_TEMPLATES:
        return SCORE_TEMPLATES[name]
    try:
        return read_regular_text(name)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"[config] --score-template must be a Jinja file, or {', '.join(SCORE_TEMPLATES)}; "
            f"got {name}: {error}."
        ) from error


def _token_id(tokenizer: Tokenizer, text: str) -> int:
    ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise ConfigError(
            f"[config] --classifier-from-token must be one token of the model; got {text!r}, "
            f"which is {len(ids)}."
        )
    return ids[0]
