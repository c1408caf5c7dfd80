"""Prompts for roll-outs: from a file of the user's, or written by the target itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError, RequestError
from quire.core.sampling_params import SamplingParams
from quire.llm.engine_client import Prompt
from quire.llm.llm import LLM
from quire.llm.requests.prompts import chat_prompt, tokenize_prompt
from quire.text.tokenizers.tokenizer import Tokenizer

#: Tokens of a question that the target writes.
QUESTION_TOKENS = 128
#: Stands for a question in a rendered chat; what is before it opens the user's turn.
MARK = "\ue000"


def read_prompts(path: Path, tokenizer: Tokenizer) -> list[list[int]]:
    """Read prompts, one a line, and return their token ids.

    A line is text, or a JSON object with ``messages`` (and ``tools``) or ``prompt``. Text is a
    question of the user's where the model has a chat template.

    Raises:
        ConfigError: The file cannot be read, a line is neither, or there are no lines.
    """
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"[train-heads] --prompts must be a text file; got {path}: {error}."
        ) from None
    if not lines:
        raise ConfigError(f"[train-heads] --prompts must hold at least one line; got {path}.")
    prompts: list[list[int]] = []
    for number, line in enumerate(lines, 1):
        try:
            prompts.append(tokenize_prompt(_prompt_of(line, tokenizer), tokenizer)[1])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "[train-heads] a line of --prompts must be text, or JSON with messages or prompt; "
                f"got {error} in line {number} of {path}."
            ) from None
    return prompts


def write_prompts(llm: LLM, count: int, seed: int = 0) -> list[list[int]]:
    """Return prompts from questions that the target writes itself.

    Its chat template up to a user's message is completed at temperature 1; a model without a
    template writes the beginnings of documents.

    Source: Xu et al. 2024 (Magpie).
    """
    tokenizer = llm.get_tokenizer()
    try:
        opening = _opening(tokenizer)
    except RequestError:
        opening = None
    begin = opening if opening is not None else tokenizer.encode("") or [0]
    params = [
        SamplingParams(temperature=1.0, seed=seed + number, max_tokens=QUESTION_TOKENS)
        for number in range(count)
    ]
    given: Prompt = {"prompt_token_ids": begin}
    outputs = llm.generate([given] * count, params, False)
    written = [output.outputs[0] for output in outputs]
    if opening is None:
        return [begin + list(one.token_ids)[: QUESTION_TOKENS // 4] for one in written]
    texts = [one.text.strip() for one in written]
    chats = [chat_prompt(_question(text), tokenizer) for text in texts if text]
    return [tokenize_prompt(chat, tokenizer)[1] for chat in chats]


def _prompt_of(line: str, tokenizer: Tokenizer) -> Prompt:
    if line.lstrip().startswith("{"):
        given: dict[str, Any] = json.loads(line)
        if "messages" in given:
            return chat_prompt(given["messages"], tokenizer, tools=given.get("tools"))
        prompt: Prompt = given["prompt"]
        return prompt
    try:
        return chat_prompt(_question(line), tokenizer)
    except RequestError:
        return line


def _question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _opening(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens with which the template opens a user's message."""
    text = "".join(tokenizer.render_chat(_question(MARK), add_generation_prompt=False))
    return tokenizer.encode(text.partition(MARK)[0], add_special_tokens=False)
