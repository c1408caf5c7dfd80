"""What tests ask of a server whose model has engines, or ranks, in several places."""

from __future__ import annotations

import time

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.robustness.conftest import ask

PROMPTS = ["Hello", "The capital of France is", "Once upon a time", "A list of"]


def answers(address: str) -> list[str]:
    """Return what is answered to each of :data:`PROMPTS`."""
    body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return [ask(address, {**body, "prompt": prompt}).text for prompt in PROMPTS]


def total(address: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's values that have some labels."""
    text = httpx2.get(f"{address}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_until_used(address: str, engine: str = "1", seconds: float = 240.0) -> None:
    """Ask until an engine has made further tokens."""
    name, end = "quire:generation_tokens_total", time.monotonic() + seconds
    before = total(address, name, engine=engine)
    while total(address, name, engine=engine) == before:
        assert time.monotonic() < end, f"engine {engine} gets nothing"
        answers(address)
