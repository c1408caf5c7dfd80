"""How many pictures a prompt may have."""

import pytest

from quire.core.errors import ConfigError
from quire.settings.config import EngineConfig
from quire.settings.picture_settings import parse_pictures_per_prompt


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (None, None),
        ("image=4", 4),
        (" image = 4 ", 4),
        ('{"image": 0}', 0),
        ('{"image": 3, "video": 0}', 3),
        ("image=2,audio=0", 2),
        ("video=0", None),
    ],
)
def test_what_vllm_takes_is_taken(text, most):
    assert parse_pictures_per_prompt(text) == most
    assert EngineConfig.from_keywords(limit_mm_per_prompt=text).model.pictures_per_prompt() == most


def test_python_gives_it_as_an_object():
    assert (
        EngineConfig.from_keywords(limit_mm_per_prompt={"image": 4}).model.pictures_per_prompt()
        == 4
    )


@pytest.mark.parametrize(
    "text", ["", "4", "image", "image=", "image=-1", "image=x", '{"image": true}', "[]", "{}"]
)
def test_what_is_no_count_is_refused(text):
    with pytest.raises(ConfigError, match="must be image=N"):
        parse_pictures_per_prompt(text)


def test_other_kinds_are_not_available():
    with pytest.raises(ConfigError, match="texts and pictures here; got video"):
        parse_pictures_per_prompt("image=1,video=2")
