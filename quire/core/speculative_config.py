"""Methods by which a server proposes tokens ahead of its model, and their limits; plain data.

Read from settings by :mod:`quire.settings.speculative_settings`; what one request asks of them is
in :mod:`quire.core.speculative_params`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias, get_args

from quire.core.errors import ConfigError, QuireError
from quire.core.model.quantization_names import (
    QUANTIZATIONS,
    STORED_NAMES,
    QuantizationName,
    StoredName,
)

MethodName: TypeAlias = Literal[
    "ngram", "draft_model", "medusa", "eagle", "eagle3", "mtp", "self"
]  # fmt: skip
METHODS: tuple[MethodName, ...] = get_args(MethodName)
#: Methods that the engine has; others are taken with a notice, and propose nothing.
AVAILABLE_METHODS: frozenset[MethodName] = frozenset(METHODS)

Acceptance: TypeAlias = Literal["coupled", "rejection"]
ACCEPTANCES: tuple[Acceptance, ...] = get_args(Acceptance)
#: Those that the engine has; asking for another is an error.
AVAILABLE_ACCEPTANCES: frozenset[Acceptance] = frozenset({"coupled", "rejection"})

#: Ways in which a draft model's tokens become those of the model that it drafts for.
DraftVocabulary: TypeAlias = Literal["same", "intersection", "text"]
DRAFT_VOCABULARIES: tuple[DraftVocabulary, ...] = get_args(DraftVocabulary)

#: Most tokens of a round where a method is given without a number of its own. A drafter computes
#: for each token that it proposes, so that deep proposals must hold often to pay. Looked-up tokens
#: cost nothing until they are checked, and eight rows cost little more than five.
DEFAULT_TOKENS = {"ngram": 7}
DEFAULT_DRAFTED_TOKENS = 4
MAX_TOKENS = 64
#: Tokens of a round, and levels, of a tree that grows.
DEFAULT_TREE_TOKENS = 16
DEFAULT_TREE_DEPTH = 5
#: Methods without weights, and those whose weights are the served model's.
WITHOUT_MODEL = ("ngram", "self")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeMethod:
    """One way to propose tokens, and when it does.

    Args:
        method: Name of the method: ``ngram`` looks up what followed the same words before;
            ``draft_model`` asks a smaller model; ``medusa``, ``eagle``, ``eagle3`` and ``mtp`` ask
            heads trained on the served model; ``self`` asks the served model itself, rounded by
            ``quantization``.
        model: Folder, GGUF file, hub id or name of the drafter; None where the method needs none,
            or the served model brings it.
        revision: Version of a hub id.
        num_speculative_tokens: Number of tokens proposed in a round, at most, 1 to 64; 0 stands for
            the method's default and is replaced by it.
        adaptive: Whether the engine chooses how many up to that, as it pays; False: always that
            many.
        prompt_lookup_min, prompt_lookup_max: Least and most tokens that must match, for ``ngram``;
            None: the method's own.
        speculative_token_tree: A tree of a set form: each token by its ranks among the candidates
            at each position, such as (0, 1) for the second that may follow the best; empty for
            none. It has ``num_speculative_tokens``.
        tree_width: Candidates of a token in a tree that grows where tokens are likely, of
            ``num_speculative_tokens`` in all; None: a chain.
        tree_depth: Levels of such a tree.
        quantization: Format that the drafter's weights are rounded to; None: as they are.
        max_model_len: Tokens of a sequence beyond which nothing is proposed; None: no limit.
        vocabulary: Relation of a ``draft_model``'s tokens to the served model's. ``same``: they
            must be equal; ``intersection``: only tokens are drawn that both have; ``text``: what
            the draft writes is tokenized for the served model. None: the first where it is so, else
            as it fits.
        parallel_drafting: Whether ``eagle3`` drafts all tokens at once, which the head must be made
            for; False: one after the other. None: as it is made.
        acceptance: Rule by which a proposal holds. ``coupled``: it holds when it is the token that
            the model itself draws there. ``rejection``: with probability min(1, p/q).
        disable_by_batch_size: Number of running requests from which on nothing is proposed.
        num_speculative_tokens_per_batch_size: Entries ``(first, last, tokens)`` for ranges of
            running requests, both ends included, ascending; a gap is as the range before it.
        alarm: Rate at which a proposal should hold when all before it did; below it an alarm is
            raised.
        is_inferred: Whether the method was not named: a loader may find that the model is for
            another.

    Raises:
        ConfigError: A value cannot be, or does not belong to the method.
    """

    method: MethodName
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens: int = 0
    adaptive: bool = True
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    speculative_token_tree: tuple[tuple[int, ...], ...] = ()
    tree_width: int | None = None
    tree_depth: int | None = None
    quantization: QuantizationName | StoredName | None = None
    max_model_len: int | None = None
    vocabulary: DraftVocabulary | None = None
    parallel_drafting: bool | None = None
    acceptance: Acceptance = "coupled"
    disable_by_batch_size: int | None = None
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    alarm: float = 0.6
    is_inferred: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            refuse("method", f"must be one of {', '.join(METHODS)}", self.method)
        if self.num_speculative_tokens == 0:
            object.__setattr__(self, "num_speculative_tokens", self._default_tokens())
        self._check_numbers()
        self._check_tree()
        self._check_lookup()
        self._check_schedule()
        if self.model is not None and self.method in WITHOUT_MODEL:
            refuse("model", f"must be left out of method {self.method}", self.model)
        if self.quantization not in (None, *QUANTIZATIONS, *STORED_NAMES):
            refuse("quantization", f"must be one of {', '.join(QUANTIZATIONS)}", self.quantization)
        if self.method == "self" and self.quantization is None:
            refuse("quantization", "must be given for method self, such as int4", None)
        if self.method == "ngram" and self.quantization is not None:
            refuse("quantization", "must be left out of method ngram", self.quantization)
        if self.vocabulary is not None and self.vocabulary not in DRAFT_VOCABULARIES:
            known = ", ".join(DRAFT_VOCABULARIES)
            refuse("vocabulary", f"must be one of {known}", self.vocabulary)
        if self.vocabulary is not None and self.method != "draft_model":
            refuse("vocabulary", f"must be left out of method {self.method}", self.vocabulary)
        self._check_parallel()
        if self.acceptance not in ACCEPTANCES:
            refuse("acceptance", f"must be one of {', '.join(ACCEPTANCES)}", self.acceptance)

    def _check_numbers(self) -> None:
        least: dict[str, int] = {
            "num_speculative_tokens": 1,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
            "tree_width": 2,
            "tree_depth": 1,
            "max_model_len": 1,
            "disable_by_batch_size": 1,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < low):
                refuse(name, f"must be a whole number of at least {low}", value)
        if self.num_speculative_tokens > MAX_TOKENS:
            rule = f"must be at most {MAX_TOKENS}"
            refuse("num_speculative_tokens", rule, self.num_speculative_tokens)
        if type(self.alarm) not in (int, float) or not 0.0 <= self.alarm <= 1.0:
            refuse("alarm", "must be in [0, 1]", self.alarm)
        if type(self.adaptive) is not bool:
            refuse("adaptive", "must be true or false", self.adaptive)
        for name in ("model", "revision"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                refuse(name, "must be text", value)

    def _default_tokens(self) -> int:
        if self.speculative_token_tree:
            return len(self.speculative_token_tree)
        if self.tree_width is not None:
            return DEFAULT_TREE_TOKENS
        return DEFAULT_TOKENS.get(self.method, DEFAULT_DRAFTED_TOKENS)

    def _check_tree(self) -> None:
        if self.tree_depth is not None and self.tree_width is None:
            refuse("tree_depth", "must come with tree_width", self.tree_depth)
        for name in ("tree_width", "tree_depth"):
            if (getattr(self, name) or 0) > MAX_TOKENS:
                refuse(name, f"must be at most {MAX_TOKENS}", getattr(self, name))
        name, tree = "speculative_token_tree", self.speculative_token_tree
        if self.has_tree and self.method == "ngram":
            refuse(name if tree else "tree_width", "must be left out of method ngram", "a tree")
        if not tree:
            return
        if self.tree_width is not None:
            refuse("tree_width", f"must be left out with {name}", self.tree_width)
        rule = "must be a tree: tuples of ranks, at least 0, each once and after its parent"
        for ranks in tree:
            numbers = isinstance(ranks, tuple) and all(type(rank) is int for rank in ranks)
            if not ranks or not numbers or not all(0 <= rank < MAX_TOKENS for rank in ranks):
                refuse(name, rule, ranks)
            if len(ranks) > 1 and ranks[:-1] not in tree or tree.count(ranks) > 1:
                refuse(name, rule, ranks)
        if len(tree) != self.num_speculative_tokens:
            refuse(
                "num_speculative_tokens",
                f"must be the {len(tree)} of the tree",
                self.num_speculative_tokens,
            )

    def _check_parallel(self) -> None:
        name, value = "parallel_drafting", self.parallel_drafting
        if value is None:
            return
        if type(value) is not bool:
            refuse(name, "must be true or false", value)
        if self.method != "eagle3" and not self.is_inferred:
            refuse(name, f"must be left out of method {self.method}", value)

    def _check_lookup(self) -> None:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if self.method != "ngram" and (low or high):
            name = "prompt_lookup_min" if low else "prompt_lookup_max"
            refuse(name, f"must be left out of method {self.method}", low or high)
        if low is not None and high is not None and low > high:
            refuse("prompt_lookup_min", f"must be at most prompt_lookup_max ({high})", low)

    def _check_schedule(self) -> None:
        name, last_end = "num_speculative_tokens_per_batch_size", 0
        for entry in self.num_speculative_tokens_per_batch_size:
            if len(entry) != 3 or not all(type(number) is int for number in entry):
                refuse(name, "must hold [first, last, tokens] of whole numbers", entry)
            first, last, tokens = entry
            if not last_end < first <= last:
                refuse(name, "must hold ascending ranges of running requests", entry)
            if not 0 <= tokens <= self.num_speculative_tokens:
                limit = f"num_speculative_tokens ({self.num_speculative_tokens})"
                refuse(name, f"must hold 0 to {limit} tokens", entry)
            last_end = last
        first_range = self.num_speculative_tokens_per_batch_size[:1]
        if first_range and first_range[0][0] != 1:
            refuse(name, "must begin with 1 running request", first_range[0])

    @property
    def has_tree(self) -> bool:
        """Whether several tokens are proposed for a position."""
        return bool(self.speculative_token_tree) or self.tree_width is not None

    @property
    def looks_up(self) -> bool:
        """Whether proposals are looked up, and there may be none."""
        return self.method == "ngram"

    @property
    def follows(self) -> bool:
        """Whether a sequence gets proposals only if every step of it was told."""
        return self.method in ("eagle", "eagle3", "mtp")

    @property
    def is_available(self) -> bool:
        """Whether the engine has this method."""
        return self.method in AVAILABLE_METHODS

    def tokens_at(self, num_running: int) -> int:
        """Return the most tokens proposed for each request in a step of ``num_running`` of them."""
        if self.disable_by_batch_size is not None and num_running >= self.disable_by_batch_size:
            return 0
        tokens = self.num_speculative_tokens
        for first, _, scheduled in self.num_speculative_tokens_per_batch_size:
            if num_running >= first:
                tokens = scheduled
        return tokens


def refuse(key: str, rule: str, value: Any) -> NoReturn:
    """Raise the error of one key of ``--speculative-config``."""
    raise ConfigError(f'[config] --speculative-config: "{key}" {rule}; got {value!r:.80}.')


def refuse_drafter(method: SpeculativeMethod, error: QuireError) -> ConfigError:
    """Return the error of a drafter that cannot be loaded."""
    name = method.model or method.method
    return ConfigError(
        f"[config] --speculative-config must name a drafter that can be loaded; got {name}: {error}"
    )
