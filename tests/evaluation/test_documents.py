"""Files of texts and questions: what is read, and what is refused by the number of its line."""

import json

import pytest

from quire.core.errors import ConfigError
from quire.evaluation.documents import Document, Question, read_documents, read_questions

GOOD = '{"question": "2 + 2?", "choices": ["4", "5"], "answer": 0}'


@pytest.fixture
def write(tmp_path):
    def write(content, name="file.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_a_text_file_is_one_text(write):
    content = 'A line.\n\n{"text": "no JSON here"}\n'
    assert read_documents(write(content, "a.txt")) == [Document(1, content)]


def test_lines_are_texts_and_conversations(write):
    messages = [{"role": "user", "content": "Hi"}]
    lines = ["", '{"text": "a\u2028b", "source": 7}', json.dumps({"messages": messages}) + "\r"]
    assert read_documents(write("\ufeff" + "\n".join(lines))) == [
        Document(2, "a\u2028b"),
        Document(3, messages=messages),
    ]


def test_questions_may_have_no_answer(write):
    unknown = '{"question": "Why?", "choices": ["a", "b", "c"]}'
    assert read_questions(write(f"{GOOD}\n\n{unknown}\n")) == [
        Question(1, "2 + 2?", ("4", "5"), 0),
        Question(3, "Why?", ("a", "b", "c"), None),
    ]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("{broken", "JSON"),
        ("[1]", "a JSON object"),
        ("3", "a JSON object"),
        ("[" * 100_000, "JSON"),
        ("{}", "one of text and messages"),
        ('{"text": "a", "messages": []}', "one of text and messages"),
        ('{"text": 3}', "a text that is one"),
        ('{"text": ""}', "a text that is one"),
        ('{"messages": []}', "a list of objects"),
        ('{"messages": "hi"}', "a list of objects"),
        ('{"messages": [1]}', "a list of objects"),
    ],
)
def test_a_bad_line_of_texts_is_named(write, line, rule):
    with pytest.raises(ConfigError, match=rule) as caught:
        read_documents(write('{"text": "fine"}\n\n' + line + "\n"))
    assert "in line 3 of" in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "change",
    [
        {"question": ""}, {"question": 3}, {"question": None}, {"choices": "45"},
        {"choices": ["4"]}, {"choices": []}, {"choices": ["4", 5]}, {"choices": ["4", " "]},
        {"answer": 2}, {"answer": -1}, {"answer": "4"}, {"answer": True}, {"answer": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_question_is_named(write, change):
    bad = json.dumps(json.loads(GOOD) | change)
    with pytest.raises(ConfigError, match=r"each line of --choices must hold .* in line 2 of"):
        read_questions(write(f"{GOOD}\n{bad}\n"))


@pytest.mark.parametrize("content", ["", " \n\t\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_an_empty_file_is_refused(write, content, name):
    with pytest.raises(ConfigError, match="which is empty"):
        read_documents(write(content, name))
    with pytest.raises(ConfigError, match="which is empty"):
        read_questions(write(content, name))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a\x80"])
def test_a_file_that_is_no_text_is_refused(write, content):
    with pytest.raises(ConfigError, match="must be a file of UTF-8 text"):
        read_documents(write(content, "a.txt"))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="must be a file of UTF-8 text"):
            read_documents(path)
