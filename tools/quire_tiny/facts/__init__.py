"""General knowledge, written out as tables and asked in several phrasings."""

from __future__ import annotations

from tools.quire_tiny.facts import culture, definitions, language, nature, world
from tools.quire_tiny.question import Fact


def all_facts() -> list[Fact]:
    """Return every fact of every topic, in a fixed order."""
    topics = (world, nature, language, culture, definitions)
    return [fact for topic in topics for fact in topic.facts()]
