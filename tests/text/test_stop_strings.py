"""Stop strings are found across any borders, exactly where a plain search finds them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.stop_strings import StopStrings
from tests.python_lines import lines_run
from tests.text.stop_strings_oracle import SeparateSearches

few_letters = st.text(alphabet="ab.", max_size=30)
stops = st.lists(st.text(alphabet="ab.", min_size=1, max_size=5), min_size=1, max_size=4)
#: Texts whose parts are shared, nested, equal, and outside of the first 16 bits.
any_stops = st.lists(
    st.text(alphabet="ab\n🙂\ud800", min_size=1, max_size=6), min_size=1, max_size=9
)
any_chunks = st.lists(st.tuples(st.text(alphabet="ab\n🙂\ud800", max_size=9), st.booleans()))


def search(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """Do the same on the whole text, the plain way."""
    for end in range(1, len(text) + 1):
        for candidate in stop:
            if text[:end].endswith(candidate):
                return text[: end if include else end - len(candidate)], candidate
    return text, None


def feed(finder: StopStrings, chunks: list[str]) -> list[str]:
    shown = [finder.add(chunk) for chunk in chunks]
    return shown if finder.matched else [*shown, finder.flush()]


@settings(max_examples=500, deadline=None)
@given(chunks=st.lists(few_letters, max_size=8), stop=stops, include=st.booleans())
def test_equals_a_search_of_the_whole_text(chunks, stop, include):
    finder = StopStrings(stop, include)
    shown = "".join(feed(finder, chunks))
    assert (shown, finder.matched) == search("".join(chunks), stop, include)


@settings(max_examples=500, deadline=None)
@given(early=few_letters, chunks=st.lists(few_letters, max_size=4), stop=stops)
def test_what_early_text_completes_does_not_end_it(early, chunks, stop):
    finder = StopStrings(stop)
    shown = finder.add(early, may_end=False) + "".join(feed(finder, chunks))
    text = early + "".join(chunks)
    for end in range(len(early) + 1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            assert finder.matched == found[0]
            assert shown == text[: end - len(found[0])]
            return
    assert (shown, finder.matched) == (text, None)


@settings(max_examples=300, deadline=None)
@given(text=few_letters, stop=stops)
def test_holds_back_only_what_could_become_a_stop_string(text, stop):
    finder, shown = StopStrings(stop), ""
    for count, character in enumerate(text, start=1):
        shown += finder.add(character)
        if finder.matched:
            break
        held = text[len(shown) : count]
        assert not held or any(s.startswith(held) for s in stop)


@settings(max_examples=500, deadline=None)
@given(chunks=any_chunks, stop=any_stops, include=st.booleans())
def test_equals_a_search_for_each_stop_string(chunks, stop, include):
    """What is shown and held back after each chunk, and which is found where several might be."""
    first, oracle = StopStrings(stop, include), SeparateSearches(stop, include)
    finder = first.for_sequence()
    first.add("".join(stop))  # of another sequence
    for text, may_end in chunks:
        assert finder.add(text, may_end) == oracle.add(text, may_end)
        assert finder.matched == oracle.matched
    assert finder.flush() == oracle.flush()


@pytest.mark.parametrize(
    ("stop", "text", "shown", "matched"),
    [
        (["\n\n"], "one\n\ntwo", "one", "\n\n"),
        (["STOP"], "no SSTOP", "no S", "STOP"),
        (["abcd", "bc"], "abcd", "a", "bc"),  # bc is complete first.
        (["b", "ab"], "ab", "a", "b"),  # Both end here: the first listed.
        (["ab", "b"], "ab", "", "ab"),
        (["aab"], "aaab", "a", "aab"),
        (["é"], "caf\u00e9", "caf", "é"),
        (["x"], "no such letter", "no such letter", None),
    ],
)
def test_examples(stop, text, shown, matched):
    finder = StopStrings(stop)
    assert "".join(feed(finder, list(text))) == shown
    assert finder.matched == matched


def test_nothing_is_shown_after_the_match():
    finder = StopStrings(["."])
    assert (finder.add("a.b"), finder.add("c"), finder.flush()) == ("a", "", "")


def test_long_stop_strings_cost_no_more():
    # Quadratic work would take minutes here.
    finder = StopStrings(["a" * 20_000 + "b"])
    shown = "".join(finder.add("a") for _ in range(40_000))
    assert (len(shown), len(finder.flush())) == (20_000, 20_000)


def test_a_text_costs_the_same_with_a_thousand_stop_strings():
    """Each character cost a step of Python for each of them: 60 requests held up all others."""
    many = {
        "zq7": [f"zq{i}" for i in range(1024)],
        "eQ": ["e" * k + "Q" for k in range(1, 1024)],
        "e" * 2000 + "7": ["e" * 2000 + str(i) for i in range(1024)],
    }
    text = "zqe" + "e" * 3000
    one = StopStrings(["zq!"])
    lines = lines_run(lambda: one.add(text))
    for found, stop in many.items():
        finder = StopStrings(stop)
        assert lines_run(lambda finder=finder: finder.add(text)) == lines
        finder.add(found)
        assert finder.matched == found
