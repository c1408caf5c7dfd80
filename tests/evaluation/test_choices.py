"""Multiple choice: which tokens count, what is picked, and the figures of it."""

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.evaluation.choices import (
    Scored,
    accuracy,
    accuracy_difference,
    choice_windows,
    score,
)
from quire.evaluation.documents import Document, Question
from quire.evaluation.scorer import LocalEncoder, start_tokens
from quire.evaluation.task import Task, prepare

QUESTION = Question(3, "The sky is ", ("blue", "made of cheese"), 0)


class Letters:
    """A tokenizer of characters, with a start of text; a chat is a question with a mark."""

    max_tokens = 40

    def __init__(self, start=(1,)):
        self._start = list(start)

    def encode(self, text, special):
        return [*(self._start if special else []), *map(ord, text)]

    def encode_after(self, text):
        return self.encode(text, False)

    def encode_chat(self, messages, to_answer):
        return [*self._start, *map(ord, messages[0]["content"]), *([2] if to_answer else [])]


def counted(window):
    return "".join(map(chr, window.token_ids[window.first :]))


def test_only_the_tokens_of_a_choice_count():
    windows = choice_windows(QUESTION, Letters(), False, None)
    assert [counted(window) for window in windows] == [" blue", " made of cheese"]
    assert windows[0].token_ids.tolist() == [1, *map(ord, "The sky is blue")]


def test_a_chat_answers_the_question():
    window, _ = choice_windows(QUESTION, Letters(), True, None)
    assert counted(window) == "blue"
    assert window.token_ids.tolist() == [1, *map(ord, "The sky is "), 2, *map(ord, "blue")]


def test_a_token_that_joins_question_and_choice_counts():
    class Pairs(Letters):
        def encode(self, text, special):
            return [hash(text[i : i + 2]) % 1000 for i in range(0, len(text), 2)]

    question = Question(1, "abc", ("d", "e"), None)  # "abc d": ab, "c ", d
    for window in choice_windows(question, Pairs(), False, None):
        assert (len(window.token_ids), window.first) == (3, 1)


def test_what_is_too_long_is_refused_by_its_line():
    with pytest.raises(ConfigError, match="must fit in 20 tokens; got 26 in line 3 of --choices"):
        choice_windows(QUESTION, Letters(), False, 20)


def test_the_likeliest_choice_is_picked_by_sum_and_by_byte():
    losses = iter([np.full(5, 1.0), np.full(15, 0.4)])
    (scored,) = score([QUESTION], losses)
    assert scored.logprobs == pytest.approx((-5, -6)) and scored.pick == 0
    assert scored.normalized == pytest.approx((-5 / 4, -6 / 14)) and scored.pick_normalized == 1


def test_accuracy_is_of_questions_with_an_answer():
    scored = [Scored(i, answer, (-1.0, -2.0), (-2.0, -1.0)) for i, answer in
              enumerate([0, 0, 0, 1, None])]  # fmt: skip
    assert accuracy(scored, False).value == 0.75
    assert accuracy(scored, True).value == 0.25
    assert accuracy(scored[4:], False) is None
    turned = [Scored(s.line, s.answer, s.normalized, s.logprobs) for s in scored]
    found = accuracy_difference(scored, turned, False)
    assert found.value == 0.5 and found.low < 0.5 < found.high
    assert accuracy_difference(scored[4:], turned[4:], False) is None


def test_a_start_of_text_is_found_and_each_window_has_it(tmp_path):
    assert start_tokens(Letters()) == (1,) and start_tokens(Letters(())) == ()
    (tmp_path / "a.txt").write_text("abcdefgh")
    work = prepare(Task(text=tmp_path / "a.txt", window=4), Letters())
    assert [window.token_ids.tolist() for window in work.windows] == [
        [1, *map(ord, "abc")], [1, *map(ord, "def")], [1, *map(ord, "gh")],
    ]  # fmt: skip
    assert sum(window.num_counted for window in work.windows) == work.num_text_tokens == 8


def test_a_conversation_s_own_start_is_not_doubled(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "abc"}]}\n')
    (window,) = prepare(Task(text=tmp_path / "a.jsonl"), Letters()).windows
    assert window.token_ids.tolist() == [1, *map(ord, "abc")]


def test_texts_of_one_token_are_refused_by_their_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "ab"}\n\n{"text": "a"}\n')
    with pytest.raises(ConfigError, match="at least 2 tokens .* got 1 in line 3 of --perplexity"):
        prepare(Task(text=tmp_path / "a.jsonl"), Letters(()))
    assert len(prepare(Task(text=tmp_path / "a.jsonl"), Letters()).windows) == 2


def test_max_tokens_bounds_texts_and_questions(tmp_path):
    line = '{"question": "abcd", "choices": ["e", "f"], "answer": 1}\n'  # 7 tokens each
    (tmp_path / "c.jsonl").write_text(3 * line)
    (tmp_path / "a.txt").write_text(100 * "a")
    task = Task(text=tmp_path / "a.txt", choices=tmp_path / "c.jsonl", max_tokens=30)
    work = prepare(task, Letters())
    assert (work.num_text_tokens, sum(window.num_counted for window in work.windows)) == (100, 30)
    assert (work.num_questions, len(work.questions), len(work.choice_windows)) == (3, 2, 4)


def test_text_that_cannot_be_tokenized_is_refused_by_its_line(tmp_path, tokenizer):
    encoder = LocalEncoder(tokenizer, 2048)
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "\\ud800 no text"}\n')
    with pytest.raises(ConfigError, match="in line 2"):
        prepare(Task(text=tmp_path / "a.jsonl"), encoder)
    (tmp_path / "a.jsonl").write_text('{"messages": [{"content": "no role"}]}\n')
    with pytest.raises(ConfigError, match="in line 1"):
        prepare(Task(text=tmp_path / "a.jsonl"), encoder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "something to judge by"),
        ({"choices": "c", "window": 8}, "--window must come with --perplexity"),
        ({"choices": "c", "stride": 8}, "--stride must come with --perplexity"),
        ({"choices": "c", "long_context": True}, "--long-context must come with --perplexity"),
        ({"text": "a", "chat": True}, "--chat must come with --choices"),
        ({"text": "a", "long_context": True, "stride": 3}, "--long-context must count every token"),
    ],
)
def test_flags_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Task(**settings)


def test_a_document_is_one_of_two():
    assert Document(1, "a").messages is None
