"""A compiler of grammars that is made when the engine is already serving.

Reading a tokenizer and importing the compiler takes longer than a small model's first answer,
which needs neither.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from quire.core.structured_outputs import StructuredOutputs, TokenMatcher

if TYPE_CHECKING:
    from quire.text.grammars.grammar import GrammarCompiler

#: Seconds after which it is made even if no request needs it: the files may change until then.
DELAY_SECONDS = 2.0
#: Words of grammars whose tokens are kept in each of the few threads that follow them.
CACHED_WORDS = 500


class LazyCompiler:
    """See :class:`quire.text.grammars.grammar.GrammarCompiler`, whose methods these are.

    Args:
        tokenizer_folder, eos_token_ids, vocab_size: Tokenizer, end ids and vocabulary of the model.
    """

    def __init__(
        self, tokenizer_folder: str, eos_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        self._model = tokenizer_folder, eos_token_ids, vocab_size
        self._wanted = threading.Event()
        self._made: Future[GrammarCompiler] = Future()

    def start(self) -> None:
        """Make the compiler in a thread, when it is needed or after :data:`DELAY_SECONDS`."""
        threading.Thread(target=self._make, name="quire-grammars", daemon=True).start()

    def knows(self, constraint: StructuredOutputs) -> bool:
        """Return whether a constraint is compiled already."""
        is_made = self._made.done() and self._made.exception() is None
        return is_made and self._made.result().knows(constraint)

    def compile(self, constraint: StructuredOutputs) -> None:
        """Check and compile a constraint.

        Raises:
            RequestError: The same as in :meth:`GrammarCompiler.compile`.
            ModelLoadError: The tokenizer cannot be read any more.
        """
        self._compiler().compile(constraint)

    def create_matcher(self, constraint: StructuredOutputs) -> TokenMatcher:
        """Return a matcher at the start of the output; errors are those of :meth:`compile`."""
        return self._compiler().create_matcher(constraint)

    def _compiler(self) -> GrammarCompiler:
        self._wanted.set()
        return self._made.result()

    def _make(self) -> None:
        self._wanted.wait(DELAY_SECONDS)
        try:
            self._made.set_result(self._create())
        except BaseException as error:
            self._made.set_exception(error)

    def _create(self) -> GrammarCompiler:
        from quire.checkpoints.gguf.gguf_file import forget_gguf
        from quire.text.grammars.grammar import GrammarCompiler
        from quire.text.tokenizers.tokenizer import load_tokenizer

        folder, eos_token_ids, vocab_size = self._model
        tokenizer = load_tokenizer(folder)
        forget_gguf()
        tokenizer.limit_cache(CACHED_WORDS)
        return GrammarCompiler(tokenizer, eos_token_ids, vocab_size)
