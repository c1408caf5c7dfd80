"""Families that read pictures, through a server: transformers' prompts and its greedy tokens."""

import base64

import pytest

pytest.importorskip("PIL")

from quire.settings.config import EngineConfig
from tests.picture_families import FAMILIES, greedy
from tests.server.conftest import serve_live
from tests.sizes import sized
from tools.hostile_pictures import picture

#: After most prompts an answer of these goes on in another block of the cache.
NUM_TOKENS = sized(12, 24)
SIZES = [(40, 30), (90, 31), (33, 170), (200, 200), (300, 90)]
FILES = [picture(size=size, seed=seed) for seed, size in enumerate(SIZES)]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """A family."""
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def checkpoint(family, tmp_path_factory):
    """A model and its folder."""
    folder = tmp_path_factory.mktemp("family") / "tiny"
    folder.mkdir()
    return family.write(folder), folder


@pytest.fixture(scope="module")
def create(checkpoint, device):
    """Return a function that serves the checkpoint, in a block."""

    def serve(**more):
        settings = {
            "model": str(checkpoint[1]), "device": device, "memory": 128 * 2**20, "threads": 1,
            "served_model_name": "tiny", "max_num_seqs": 16,
        }  # fmt: skip
        return serve_live(EngineConfig.from_keywords(**settings | more))

    return serve


@pytest.fixture(scope="module")
def live(create):
    """One server for all tests of a family."""
    with create() as made:
        yield made


@pytest.fixture(scope="module")
def wanted(family, checkpoint):
    """Return a function that gives transformers' prompt and answer."""
    model, folder = checkpoint
    processor = family.create_processor(folder)

    def answer(*parts):
        shown = [part if isinstance(part, str) else None for part in parts]
        content = [
            {"type": "image"} if text is None else {"type": "text", "text": text} for text in shown
        ]
        files = [part for part in parts if not isinstance(part, str)]
        messages = [{"role": "user", "content": content}]
        return greedy(model, processor, messages, files, NUM_TOKENS)

    return answer


def conversation(*parts):
    """Return messages of texts and of files that are pictures."""
    content = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            url = f"data:image/png;base64,{base64.b64encode(part).decode()}"
            content.append({"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": content}]


def ask(live, *parts, **fields):
    """Return the prompt's tokens, the answer's and the usage."""
    body = {
        "messages": conversation(*parts), "temperature": 0, "max_tokens": NUM_TOKENS,
        "ignore_eos": True, "return_token_ids": True, **fields,
    }  # fmt: skip
    answer = live.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["prompt_token_ids"], found["choices"][0]["token_ids"], found["usage"]


CONVERSATIONS = {
    "one": (FILES[0], "Which colour?"),
    "after a text": ("What is\n", FILES[1]),
    "high": (FILES[2], "\n\nso?"),
    "several": (FILES[0], "and", FILES[1], FILES[2], "differ: how\nfar?"),
    "large": ("a ", FILES[3], " b ", FILES[4], " c"),
    "the same": (FILES[4], FILES[4]),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_and_answers_are_those_of_transformers(live, wanted, name):
    parts = CONVERSATIONS[name]
    prompt, tokens = wanted(*parts)
    got = ask(live, *parts)
    assert got[0] == prompt
    assert got[1] == tokens


@pytest.mark.parametrize(
    "setting",
    [
        {"max_num_batched_tokens": 48},
        {"enable_prefix_caching": False},
        {"block_size": 32},
        {"speculative_config": '{"method": "ngram"}'},
    ],
)
def test_parts_of_a_prompt_change_nothing(live, create, setting):
    asked = [CONVERSATIONS[name] for name in sized(("several", "large"), [*CONVERSATIONS])]
    want = [ask(live, *parts)[1] for parts in asked]
    with create(**setting) as other:
        assert [ask(other, *parts)[1] for parts in asked] == want


def test_an_answer_does_not_depend_on_its_company(live):
    from concurrent.futures import ThreadPoolExecutor

    live.http.post("/reset_prefix_cache")
    asked = [*CONVERSATIONS.values(), ("no picture",), ("again no picture, and a longer text",)]
    with ThreadPoolExecutor(len(asked)) as threads:
        together = list(threads.map(lambda parts: ask(live, *parts)[1], asked))
    assert [ask(live, *parts, cache_salt="alone")[1] for parts in asked] == together
    live.wait_until_idle()


def test_blocks_are_found_by_what_pictures_show(live, family):
    live.http.post("/reset_prefix_cache")

    def cached(*parts):
        prompt, tokens, usage = ask(live, *parts)
        return usage["prompt_tokens_details"]["cached_tokens"], prompt, tokens

    found, prompt, want = cached(FILES[3], "a", FILES[2], "b" * 40)
    assert found == 0
    found, _, tokens = cached(FILES[3], "a", FILES[2], "b" * 40)
    assert (len(prompt) - found <= 16, tokens) == (True, want)
    first, last = prompt.index(row := family.ids[family.row]), len(prompt) - prompt[::-1].index(row)
    # What follows the last picture differs: the rest of its last block is computed anew.
    found, _, tokens = cached(FILES[3], "a", FILES[2], "c" * 40)
    assert last - 16 < found <= last + 16
    assert tokens == ask(live, FILES[3], "a", FILES[2], "c" * 40, cache_salt="other")[1]
    assert cached(FILES[2], "a", FILES[2], "b" * 40)[0] <= first


def test_a_fork_and_an_openai_client(live, wanted):
    parts = CONVERSATIONS["several"]
    prompt, tokens = wanted(*parts)
    answer = live.openai.chat.completions.create(
        model="tiny", messages=conversation(*parts), temperature=0, max_tokens=NUM_TOKENS, n=2,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    assert answer.usage.prompt_tokens == len(prompt)
    assert [choice.token_ids for choice in answer.choices] == [tokens, tokens]
    counted = live.http.post("/tokenize", json={"messages": conversation(*parts)}).json()
    assert counted["tokens"] == prompt
