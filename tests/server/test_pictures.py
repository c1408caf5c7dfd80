"""Pictures through the APIs: a tiny LLaVA against transformers, and what is refused."""

import base64
import io

import httpx2
import pytest

pytest.importorskip("PIL")

from PIL import Image

from quire import LLM, SamplingParams
from quire.settings.config import EngineConfig
from tests.llm.pictures.test_fetch import page, redirect, web
from tests.server.conftest import Live, serve_live
from tests.servers import start_server
from tools.hostile_pictures import HOSTILE, picture, plain
from tools.random_checkpoint import PICTURE, PRESETS, random_checkpoint

NUM_TOKENS = 24
TEXT = {"type": "text", "text": "Which colour?"}


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    """A checkpoint of random weights that reads pictures."""
    path = tmp_path_factory.mktemp("llava") / "tiny-llava"
    random_checkpoint(path, PRESETS["tiny-llava"])
    return path


@pytest.fixture(scope="module")
def settings(llava, device):
    """Settings of an engine on it."""
    return {"model": str(llava), "device": device, "memory": 128 * 2**20, "threads": 1}


@pytest.fixture(scope="module")
def create(settings):
    """Return a function that serves the checkpoint, in a block."""

    def serve(**more):
        config = EngineConfig.from_keywords(**settings, served_model_name="llava", **more)
        return serve_live(config)

    return serve


@pytest.fixture(scope="module")
def live(create):
    """One server for all tests."""
    with create() as made:
        yield made


def url_of(data):
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def part_of(data):
    return {"type": "image_url", "image_url": {"url": url_of(data)}}


def conversation(*parts):
    return [{"role": "user", "content": list(parts)}]


def ask(live, messages, **fields):
    """Return the answer's tokens, and the usage."""
    body = {
        "messages": messages, "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True,
        "return_token_ids": True, **fields,
    }  # fmt: skip
    answer = live.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"][0]["token_ids"], found


def refused(live, *parts, path="/v1/chat/completions", **body):
    answer = live.http.post(path, json=body or {"messages": conversation(*parts)})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.fixture(scope="module")
def wanted(llava):
    """Return a function that gives transformers' answer to a prompt and its pictures' files."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    module = pytest.importorskip("transformers.models.clip.image_processing_pil_clip")
    model = transformers.LlavaForConditionalGeneration.from_pretrained(llava).float().eval()
    processor = module.CLIPImageProcessorPil.from_pretrained(llava)

    def answer(prompt, files):
        images = [Image.open(io.BytesIO(data)) for data in files]
        pixels = processor(images, return_tensors="pt")["pixel_values"]
        found = []
        with torch.no_grad():
            for _ in range(NUM_TOKENS):
                ids = torch.tensor([[*prompt, *found]])
                logits = model(input_ids=ids, pixel_values=pixels).logits
                found.append(int(logits[0, -1].argmax()))
        return found

    return answer


FILES = [picture(), picture("RGBA", (90, 31), 1), picture(size=(33, 70), seed=2, format="JPEG")]


@pytest.mark.parametrize("files", [FILES[:1], FILES, [FILES[0], FILES[0]]])
def test_answers_are_those_of_transformers(live, wanted, files):
    parts = [part_of(data) for data in files]
    tokens, answer = ask(live, conversation(*parts, TEXT), return_token_ids=True)
    prompt = answer["prompt_token_ids"]
    assert prompt.count(PICTURE) == 16 * len(files)
    assert tokens == wanted(prompt, files)
    other, _ = ask(live, conversation(part_of(FILES[1]), *parts[1:], TEXT))
    assert other != tokens


@pytest.mark.parametrize(
    "setting", [{"max_num_batched_tokens": 7}, {"enable_prefix_caching": False}]
)
def test_prompts_cut_inside_a_picture_change_nothing(live, create, setting):
    messages = conversation(*map(part_of, FILES), TEXT)
    want, _ = ask(live, messages)
    with create(**setting) as other:
        assert ask(other, messages)[0] == want


def test_blocks_are_shared_by_what_pictures_show(live):
    live.http.post("/reset_prefix_cache")

    def cached(*parts):
        _, answer = ask(live, conversation(*parts))
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    one, other = part_of(picture(seed=10)), part_of(picture(seed=11))
    assert cached(one, one, TEXT) == 0
    # The template writes the role before the pictures: 16 rows begin in the first block.
    assert cached(one, one, TEXT) >= 32
    assert cached(other, one, TEXT) == 0
    assert 16 <= cached(one, other, TEXT) < 48
    # The same pixels in another file.
    image = Image.open(io.BytesIO(picture(seed=10)))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    assert cached(part_of(file.getvalue()), one, TEXT) >= 32


def test_a_picture_is_encoded_once(live):
    live.http.post("/reset_prefix_cache")
    before = live.metric("quire:mm_cache_queries_total"), live.metric("quire:mm_cache_hits_total")
    one = part_of(picture(seed=20))
    ask(live, conversation(one, one, TEXT))
    ask(live, conversation({"type": "text", "text": "Again?"}, one), cache_salt="other")
    after = live.metric("quire:mm_cache_queries_total"), live.metric("quire:mm_cache_hits_total")
    assert (after[0] - before[0], after[1] - before[1]) == (3, 2)


def test_real_clients_ask(live):
    messages = conversation(TEXT, part_of(FILES[0]))
    want, answer = ask(live, messages)
    completion = live.openai.chat.completions.create(
        model="llava", messages=messages, temperature=0, max_tokens=NUM_TOKENS,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert completion.choices[0].message.content == answer["choices"][0]["message"]["content"]
    assert completion.usage.prompt_tokens == len(answer["prompt_token_ids"])
    content = [
        {"type": "input_text", "text": TEXT["text"]},
        {"type": "input_image", "image_url": url_of(FILES[0]), "detail": "auto"},
    ]
    response = live.openai.responses.create(
        model="llava", input=[{"role": "user", "content": content}], temperature=0,
        max_output_tokens=NUM_TOKENS, extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert response.output_text == answer["choices"][0]["message"]["content"]
    (item,) = live.openai.responses.input_items.list(response.id).data
    assert [part.type for part in item.content] == ["input_text", "input_image"]
    assert item.content[1].image_url == url_of(FILES[0])
    following = live.openai.responses.create(
        model="llava", input="And now?", previous_response_id=response.id, temperature=0,
        max_output_tokens=4, extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert following.usage.input_tokens > response.usage.input_tokens


def test_an_engine_in_a_process_of_its_own_gets_pictures(live, llava, device):
    flags = ["--device", device, "--memory", "128MiB", "--threads", "1"]
    limit = ["--limit-mm-per-prompt", "image=1"]
    messages = conversation(part_of(FILES[0]), TEXT)
    want, _ = ask(live, messages)
    with (
        start_server([str(llava), *flags, *limit]) as server,
        httpx2.Client(base_url=server.wait_ready(), timeout=60) as http,
    ):
        served = Live(server.address, http, live.openai, live.service)
        assert ask(served, messages)[0] == want
        assert served.metric("quire:mm_cache_queries_total") == 1
        assert "must be at most 1" in refused(served, *[part_of(FILES[0])] * 2)["message"]


def test_other_apis_take_pictures(live):
    data = base64.b64encode(FILES[0]).decode()
    want, answer = ask(live, conversation(part_of(FILES[0]), TEXT))
    text = answer["choices"][0]["message"]["content"]
    sampling = {"temperature": 0, "num_predict": NUM_TOKENS}
    messages = [{"role": "user", "content": TEXT["text"], "images": [data]}]
    body = {"model": "llava", "stream": False, "options": sampling}
    found = live.http.post("/api/chat", json={**body, "messages": messages}).json()
    assert text.startswith(found["message"]["content"]) and found["message"]["content"]
    found = live.http.post("/api/generate", json={**body, "prompt": TEXT["text"], "images": [data]})
    assert text.startswith(found.json()["response"]) and found.json()["response"]
    assert "vision" in live.http.post("/api/show", json={"model": "llava"}).json()["capabilities"]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, TEXT]
    body = {"model": "llava", "max_tokens": NUM_TOKENS, "temperature": 0}
    body["messages"] = [{"role": "user", "content": content}]
    found = live.http.post("/v1/messages", json=body).json()
    assert text.startswith(found["content"][0]["text"]) and found["content"][0]["text"]
    counted = live.http.post("/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] == len(answer["prompt_token_ids"])
    for wrong in ({"type": "file", "file_id": "a"}, {**source, "data": "%"}):
        body["messages"] = [{"role": "user", "content": [{"type": "image", "source": wrong}]}]
        error = live.http.post("/v1/messages", json=body)
        assert error.status_code == 400
        assert "messages[0].content[0].source" in error.json()["error"]["message"]


def test_python_reads_pictures(live, settings, tmp_path):
    (tmp_path / "a.png").write_bytes(FILES[0])
    want, _ = ask(live, conversation(part_of(FILES[0]), TEXT))
    keywords = {name: value for name, value in settings.items() if name != "model"}
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(settings["model"], allowed_local_media_path=tmp_path, **keywords) as llm:
        for url in (url_of(FILES[0]), f"file://{tmp_path}/a.png"):
            messages = conversation({"type": "image_url", "image_url": {"url": url}}, TEXT)
            (output,) = llm.chat(messages, params)
            assert list(output.outputs[0].token_ids) == want


def test_a_conversation_s_tokens_are_counted_with_its_pictures(live):
    messages = conversation(part_of(FILES[0]), TEXT)
    _, answer = ask(live, messages)
    counted = live.http.post("/tokenize", json={"messages": messages}).json()
    assert counted["tokens"] == answer["prompt_token_ids"]


@pytest.mark.parametrize("name", [name for name, (_, reason) in HOSTILE.items() if reason])
def test_hostile_pictures_are_refused_with_their_reason(live, name):
    error = refused(live, TEXT, part_of(HOSTILE[name][0]))
    assert "a picture must" in error["message"]
    assert error["param"] == "messages[0].content[1].image_url"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/a.png", "--allowed-media-domains"),
        ("http://169.254.169.254/latest/meta-data/", "--allowed-media-domains"),
        ("file:///etc/passwd", "--allowed-local-media-path"),
        ("data:image/png;base64,%%%", "base64"),
        ("data:text/plain;base64,YQ==", "image/"),
        ("gopher://127.0.0.1/", "begin with data:"),
        (7, "must hold a URL"),
        (None, "must hold a URL"),
    ],
)
def test_urls_that_are_not_allowed_are_refused(live, url, reason):
    error = refused(live, {"type": "image_url", "image_url": {"url": url}})
    assert reason in error["message"]
    assert error["param"] == "messages[0].content[0].image_url"


def test_only_allowed_hosts_are_fetched_from(create):
    with web(lambda path: page(b"secret")) as secret:
        answers = {"/a.png": page(FILES[0]), "/b.png": redirect(f"http://{secret.host}/")}
        with web(answers.__getitem__) as server, create(allowed_media_domains=server.host) as live:
            part = {"type": "image_url", "image_url": {"url": f"http://{server.host}/a.png"}}
            assert ask(live, conversation(part))[0] == ask(live, conversation(part_of(FILES[0])))[0]
            for url in (f"http://{server.host}/b.png", f"http://{secret.host}/"):
                error = refused(live, {"type": "image_url", "image_url": {"url": url}})
                assert "--allowed-media-domains" in error["message"]
            assert server.paths == ["/a.png", "/b.png"]
        assert secret.paths == []


def test_a_prompt_has_at_most_so_many_pictures(create):
    part = part_of(plain((3, 3)))
    with create(limit_mm_per_prompt="image=4") as live:
        ask(live, conversation(*[part] * 4))
        error = refused(live, *[part] * 5)
        assert "must be at most 4 (--limit-mm-per-prompt); got 5" in error["message"]
        assert error["param"] == "messages[0].content[4].image_url"


def test_more_pictures_than_the_context_holds_are_not_read(live):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}
    error = refused(live, *[part] * 200)
    assert "maximum context length" in error["message"]


def test_a_text_that_spells_the_placeholder_is_text(live):
    tokens, answer = ask(live, conversation({"type": "text", "text": "<image>"}, part_of(FILES[0])))
    assert answer["prompt_token_ids"].count(PICTURE) == 16
    _, answer = ask(live, [{"role": "user", "content": "<image>"}])
    assert PICTURE not in answer["prompt_token_ids"]


def test_placeholders_that_are_not_pictures_are_refused(create):
    with create(allow_special_tokens_in_content=True) as live:
        error = refused(live, {"type": "text", "text": "<image>"}, part_of(FILES[0]))
        assert "must show each picture of the conversation, which has 1" in error["message"]


def test_a_template_of_text_gets_placeholders(create, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    with create(chat_template=str(path)) as live:
        _, answer = ask(live, conversation(TEXT, part_of(FILES[0])))
        prompt = answer["prompt_token_ids"]
        first = prompt.index(PICTURE)
        assert prompt[first : first + 16] == [PICTURE] * 16
        assert bytes(prompt[:first]) and len(prompt) > 16 + len(TEXT["text"])


def test_an_answer_does_not_depend_on_its_company(live):
    from concurrent.futures import ThreadPoolExecutor

    live.http.post("/reset_prefix_cache")
    conversations = [
        conversation(part_of(picture(seed=30 + number // 2)), TEXT) for number in range(6)
    ] + [[{"role": "user", "content": "no picture"}]]
    with ThreadPoolExecutor(len(conversations)) as threads:
        together = list(threads.map(lambda one: ask(live, one)[0], conversations))
    assert [ask(live, one, cache_salt="alone")[0] for one in conversations] == together
    live.wait_until_idle()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_model_of_text_refuses_pictures(client, path):
    if path.endswith("responses"):
        part = {"type": "input_image", "image_url": url_of(FILES[0])}
        body = {"input": [{"role": "user", "content": [part]}]}
    else:
        body = {"messages": conversation(part_of(FILES[0]))}
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert "his model takes text only" in answer.json()["error"]["message"]
