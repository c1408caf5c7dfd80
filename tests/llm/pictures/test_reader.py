"""Pictures read for a model: in a process of its own, within memory and time, in turn."""

import asyncio
import base64
import gc
import os
import signal
import time
import weakref
from contextlib import closing
from urllib.parse import urlsplit

import pytest

pytest.importorskip("PIL")

from quire.core.errors import CapacityError, RequestError
from quire.core.model.vision_config import PictureShape, VisionConfig, Writing
from quire.llm.pictures import reader as reading
from quire.llm.pictures.decoding import decode
from quire.llm.pictures.reader import PictureReader
from quire.llm.pictures.sources import PictureSource
from quire.settings.config import ModelOptions
from quire.system.sandboxes import Sandbox
from tools.hostile_pictures import HOSTILE, picture

EDGE = 28
SHAPE = PictureShape(EDGE, EDGE, shortest_edge=EDGE)
VISION = VisionConfig(
    kind="clip",
    hidden_size=8,
    num_layers=1,
    num_heads=1,
    intermediate_size=8,
    image_size=EDGE,
    patch_size=7,
    activation="gelu",
    norm_eps=1e-5,
    num_stored_layers=1,
    writing=Writing(5, 5),
    input=SHAPE,
    drops_class_token=True,
)


def source(data, where="x"):
    return PictureSource(where, f"data:image/png;base64,{base64.b64encode(data).decode()}")


def _only(made):
    """Return the pixels of a picture that was read or decoded."""
    (part,) = made.parts
    return getattr(part, "pixels", part)


@pytest.fixture(scope="module")
def reader():
    with closing(PictureReader(VISION, ModelOptions())) as made:
        yield made


def test_a_picture_is_read(reader):
    data = picture()
    read = [reader.read_now(source(one)) for one in (data, data, picture(seed=1))]
    token_ids, placed = reader.place([1, 5, 2, 5, 5], read)
    first, again, other = placed
    assert token_ids == [1, *[5] * 16, 2, *[5] * 32]
    assert first.pixels == decode(data, SHAPE).parts[0].data
    assert (first.height, first.width, first.num_tokens, again.start) == (EDGE, EDGE, 16, 18)
    assert first.key == again.key != other.key
    assert first.range_key.key == again.range_key.key
    assert (again.range_key.start, again.range_key.stop) == (18, 34)


def test_hostile_pictures_are_refused_and_memory_stays(reader):
    """All in one process: it is there after them, and not larger than a picture may make it."""
    with pytest.raises(RequestError):
        reader.read_now(source(b""))
    sandbox = reader._sandboxes._take()
    reader._sandboxes._give_back(sandbox)
    for _ in range(3):
        for name, (data, reason) in HOSTILE.items():
            if reason is None:
                reader.read_now(source(data, name))
                continue
            with pytest.raises(RequestError, match=reason) as caught:
                reader.read_now(source(data, name))
            assert caught.value.param == name
    assert sandbox.is_alive
    with open(f"/proc/{sandbox.pid}/status") as file:
        (peak,) = [int(line.split()[1]) for line in file if line.startswith("VmHWM")]
    assert peak < 400 * 1024, f"{peak} kB"


def test_a_decoder_that_dies_costs_no_request_a_refusal(reader, monkeypatch):
    killed, ask = [], Sandbox.ask

    def dying(self, message, seconds):
        if len(killed) < times:
            killed.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)
        return ask(self, message, seconds)

    monkeypatch.setattr(Sandbox, "ask", dying)
    times = 1
    assert _only(reader.read_now(source(picture()))) == _only(decode(picture(), SHAPE))
    killed.clear()
    times = 2
    with pytest.raises(RequestError, match=r"decoder ended \(killed by SIGKILL\)"):
        reader.read_now(source(picture()))
    assert len(set(killed)) == 2
    assert _only(reader.read_now(source(picture()))) == _only(decode(picture(), SHAPE))


def test_a_decoder_that_takes_too_long_is_ended(reader, monkeypatch):
    ask = Sandbox.ask

    def stopped(self, message, seconds):
        os.kill(self.pid, signal.SIGSTOP)
        return ask(self, message, 0.05)

    with monkeypatch.context() as patched:
        patched.setattr(Sandbox, "ask", stopped)
        with pytest.raises(RequestError, match="be decoded within"):
            reader.read_now(source(picture()))
    assert reader.read_now(source(picture())).parts


def test_the_pixels_of_all_requests_have_room_together(reader, monkeypatch):
    gc.collect()
    assert reader._num_bytes == 0
    monkeypatch.setattr(reading, "MAX_LIVE_BYTES", 3 * EDGE * EDGE)
    kept = reader.read_now(source(picture()))
    with pytest.raises(CapacityError, match="Try again"):
        reader.read_now(source(picture()))
    del kept
    with pytest.raises(RequestError):
        reader.read_now(source(b""))  # has given back what it took
    assert reader.read_now(source(picture())).parts


def test_a_prompt_has_at_most_that_many_pictures():
    sources = [source(picture(), f"x[{number}]") for number in range(3)]
    with closing(PictureReader(VISION, ModelOptions(limit_mm_per_prompt="image=2"))) as made:
        made.check_count(sources[:2])
        with pytest.raises(RequestError, match="must be at most 2") as caught:
            made.check_count(sources)
        assert caught.value.param == "x[2]"


async def test_pictures_of_a_prompt_are_read_in_order(reader):
    files = [picture(seed=number) for number in range(6)]
    found = await reader.read([source(data) for data in files])
    assert list(map(_only, found)) == [_only(decode(data, SHAPE)) for data in files]
    with pytest.raises(RequestError, match=r"\[b\]"):
        await reader.read([source(files[0], "a"), source(b"", "b"), source(b"", "c")])


async def test_a_request_does_not_wait_beyond_its_deadline(reader):
    with pytest.raises(RequestError, match="within the request's time"):
        await reader.read([source(picture())], deadline=0.0)


class Url(str):
    """A text that may be watched."""


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,AAAA", "data:image/png;base64,A", "file:///etc/passwd", "a" * 9000],
)
def test_what_was_refused_is_let_go_at_once(tmp_path, url):
    """The refusal held its traceback's frames, these the request, and one of them the refusal:
    megabytes of each stayed until the collector of cycles came."""
    options = ModelOptions(allowed_local_media_path=str(tmp_path))

    async def ask():
        sent = Url(url)
        with pytest.raises(RequestError):
            await made.read([PictureSource("x", sent)])
        return weakref.ref(sent)

    gc.disable()
    try:
        with closing(PictureReader(VISION, options)) as made:
            sent, end = asyncio.run(ask()), time.monotonic() + 60
            urlsplit.cache_clear()
            while sent() is not None:  # its thread may hold it a moment longer
                assert time.monotonic() < end
                time.sleep(0.01)
    finally:
        gc.enable()
