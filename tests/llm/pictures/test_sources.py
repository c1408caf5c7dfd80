"""Pictures in data URLs and files, and what is none."""

import base64
import os

import pytest

from quire.core.errors import ConfigError, RequestError
from quire.llm.pictures.fetch import MAX_BYTES
from quire.llm.pictures.sources import (
    DECODED_TOGETHER,
    PictureSource,
    SourceRules,
    picture_sources,
)


def read(url, allowed_domains=(), allowed_path=None):
    return SourceRules(allowed_domains, allowed_path).read(PictureSource("x", url))


def test_data_urls_are_decoded():
    data = base64.b64encode(b"picture").decode()
    assert read(f"data:image/png;base64,{data}") == b"picture"
    assert read(f"DATA:Image/PNG;name=a.png;BASE64,{data}") == b"picture"


@pytest.mark.parametrize("more", range(4))
def test_long_data_urls_are_decoded_in_parts(more):
    data = os.urandom(DECODED_TOGETHER + more)
    text = base64.b64encode(data).decode()
    assert read(f"data:image/png;base64,{text}") == data
    middle = f"{text[: DECODED_TOGETHER - 1]}={text[DECODED_TOGETHER:]}"
    with pytest.raises(RequestError, match="must be base64"):
        read(f"data:image/png;base64,{middle}")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64,%%%", "must be base64"),
        ("data:image/png;base64,abc", "must be base64"),
        ("data:image/png;base64,YQ== YQ==", "must be base64"),
        ("data:image/png;base64,ä", "must be base64"),
        ("data:image/png,abc", "must be data:image"),
        ("data:image/png;base64", "must be data:image"),
        ("data:", "must be data:image"),
        ("data:text/html;base64,YQ==", "of a type image"),
        ("data:;base64,YQ==", "of a type image"),
        ("http://example.com/a.png", "not fetched from the web here"),
        ("https://example.com/a.png", "not fetched from the web here"),
        ("file:///etc/passwd", "not read from files here"),
        ("ftp://example.com/a.png", "must begin with data:"),
        ("/etc/passwd", "must begin with data:"),
        ("javascript:alert(1)", "must begin with data:"),
        ("", "must begin with data:"),
        ("YQ==", "must begin with data:"),
    ],
)
def test_what_is_no_picture_or_not_allowed_is_refused(url, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        read(url)
    assert caught.value.param == "x"
    assert len(str(caught.value)) < 200


def test_a_data_url_that_is_too_long_is_not_decoded():
    with pytest.raises(RequestError, match=f"at most {MAX_BYTES} bytes"):
        read("data:image/png;base64," + "A" * (MAX_BYTES * 4 // 3 + 8))


def test_files_of_the_folder_are_read_and_no_others(tmp_path):
    folder, outside = tmp_path / "pictures", tmp_path / "secret.png"
    (folder / "more").mkdir(parents=True)
    (folder / "a b.png").write_bytes(b"picture")
    (folder / "more" / "c.png").write_bytes(b"other")
    outside.write_bytes(b"secret")
    (folder / "link.png").symlink_to(outside)
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder / "inside.png").symlink_to(folder / "a b.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "large.png").touch()
    os.truncate(folder / "large.png", MAX_BYTES + 1)
    path = str(folder)
    assert read(f"file://{folder}/a%20b.png", (), path) == b"picture"
    assert read(f"file://localhost{folder}/more/../more/c.png", (), path) == b"other"
    assert read(f"file://{folder}/inside.png", (), path) == b"picture"
    refused = [
        f"file://{outside}", f"file://{folder}/../secret.png", f"file://{folder}/link.png",
        f"file://{folder}/%2e%2e/secret.png", f"file://{folder}/loop.png",
        f"file://{folder}/pipe.png", f"file://{folder}/large.png", f"file://{folder}/more",
        f"file://{folder}/none.png", "file:///etc/passwd", f"file://other{folder}/a%20b.png",
        "file:///dev/zero", f"file://{folder}/a%00.png", f"file://{folder}s/a.png", "file://",
    ]  # fmt: skip
    reasons = set()
    for url in refused:
        with pytest.raises(RequestError) as caught:
            read(url, (), path)
        reasons.add(str(caught.value))
    # No client learns which files there are elsewhere.
    assert len(reasons) == 1


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be a folder"):
        SourceRules((), str(tmp_path / "none"))


def test_pictures_are_found_in_order():
    messages = [
        ("messages[0].content", "text"),
        ("messages[1].content", None),
        (
            "messages[2].content",
            [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:1", "detail": "low"}},
                {"type": "image_url", "image_url": "data:2"},
                {"type": "input_image", "image_url": "data:3"},
                "no part",
            ],
        ),
    ]
    assert picture_sources(messages) == [
        PictureSource(f"messages[2].content[{number}].image_url", f"data:{number}")
        for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("value", [None, 5, {}, {"url": None}, {"url": ["a"]}, ["a"]])
def test_a_picture_without_a_url_is_refused(value):
    with pytest.raises(RequestError, match=r"\[m\[0\]\.image_url\] must hold a URL"):
        picture_sources([("m", [{"type": "image_url", "image_url": value}])])
