"""Content hashes: equal only for equal tokens, prefix and keys."""

from __future__ import annotations

import pytest

from quire.engine.cache.block_hash import ROOT_HASH, hash_block


def test_equal_content_gives_equal_hashes():
    assert hash_block(ROOT_HASH, [1, 2, 3]) == hash_block(ROOT_HASH, (1, 2, 3))
    assert len(hash_block(ROOT_HASH, [1])) == 32


@pytest.mark.parametrize(
    "other",
    [
        hash_block(ROOT_HASH, [1, 2, 4]),
        hash_block(ROOT_HASH, [2, 1, 3]),
        hash_block(ROOT_HASH, [1, 2]),
        hash_block(hash_block(ROOT_HASH, [0]), [1, 2, 3]),
        hash_block(ROOT_HASH, [1, 2, 3], ("salt:a",)),
        hash_block(ROOT_HASH, [1, 2, 3], ("",)),
    ],
)
def test_any_difference_changes_the_hash(other):
    assert hash_block(ROOT_HASH, [1, 2, 3]) != other


def test_keys_of_one_length_are_told_apart():
    salted = hash_block(ROOT_HASH, [1, 2, 3], ("salt:a",))
    assert salted != hash_block(ROOT_HASH, [1, 2, 3], ("salt:b",))


def test_keys_cannot_be_shifted_into_each_other_or_into_tokens():
    """Length prefixes: joined text would make these pairs collide."""
    assert hash_block(ROOT_HASH, [1], ("ab", "c")) != hash_block(ROOT_HASH, [1], ("a", "bc"))
    assert hash_block(ROOT_HASH, [1], ("ab",)) != hash_block(ROOT_HASH, [1], ("a", "b"))
    as_text = (1).to_bytes(8, "little").decode("latin-1")
    assert hash_block(ROOT_HASH, [], (as_text,)) != hash_block(ROOT_HASH, [1])


def test_key_with_lone_surrogate_is_hashed():
    assert hash_block(ROOT_HASH, [1], ("\udc80",)) != hash_block(ROOT_HASH, [1], ("?",))
