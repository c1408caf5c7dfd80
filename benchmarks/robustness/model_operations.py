"""What clients and people do with the models of a server, at random, and what must come of it.

Owns the operations and the rule for the outcome of each; what the server holds meanwhile and
afterwards is :mod:`benchmarks.robustness.model_chaos`'s.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmarks.robustness.model_clients import SHAPES, Answer, ask, error_text
from tools.serve_process import ServeProcess

#: Longer than any operation may take: who waits longer is not answered.
TIMEOUT = 120.0
#: For an engine that can be killed.
KILL_SECONDS = 60.0
#: What stands for a name or number in the reasons that are counted.
_NAMES = re.compile(r"\borg/\w+|/\S*/models--|\d[\d.,]*%?|[0-9a-f]{40}")
_STREAMED_PULL_CUT = 0.15
#: Of the presets.
SYSTEM = "Answer in one sentence."


@dataclass
class Report:
    """What came of the operations.

    Attributes:
        operations: How many of each.
        outcomes: How many ended how, by operation and status or exit code.
        reasons: Of refusals, without names and numbers.
        wrong: What should not have been, as text.
    """

    operations: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self.reasons[_NAMES.sub("*", reason.strip().splitlines()[-1])[:200]] += 1


@dataclass(frozen=True)
class Site:
    """A server and what its models answer.

    Attributes:
        server: It runs.
        folder: Holds the store and all else.
        environment: Of processes that use the same store.
        texts: By model and question.
        bases: Of those models that are presets.
        spawn: Starts a process, as ``subprocess.Popen`` does.
    """

    server: ServeProcess
    folder: Path
    environment: Mapping[str, str]
    texts: Mapping[str, Mapping[str, str]]
    bases: Mapping[str, str]
    spawn: Callable[..., Any] = subprocess.Popen

    @property
    def names(self) -> list[str]:
        """Of the models."""
        return list(self.texts)


class Actor:
    """Does one random thing after the other.

    Args:
        site: With which.
        report: Told of each outcome.
    """

    def __init__(self, site: Site, report: Report) -> None:
        self._site = site
        self._rng = random.Random()
        self._report = report
        address = site.server.address
        self._client = httpx2.Client(base_url=address, timeout=TIMEOUT)
        self._operations: dict[Callable[[str], str], int] = {
            self.request: 46,
            self.leave: 9,
            self.load: 6,
            self.unload: 6,
            self.unload_by_keep_alive: 3,
            self.pull: 7,
            self.leave_pull: 3,
            self.delete: 3,
            self.pull_process: 5,
            self.kill_pull_process: 3,
            self.rm_process: 3,
            self.create: 6,
            self.kill_engine: 6,
        }

    def close(self) -> None:
        """Leave."""
        self._client.close()

    def act(self, seed: int) -> None:
        """Do one thing, which the seed alone decides, and judge what came of it."""
        self._rng.seed(seed)
        choices, weights = zip(*self._operations.items(), strict=True)
        (operation,) = self._rng.choices(choices, weights)
        model = self._rng.choice(self._site.names)
        name = operation.__name__
        self._report.operations[name] += 1
        try:
            outcome = operation(model)
        except Exception as error:
            outcome = "no answer"
            self._report.wrong.append(f"{name} {model}: {type(error).__name__}: {error}")
        self._report.outcomes[f"{name}: {outcome}"] += 1
        self._pause()

    def _pause(self) -> None:
        time.sleep(self._rng.choice((0, 0, 0.02, 0.1, 0.3)))

    # -- requests -----------------------------------------------------------------------------
    def request(self, model: str) -> str:
        """Ask, in any shape, whole or streamed."""
        shape = self._rng.choice(SHAPES)
        answer = ask(self._client, model, shape, stream=self._rng.random() < 0.5)
        problem = judge(answer, model, self._site.texts[model][shape.question])
        if problem:
            self._report.wrong.append(f"{shape.path} {model}: {problem}: {answer}")
        if answer.error:
            self._report.refused(answer.error)
        return f"{answer.status}{' and an error' if answer.error and answer.status == 200 else ''}"

    def leave(self, model: str) -> str:
        """Ask, and leave without the answer if it takes long."""
        patience = self._rng.uniform(0.001, 1.0)
        shape, stream = self._rng.choice(SHAPES), self._rng.random() < 0.5
        address = self._site.server.address
        with httpx2.Client(base_url=address, timeout=patience) as client:
            try:
                answer = ask(client, model, shape, stream=stream)
            except httpx2.TimeoutException:
                return "left"
        problem = judge(answer, model, self._site.texts[model][shape.question])
        if problem:
            self._report.wrong.append(f"{shape.path} {model}: {problem}: {answer}")
        return str(answer.status)

    # -- loading and unloading ----------------------------------------------------------------
    def load(self, model: str) -> str:
        """Have it loaded."""
        return self._post("/models/load", {"model": model})

    def unload(self, model: str) -> str:
        """Have it unloaded."""
        return self._post("/models/unload", {"model": model})

    def unload_by_keep_alive(self, model: str) -> str:
        """Have it unloaded, as Ollama's clients do."""
        return self._post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})

    def _post(
        self, path: str, body: dict[str, object], method: str = "POST", about: str = "model"
    ) -> str:
        response = self._client.request(method, path, json=body)
        if response.status_code != 200:
            self._check_refusal(path, str(body[about]), response.status_code, response.json())
        return str(response.status_code)

    def _check_refusal(self, what: str, model: str, status: int, body: object) -> None:
        reason = error_text(body)
        self._report.refused(reason)
        if status not in (400, 404, 503) or not says_why(reason, model):
            self._report.wrong.append(f"{what} {model}: {status} {reason}")

    # -- the store ----------------------------------------------------------------------------
    def pull(self, model: str) -> str:
        """Pull it through the server."""
        return self._post("/api/pull", {"model": model, "stream": False})

    def leave_pull(self, model: str) -> str:
        """Begin to pull it through the server, and leave."""
        patience = time.monotonic() + self._rng.uniform(0, _STREAMED_PULL_CUT)
        with self._client.stream("POST", "/api/pull", json={"model": model}) as response:
            if response.status_code != 200:
                body = json.loads(response.read())
                self._check_refusal("/api/pull", model, response.status_code, body)
                return str(response.status_code)
            for line in response.iter_lines():
                told = json.loads(line)
                if told.get("error"):
                    self._check_refusal("/api/pull", model, 400, told)
                if time.monotonic() > patience:
                    return "left"
        return "200"

    def delete(self, model: str) -> str:
        """Remove it through the server."""
        return self._post("/api/delete", {"model": model}, "DELETE")

    def create(self, model: str) -> str:
        """Make any preset, or make it anew."""
        name = self._rng.choice(list(self._site.bases))
        return self._post("/api/create", create_body(name, self._site.bases[name]), about="from")

    def pull_process(self, model: str) -> str:
        """Pull it as a user of the command line."""
        return self._run("pull", model)

    def rm_process(self, model: str) -> str:
        """Remove it as a user of the command line."""
        return self._run("rm", model)

    def kill_pull_process(self, model: str) -> str:
        """Pull it in a process that is killed in the midst of it."""
        return self._run("pull", model, kill_after=self._rng.uniform(0.3, 2.0))

    def _run(self, command: str, model: str, kill_after: float | None = None) -> str:
        process = self._site.spawn(
            [sys.executable, "-m", "quire.cli.main", command, model],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self._site.environment},
        )
        if kill_after is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(kill_after)
            process.kill()
        _, errors = process.communicate(timeout=TIMEOUT)
        if process.returncode == 1 and "Traceback" not in errors and says_why(errors, model):
            self._report.refused(errors)
        elif process.returncode and not (kill_after is not None and process.returncode == -9):
            self._report.wrong.append(f"{command} {model}: {process.returncode} {errors[-600:]}")
        return str(process.returncode)

    # -- accidents ----------------------------------------------------------------------------
    def kill_engine(self, model: str) -> str:
        """Kill an engine, whatever it does; where there is none, wait a while for one."""
        end = time.monotonic() + KILL_SECONDS
        while time.monotonic() < end:
            with suppress(IndexError, psutil.Error):
                self._rng.choice(self._site.server.engines()).kill()
                return "killed"
            time.sleep(0.02)
        return "there was none"


def create_body(name: str, base: str) -> dict[str, object]:
    """Return the request that makes a preset."""
    return {"model": name, "from": base, "system": SYSTEM, "stream": False}


def judge(answer: Answer, model: str, text: str) -> str:
    """Return what is wrong with an answer, empty if it is the model's or a refusal with reason."""
    if answer.error:
        if answer.status not in (200, 404, 503):
            return "unexpected status"
        if not text.startswith(answer.text):
            return "another text before the error"
        return "" if says_why(answer.error, model) else "no reason"
    if not answer.ended:
        return "cut without a word"
    return "" if answer.text == text else f"not what it says alone ({text!r})"


def says_why(reason: str, model: str) -> bool:
    """Return whether a refusal names the model, or the part that could not serve it."""
    return model in reason or "[engine]" in reason
