"""Quality of a quantized checkpoint next to its source, as lines of a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.evaluation.evaluate import judge
from quire.evaluation.local_model import LocalModel
from quire.evaluation.scorer import LocalEncoder
from quire.evaluation.task import Task, prepare
from quire.models.config.config_reader import read_model_config
from quire.quantizing.inputs.layer_inputs import Bar
from quire.settings.config import EngineConfig
from quire.text.tokenizers.tokenizer import load_tokenizer


def compare_with_source(source: Path, out: Path, text: Path, bar: Bar) -> list[str]:
    """Judge a checkpoint and its source on a text, and return the lines of a card.

    Args:
        source: Folder of floats.
        out: Folder of the quantized checkpoint.
        text: A file of text, or ``.jsonl``.
        bar: The progress bar.

    Raises:
        ConfigError: The text cannot be read.
        ModelLoadError: A checkpoint cannot be read.
    """
    task = Task(text=text)
    limit = read_model_config(source).max_position_embeddings
    work = prepare(task, LocalEncoder(load_tokenizer(source), limit))
    models = [
        LocalModel(path, EngineConfig.from_keywords(model=str(path)), work.longest)
        for path in (out, source)
    ]
    report = judge(task, work, models[0], models[1], bar)
    figures = {
        "perplexity": report["text"]["perplexity"],
        "of the source": report["comparison"]["reference_perplexity"],
        "ratio": report["comparison"]["ratio"],
        "KL divergence, nats": report["comparison"]["divergence"],
        "same best token": report["comparison"]["agreement"],
    }
    rows = [f"| {name} | {_figure(figure)} |" for name, figure in figures.items()]
    title = f"On {text.name}, {report['text']['num_counted']:,} tokens, with 95% intervals:"
    return [title, "\n".join(["| figure | value |", "|---|---|", *rows])]


def _figure(figure: dict[str, Any]) -> str:
    if figure["low"] is None:
        return f"{figure['value']:.4f}"
    return f"{figure['value']:.4f} ({figure['low']:.4f} to {figure['high']:.4f})"
