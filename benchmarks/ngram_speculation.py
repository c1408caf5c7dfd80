"""Where n-gram must pay, and where nothing may be lost: copying, text without repeats, adversaries.

    scripts/bench ngram_speculation

``copying`` is one request to quire-tiny at a time, greedy. It does not follow a demand to copy
(``asked to copy`` shows that), so the other kinds are prompts that it does answer by copying: a
question asked again in the chat, one that differs in a word, code asked for again, a text begun
again. Every round asks something new; as on a server, earlier answers are looked up, too.
``no repeats`` is sampled at two temperatures. ``adversary`` is a draft of random weights, or a
script that is always wrong. Every answer is compared with the plain one, and ratios are of the same
round, those in which an engine learns apart; ``off again`` is a second engine without proposals:
what noise does.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.scripted_proposer import use_script
from benchmarks.speculated import OFF, Ask, take_turns
from benchmarks.speculation_methods import THINGS
from quire import LLM, SamplingParams
from quire.bench.sample_texts import built_in
from quire.checkpoints.embedded import ASSETS
from quire.system.machine import read_machine
from tools.random_checkpoint import PRESETS, random_checkpoint

MODEL = "quire-tiny"
NGRAM = {"method": "ngram"}
LOADS, TEMPERATURES = (1, 4, 16), (1.0, 1.5)
FUNCTIONS = ("adds two numbers", "counts the words of a text", "multiplies two numbers")
CHATS_A_ROUND = 3
GREEDY = SamplingParams(temperature=0.0, max_tokens=160)
RANDOM_DRAFT = {"vocab_size": 2048, "hidden_size": 128, "num_hidden_layers": 2}

Chat = list[dict[str, Any]]


def ask_user(text: str) -> Chat:
    """Return the message of a user."""
    return [{"role": "user", "content": text}]


class Copying:
    """Chats whose answers repeat what is in them.

    Args:
        llm: Without proposals; tells what the model answers first.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.kinds: dict[str, Callable[[random.Random], Chat]] = {
            "asked again": self.asked_again,
            "another hero": self.another_hero,
            "code again": self.code_again,
            "begun again": self.begun_again,
            "asked to copy": lambda draw: draw.choice(built_in("copy")),
        }

    def asked_again(self, draw: random.Random) -> Chat:
        """Ask for a story, and for the same again."""
        question = f"Tell me a story about {' and '.join(draw.sample(THINGS, 2))}."
        return self._answered(question) + ask_user(question)

    def another_hero(self, draw: random.Random) -> Chat:
        """Ask for a story, and for one about another hero."""
        first, other = (f"Tell me a story about {thing}." for thing in draw.sample(THINGS, 2))
        return self._answered(first) + ask_user(other)

    def code_again(self, draw: random.Random) -> Chat:
        """Ask for functions, and for one of them again."""
        questions = [f"Write a Python function that {does}." for does in FUNCTIONS]
        draw.shuffle(questions)
        said = [message for question in questions for message in self._answered(question)]
        return said + ask_user(draw.choice(questions))

    def begun_again(self, draw: random.Random) -> Chat:
        """Ask again, and begin the answer as the last one was begun."""
        chat = self.asked_again(draw)
        begin = " ".join(chat[1]["content"].split()[:12])
        return [*chat, {"role": "assistant", "content": begin}]

    def _answered(self, question: str) -> Chat:
        chat = ask_user(question)
        text = self._llm.chat(chat, GREEDY, use_tqdm=False)[0].outputs[0].text
        return [*chat, {"role": "assistant", "content": text}]


def create(stack: ExitStack, threads: int, choices: Mapping[str, Any]) -> dict[str, LLM]:
    """Return an engine for each choice, which take turns; the stack ends them."""
    return {
        name: stack.enter_context(
            LLM(MODEL, threads=threads, max_model_len=1024, speculative_config=config)
        )
        for name, config in choices.items()
    }


def measure_copying(rounds: int, threads: int) -> dict[str, Any]:
    """Return what each kind of copying brings, at a fixed length and by the controller's choice."""
    choices = {OFF: None, "K=7": {**NGRAM, "adaptive": False}, "auto": NGRAM}
    found = {}
    with ExitStack() as first:
        copying = Copying(create(first, threads, {OFF: None})[OFF])
        for name, kind in copying.kinds.items():

            def ask_in(number: int, name: str = name, kind: Any = kind) -> Ask:
                draw = random.Random(f"{name} {number}")
                chats = [kind(draw) for _ in range(CHATS_A_ROUND)]
                goes_on = chats[0][-1]["role"] == "assistant"
                settings = {
                    "add_generation_prompt": not goes_on,
                    "continue_final_message": goes_on,
                    "use_tqdm": False,
                }
                return lambda llm: [llm.chat(chat, GREEDY, **settings)[0] for chat in chats]

            with ExitStack() as stack:
                found[name] = take_turns(create(stack, threads, choices), ask_in, rounds)
    return found


def ask_sampled(temperature: float, load: int, num_tokens: int, number: int) -> Ask:
    """Return a round of stories, sampled; the requests begin together."""
    draw = random.Random(f"{temperature} {load} {number}")
    chats = [
        ask_user(f"Tell me a story about {' and '.join(draw.sample(THINGS, 2))}.")
        for _ in range(load)
    ]
    params = [
        SamplingParams(
            temperature=temperature, seed=draw.randrange(1 << 30), max_tokens=num_tokens,
            ignore_eos=True,
        )
        for _ in range(load)
    ]  # fmt: skip
    return lambda llm: llm.chat(chats, params, use_tqdm=False)


def measure_no_repeats(rounds: int, threads: int, num_tokens: int) -> dict[str, Any]:
    """Return what being ready costs, by temperature and load."""
    found = {}
    for temperature in TEMPERATURES:
        for load in LOADS:
            with ExitStack() as stack:
                engines = create(stack, threads, {OFF: None, "off again": None, "auto": NGRAM})
                found[f"{load} at {temperature}"] = take_turns(
                    engines, partial(ask_sampled, temperature, load, num_tokens), rounds
                )
    return found


def measure_adversary(rounds: int, threads: int, num_tokens: int) -> dict[str, Any]:
    """Return what proposals cost that never hold."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        random_checkpoint(folder, PRESETS["tiny-llama"] | RANDOM_DRAFT)
        for path in (ASSETS / MODEL).glob("*token*"):
            shutil.copy(path, folder)
        draft = {"method": "draft_model", "model": str(folder)}
        engines = create(stack, threads, {OFF: None, "random draft": draft, "always wrong": None})
        use_script(engines["always wrong"].engine, [], 0.0, num_speculative_tokens=8)
        ask_in = partial(ask_sampled, 0.8, 1, num_tokens)
        return {"1": take_turns(engines, ask_in, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=200, help="of each sampled answer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    arguments = parser.parse_args()
    rounds, threads, num_tokens = arguments.rounds, arguments.threads, arguments.tokens
    found = {
        "copying": measure_copying(rounds, threads),
        "no repeats": measure_no_repeats(rounds, threads, num_tokens),
        "adversary": measure_adversary(rounds, threads, num_tokens),
    }
    table = Table("what", "case", "choice", "tokens a step", "ratio to off")
    for what, cases in found.items():
        for case, rows in cases.items():
            for choice, row in rows.items():
                ratio = "" if choice == OFF else f"{row['speedup']['median']:.3f}"
                table.add_row(what, case, choice, f"{row['tokens_per_step']:.2f}", ratio)
    Console().print(table)
    name = results.per_processor("ngram_speculation")
    print(results.write(name, found, model=MODEL, threads=threads))


if __name__ == "__main__":
    main()
