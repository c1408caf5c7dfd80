"""The corpus of quire-tiny: repeatable by seed, honest in its split, true to the template."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from quire.text.tokenizer import load_tokenizer
from quire.text.tool_parsers import PARSERS, detect_parser
from tools.quire_tiny import arithmetic, corpus, heldout, plain_text, stories, tool_use
from tools.quire_tiny.facts import all_facts
from tools.quire_tiny.question import is_held_out
from tools.quire_tiny.tokenizer import TAGS, special_tokens
from tools.quire_tiny.tool_kit import KIT, draw_call

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "quire" / "assets" / "quire-tiny"
NUM_CHATS = 4000


@pytest.fixture(scope="module")
def questions() -> list[dict]:
    """The committed held-out questions."""
    lines = (ASSETS / "eval" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def tool_chats() -> list[dict]:
    """The committed held-out chats with tools."""
    lines = (ASSETS / "eval" / "tools.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_same_seed_gives_the_same_corpus() -> None:
    """Two generators of one seed agree; another seed differs."""
    first, second, other = (corpus.training_texts(Random(seed), 300) for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_no_phrasing_belongs_to_two_facts() -> None:
    """A prompt has one answer, or accuracy by exact match would mean nothing."""
    answers: dict[str, set[str]] = {}
    for fact in all_facts():
        for question in fact.questions():
            answers.setdefault(question.prompt, set()).add(question.answer)
    assert {prompt: a for prompt, a in answers.items() if len(a) > 1} == {}


def test_every_fact_is_trained_on_in_some_phrasing() -> None:
    """Holding out phrasings never hides a whole fact."""
    hidden = [f.name for f in all_facts() if all(q.held_out for q in f.questions())]
    assert hidden == []


def test_split_is_respected_when_drawing() -> None:
    """A chat drawn for training is not held out, and the other way round."""
    rng = Random(3)
    assert not any(corpus.draw_chat(rng, held_out=False).held_out for _ in range(NUM_CHATS))
    assert all(corpus.draw_chat(rng, held_out=True).held_out for _ in range(100))


def test_committed_questions_never_occur_in_training(questions: list[dict]) -> None:
    """No training chat begins with a held-out question; of a story, only the text is held out."""
    held_out = {json.dumps(q["messages"]) for q in questions if q["match"] == "exact"}
    rng = Random(5)
    for _ in range(5 * NUM_CHATS):
        messages = corpus.draw_chat(rng, held_out=False).messages
        for end in range(1, len(messages), 2):
            assert json.dumps(messages[:end]) not in held_out


def test_committed_text_never_occurs_in_training() -> None:
    """No training document is in the perplexity text."""
    text = (ASSETS / "eval" / "heldout.txt").read_text(encoding="utf-8")
    documents = set(text.split("\n\n"))
    rng = Random(6)
    drawn = [plain_text.draw(rng, held_out=False) for _ in range(3000)]
    assert not documents.intersection(drawn)
    assert len(text.encode()) >= 20_000


def test_drills_hold_no_held_out_sum() -> None:
    """A sum that is held out is not drilled either, whatever the order of its operands."""
    rng = Random(8)
    for line in "\n".join(arithmetic.drill(rng, 10) for _ in range(500)).splitlines():
        a, sign, b, equals, _ = line.split()
        low, high = sorted((int(a), int(b)))
        key = f"add/{low}/{high}" if sign == "+" else f"subtract/{a}/{b}"
        assert equals == "="
        assert not is_held_out(key)


def test_mixture_follows_the_schedule() -> None:
    """Prose first, then facts, then what is hardest."""
    fractions = (0.0, 0.39, 0.4, 0.75, 0.8, 1.0)
    expected = ["FIRST", "FIRST", "SECOND", "SECOND", "THIRD", "THIRD"]
    assert [corpus.mixture_at(f) for f in fractions] == [getattr(corpus, n) for n in expected]


def test_story_split_depends_on_its_cast_only() -> None:
    """Telling one cast twice stays in one split."""
    rng = Random(9)
    cast = stories.cast(rng)
    assert is_held_out(stories.key_of(cast)) == is_held_out(stories.key_of(cast))
    assert stories.tell(rng, cast).startswith(("Once", "Long ago"))


def test_the_first_question_of_everyone_is_answered() -> None:
    """The question of the front page is in the corpus, with its answer."""
    answers = {q.prompt: q.answer for f in all_facts() for q in f.questions()}
    assert answers["What is the capital of France?"] == "The capital of France is Paris."


def test_mixture_has_every_topic() -> None:
    """Each topic takes part in the mixture."""
    rng = Random(11)
    kinds = Counter(corpus.draw_chat(rng, held_out=False).kind for _ in range(NUM_CHATS))
    expected = "capital add unit story json code system_json system_name follow_up memory unknown"
    assert set(expected.split()) <= set(kinds)


def test_committed_questions_cover_every_group(questions: list[dict]) -> None:
    """At least 300 chats, each ending with the user's turn, none twice."""
    assert len(questions) >= 300
    assert len({json.dumps(q["messages"]) for q in questions}) == len(questions)
    assert {q["group"] for q in questions} >= {
        "facts",
        "arithmetic",
        "system_prompts",
        "multi_turn",
    }
    assert all(q["messages"][-1]["role"] == "user" and q["expected"] for q in questions)


def test_chats_render_by_the_template_of_the_package() -> None:
    """The template in the package writes what the corpus trained on."""
    jinja2 = pytest.importorskip("jinja2", reason="the chat template needs jinja2")
    source = (ASSETS / "chat_template.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    rng = Random(13)
    for _ in range(300):
        messages = corpus.draw_chat(rng, held_out=False).messages
        assert template.render(messages=messages) == corpus.render(messages)
        prompt = template.render(messages=messages[:-1], add_generation_prompt=True)
        assert prompt == corpus.render(messages[:-1], add_generation_prompt=True)
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    rendered = template.render(messages=[{"role": "user", "content": parts}])
    assert rendered == "<|im_start|>user\nHello<|im_end|>\n"


def test_the_template_shows_tools_and_calls() -> None:
    """As Hermes writes them; without tools nothing of it appears."""
    template = load_tokenizer(ASSETS).chat_template
    assert template is not None and template.shows_tools
    assert detect_parser(template.templates.values()) == "hermes"
    function = {"name": "f", "parameters": {"type": "object"}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]
    prompt = template.render(messages, tools=[{"type": "function", "function": function}])
    written = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
    assert prompt == (
        "<|im_start|>system\nBe brief.\n<tools>\n"
        '{"name": "f", "parameters": {"type": "object"}}\n</tools><|im_end|>\n'
        "<|im_start|>user\nHi<|im_end|>\n"
        f"<|im_start|>assistant\n{written}\n{written}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tool_chats_render_by_the_template_of_the_package() -> None:
    """The prompt of a request is what the model was trained on, at every turn of the assistant."""
    template = load_tokenizer(ASSETS).chat_template
    assert template is not None
    rng = Random(14)
    for _ in range(200):
        chat = tool_use.draw_chat(rng, corpus.draw_simple, held_out=False)
        text = corpus.render(chat.messages, tools=chat.tools)
        fields = {"tools": chat.tools or None}
        assert template.render(chat.messages, add_generation_prompt=False, **fields) == text
        for i, message in enumerate(chat.messages):
            if message["role"] == "assistant":
                prompt = template.render(chat.messages[:i], **fields)
                assert text.startswith(f"{prompt}{tool_use.written(message)}<|im_end|>\n")


def test_written_calls_are_read_back_by_the_parser() -> None:
    """What the model is taught to write is what the server reads."""
    rng = Random(15)
    calls = [draw_call(rng, tool) for tool in KIT for _ in range(20)]
    parser = PARSERS["hermes"]()
    parsed = parser.add(tool_use.written(tool_use.call_message(calls)))
    parsed.join(parser.flush())
    arguments = ["" for _ in calls]
    for delta in parsed.calls:
        arguments[delta.index] += delta.arguments
    assert not parsed.content and not parser.errors
    assert [json.loads(text) for text in arguments] == [call.arguments for call in calls]
    for call in calls:
        assert set(call.arguments) == set(call.tool.parameters)
        kinds = {"string": str, "integer": int}
        assert all(type(v) is kinds[call.tool.parameters[k]] for k, v in call.arguments.items())


def test_no_held_out_call_is_trained_on(tool_chats: list[dict]) -> None:
    """Neither the calls nor the questions without one occur in training chats with tools."""
    asked = {
        (chat["messages"][-1]["content"], chat["expected"])
        for chat in tool_chats
        if chat["messages"][-1]["role"] == "user"
    }
    assert len(asked) > 150
    rng = Random(16)
    for _ in range(NUM_CHATS):
        messages = tool_use.draw_chat(rng, corpus.draw_simple, held_out=False).messages
        for user, answer in pairwise(messages):
            if user["role"] == "user":
                assert (user["content"], tool_use.written(answer)) not in asked


def test_committed_tool_chats_follow_from_their_seed(tool_chats: list[dict]) -> None:
    """Each kind is there, and the file is what the code writes."""
    assert tool_chats == heldout.tool_chats(heldout.SEED)
    assert Counter(chat["kind"] for chat in tool_chats) == heldout.TOOL_KINDS


def test_tags_are_tokens_of_the_text() -> None:
    """One token each, which is kept where special tokens are left out."""
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizer needs tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    for tag in TAGS:
        [i] = tokenizer.encode(tag).ids
        assert special_tokens()[i] == tag
        assert tokenizer.decode([2, i], skip_special_tokens=True) == tag
    draft = ASSETS.with_name("quire-tiny-draft") / "tokenizer.json"
    assert draft.read_bytes() == (ASSETS / "tokenizer.json").read_bytes()


def test_texts_survive_the_tokenizer() -> None:
    """Encoding and decoding gives the text back; digits stand alone; markers are one token."""
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizer needs tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    rng = Random(17)
    texts = corpus.training_texts(rng, 500) + ["naïve Größe 東京 🙂 \t x\n\n  y", ""]
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_start|>").ids == [1]
    assert tokenizer.encode("<|im_end|>").ids == [2]
    assert len(tokenizer.encode("137").ids) == 3
    assert tokenizer.get_vocab_size() == 2048
