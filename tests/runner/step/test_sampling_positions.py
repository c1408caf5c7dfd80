"""Drawing at several positions of a request in one call equals drawing at one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.kernels.batch.token_table import TokenTable
from quire.kernels.cpu.backend import CpuBackend
from quire.layers.sampler import Sampler
from quire.runner.step import mask_threads
from quire.runner.step.sampling_state import SamplingState
from quire.text.grammars.grammar import GrammarCompiler
from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.random_checkpoint import PRESETS, random_checkpoint

VOCAB, EOS = 300, 256
BACKEND = CpuBackend(threads=1)
SAMPLER = Sampler(BACKEND)


def ids(text: str) -> list[int]:
    """The tokens of a text: one a byte, spaces after all that can be printed."""
    return [220 if character == " " else ord(character) - 33 for character in text]


PROMPT = ids("prompt")
#: What was generated, and what is proposed after it.
KNOWN, PROPOSED = ids('{"a":'), ids(" [12, 1")
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.3, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": {
        "repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.9
    },
    "bad words": {
        "bad_words_token_ids": tuple((i, j) for i in PROPOSED for j in range(0, VOCAB, 2))
        + ((*KNOWN[-2:], *PROPOSED[:2], 4), (3,))
    },
    "min_tokens": {
        "min_tokens": len(KNOWN) + 3,
        "stop_token_ids": list(range(250)),
        "logit_bias": {EOS: 9.0},
    },
    "logit_bias": {"logit_bias": {5: 4.0, 6: 3.0, 7: -50.0}},
    "allowed ids": {"allowed_token_ids": [4, 9, 30, 77]},
    "grammar": {"structured_outputs": StructuredOutputs(json_object=True)},
}  # fmt: skip
SETTINGS["everything"] = {
    **SETTINGS["seeded"], **SETTINGS["penalties"], **SETTINGS["grammar"],
    "bad_words_token_ids": ((*KNOWN[-2:], *PROPOSED[:2], ids("1")[0]), (3,)),
    "logit_bias": {ids("1")[0]: 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(folder, PRESETS["tiny-llama"])
    return GrammarCompiler(load_tokenizer(folder), [EOS], VOCAB)


class Sequences:
    """Requests in a table, with the settings they draw with."""

    def __init__(self, grammars: GrammarCompiler, settings: list[dict[str, Any]]) -> None:
        self.table = TokenTable(len(settings), 4)
        self.state = SamplingState(self.table, [EOS], BACKEND, grammars)
        for i, params in enumerate(settings):
            row = self.table.add(str(i), [*PROMPT, *KNOWN], len(PROMPT))
            self.state.set(row, SamplingParams(**({"temperature": 1.0} | params)), 17 + i)
        while self.state.grammars.unready_rows():
            self.state.grammars.wait_until_ready(20)
        self.rows = np.array([self.table.rows[str(i)] for i in range(len(settings))], np.int32)

    def draw(self, rows: Any, lengths: Any, logits: np.ndarray) -> list[int]:
        batch = self.state.batch(np.array(rows, np.int32), np.array(lengths, np.int32))
        return SAMPLER.draw(logits.copy(), batch).tolist()

    def append(self, token_id: int) -> None:
        self.table.append_tokens(self.rows, np.full(len(self.rows), token_id, np.int32))

    def propose(self, tokens: list[int]) -> list[int]:
        """Write tokens after those that are known; return how many of them each row may try."""
        start = len(PROMPT) + len(KNOWN)
        self.table.reserve(self.rows, np.full(len(self.rows), len(tokens) + 1, np.int32))
        self.table.token_ids[self.rows, start : start + len(tokens)] = tokens
        assert all(self.state.grammars.can_follow_proposals(row) for row in self.rows.tolist())
        followed = self.state.grammars.look_ahead(dict.fromkeys(self.rows.tolist(), len(tokens)), 0)
        return [followed[row] for row in self.rows.tolist()]


def check(
    grammars: GrammarCompiler, settings: list[dict[str, Any]], proposed: list[int]
) -> list[int]:
    """Compare both ways, twice over, so that what the first call leaves behind shows."""
    count, num_rows = len(proposed) + 1, len(settings)
    has_grammar = ["structured_outputs" in own for own in settings]
    rng = np.random.default_rng(len(proposed))
    logits = (rng.standard_normal((num_rows, count, VOCAB)) * 3).astype(np.float32)
    single, several = (Sequences(grammars, settings) for _ in range(2))
    start = len(PROMPT) + len(KNOWN)
    expected = np.empty((num_rows, count), np.int64)
    for i in range(count):
        expected[:, i] = single.draw(single.rows, [start + i] * num_rows, logits[:, i])
        if i < len(proposed):
            single.append(proposed[i])
    for _ in range(2):
        followed = several.propose(proposed)
        # Where a grammar forbids a token, nothing can be drawn after it: so it is not tried.
        possible = (expected >= 0).sum(axis=1) - 1
        assert followed == [
            int(possible[i]) if has_grammar[i] else len(proposed) for i in range(num_rows)
        ]
        tried = [(i, k) for i in range(num_rows) for k in range(followed[i] + 1)]
        rows, lengths = [several.rows[i] for i, _ in tried], [start + k for _, k in tried]
        found = several.draw(rows, lengths, np.stack([logits[i, k] for i, k in tried]))
        assert found == [expected[i, k] for i, k in tried]
    drawn: list[int] = expected.ravel().tolist()
    return drawn


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars are followed in time on any machine."""
    monkeypatch.setattr(mask_threads, "SECONDS_BESIDES", 60.0)
    monkeypatch.setattr(mask_threads, "SECONDS_ALONE", 60.0)
    monkeypatch.setattr("quire.runner.step.grammar_lookahead.SLOW_SECONDS", 60.0)
    monkeypatch.setattr("quire.runner.step.row_grammars.SLOW_SECONDS", 60.0)


@pytest.mark.parametrize("name", SETTINGS)
def test_one_call_draws_what_one_after_another_draw(grammars: GrammarCompiler, name: str) -> None:
    for num_proposed in range(len(PROPOSED) + 1):
        drawn = check(grammars, [SETTINGS[name]], PROPOSED[:num_proposed])
        assert all(token_id >= 0 for token_id in drawn)


def test_requests_with_different_settings_share_the_call(grammars: GrammarCompiler) -> None:
    check(grammars, list(SETTINGS.values()), PROPOSED)


def test_after_a_forbidden_token_nothing_is_possible(grammars: GrammarCompiler) -> None:
    """And what was proposed last time does not show in the next call."""
    drawn = check(grammars, [SETTINGS["grammar"]], ids(" [}12"))
    assert [token_id >= 0 for token_id in drawn] == [True] * 3 + [False] * 3
