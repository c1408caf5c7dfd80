"""A conversation with one model: its messages, its settings and its slash commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from quire.core.errors import RequestError
from quire.core.plurals import counted
from quire.core.sampling_params import SamplingParams
from quire.core.suggestions import did_you_mean

Message = dict[str, Any]

#: Of an answer, unless a flag, /set or the model says otherwise: small models may never end.
MAX_TOKENS = 1024

HELP = """\
/system TEXT      set the system prompt; without TEXT, remove it
/clear            forget the conversation, keep the system prompt
/retry            answer the last question again
/continue         go on with an answer that was cut
/save FILE        write the conversation as JSON
/load FILE        go on with a saved conversation
/set NAME VALUE   change a sampling setting: /set temperature 0.7; without NAME, list them
/show             the model, the system prompt and the settings in use
/stats            what the engine did so far
/exit, /bye       leave
\"\"\"               before and after it: a text of several lines"""


class Thought(str):
    """A piece of what a model thinks before its answer; no part of the conversation."""


class ChatModel(Protocol):
    """A model that answers in a conversation.

    Attributes:
        defaults: The model's own sampling settings, as keywords.
        num_tokens: Tokens of the last answer.
        was_cut: Whether the last answer ended at the limit of tokens or of the context.
    """

    defaults: dict[str, Any]

    @property
    def num_tokens(self) -> int: ...

    @property
    def was_cut(self) -> bool: ...

    def answer(
        self, messages: list[Message], sampling: dict[str, Any], stopped: Callable[[], bool]
    ) -> Iterator[str]:
        """Yield thoughts, then the answer in pieces, at least one; ends early when ``stopped()``.

        Where the last message is an answer, that one is continued.

        Raises:
            QuireError: The conversation is refused.
        """
        ...

    def describe(self) -> str:
        """Say what answers, on one line."""
        ...

    def summary(self) -> str:
        """Say how fast the last answer came, on one line."""
        ...

    def stats(self) -> str:
        """Say what was done so far."""
        ...


class ChatSession:
    """State between the lines of a chat.

    Args:
        model: The model that answers.
        sampling: Settings beyond the model's own defaults, as keywords.

    Attributes:
        messages: The conversation, system prompt first.
        wants_answer: A question waits for :meth:`answer`.
        last_summary: Speed of the last answer, as text.

    Raises:
        InvalidSamplingParamsError: A setting is out of range.
    """

    def __init__(
        self, model: ChatModel, *, system: str | None = None, sampling: dict[str, Any]
    ) -> None:
        self._model = model
        own = {name: value for name, value in model.defaults.items() if value is not None}
        self._sampling = {"max_tokens": MAX_TOKENS, **own, **sampling}
        SamplingParams(**self._sampling)
        self.messages: list[Message] = []
        self._continues = False
        self.last_summary = ""
        if system is not None:
            self._set_system(system)

    @property
    def wants_answer(self) -> bool:
        asked = bool(self.messages) and self.messages[-1]["role"] == "user"
        return asked or self._continues

    @property
    def limit_reached(self) -> int | None:
        """The ``max_tokens`` that cut the last answer; None where it ended otherwise."""
        limit: int | None = self._sampling["max_tokens"]
        return limit if self._model.was_cut and self._model.num_tokens >= (limit or 0) else None

    def ask(self, text: str) -> None:
        """Add the user's next message."""
        self.messages.append({"role": "user", "content": text.rstrip("\n")})

    def answer(self, stopped: Callable[[], bool]) -> Iterator[str]:
        """Yield thoughts and the answer in pieces, and keep that; ends early when ``stopped()``.

        Raises:
            QuireError: The conversation is refused; the question is taken back.
        """
        pieces: list[str] = []
        try:
            for piece in self._model.answer(self.messages, self._sampling, stopped):
                pieces.append("" if isinstance(piece, Thought) else piece)
                yield piece
        finally:
            continues, self._continues = self._continues, False
            if pieces and continues:
                last = self.messages[-1]
                self.messages[-1] = {**last, "content": last["content"] + "".join(pieces)}
            elif pieces:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            elif not continues:
                self.messages.pop()
            if pieces:
                self.last_summary = self._summary()

    def run_command(self, line: str) -> str | None:
        """Run a slash command; return what to tell the user, or None to leave.

        Raises:
            RequestError: The command is unknown or cannot be done.
        """
        typed, _, rest = line.strip().partition(" ")
        name = typed.lower()
        commands: dict[str, Callable[[str], str | None]] = {
            "/help": lambda rest: HELP,
            "/?": lambda rest: HELP,
            "/system": self._set_system,
            "/clear": self._clear,
            "/retry": self._retry,
            "/continue": self._continue,
            "/save": self._save,
            "/load": self._load,
            "/set": self._set,
            "/show": self._show,
            "/stats": self._stats,
            "/exit": lambda rest: None,
            "/bye": lambda rest: None,
            "/quit": lambda rest: None,
        }
        if name not in commands:
            raise RequestError(
                f"[chat] a command must be one of {' '.join(commands)}; got {typed}."
                f"{did_you_mean(name, commands)}"
            )
        return commands[name](rest.strip())

    def _set_system(self, text: str) -> str:
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = ([{"role": "system", "content": text}] if text else []) + rest
        return "system prompt set" if text else "system prompt removed"

    def _clear(self, rest: str) -> str:
        self.messages = [message for message in self.messages if message["role"] == "system"]
        return "conversation cleared"

    def _retry(self, rest: str) -> str:
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise RequestError("[chat] /retry needs a question before it; got none.")
        del self.messages[asked[-1] + 1 :]
        return ""

    def _continue(self, rest: str) -> str:
        last = self.messages[-1] if self.messages else {"role": "", "content": ""}
        if last["role"] != "assistant" or not last["content"]:
            raise RequestError("[chat] /continue needs an answer before it; got none.")
        self._continues = True
        return ""

    def _summary(self) -> str:
        told, limit = self._model.summary(), self.limit_reached
        if limit is None:
            return told
        if not self.messages[-1]["content"]:  # a model that thinks first
            return f"{told} of {limit:,} before the answer began; /set max_tokens N allows more"
        return f"{told} of {limit:,}; /continue resumes it"

    def _save(self, name: str) -> str:
        saved = {"messages": self.messages, "sampling": self._sampling}
        try:
            Path(name).write_text(json.dumps(saved, ensure_ascii=False, indent=2) + "\n", "utf-8")
        except (OSError, UnicodeError) as error:
            raise RequestError(f"[chat] /save needs a file to write; got {error}.") from error
        return f"{counted(len(self.messages), 'message')} saved to {name}"

    def _load(self, name: str) -> str:
        try:
            saved = json.loads(Path(name).read_text("utf-8"))
            messages = [{"role": m["role"], "content": m["content"]} for m in saved["messages"]]
            SamplingParams(**saved["sampling"])
            if not all(isinstance(text, str) for m in messages for text in m.values()):
                raise ValueError("a message that is no text")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RequestError(f"[chat] /load needs a saved chat; got {name}: {error}.") from error
        if messages and messages[-1]["role"] == "user":
            messages.pop()
        self.messages, self._sampling = messages, saved["sampling"]
        return f"{counted(len(messages), 'message')} loaded from {name}"

    def _set(self, rest: str) -> str:
        if not rest:
            return json.dumps(self._sampling)
        name, _, text = rest.removeprefix("parameter ").partition(" ")  # as Ollama has it
        if name == "system":
            return self._set_system(text.strip().strip('"'))
        known = SamplingParams.__dataclass_fields__.keys() - {"n"}
        if name not in known:
            raise RequestError(
                f"[chat] /set needs a sampling setting of one answer; got {name!r}."
                f"{did_you_mean(name, known)} /set alone lists those in use."
            )
        if not text.strip():
            raise RequestError(f"[chat] /set needs a value: /set {name} VALUE; got none.")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        changed = {**self._sampling, name: value}
        SamplingParams(**changed)
        self._sampling = changed
        return f"{name} = {value!r}"

    def _show(self, rest: str) -> str:
        system = next((m["content"] for m in self.messages if m["role"] == "system"), "the model's")
        settings = {name: value for name, value in self._sampling.items() if value is not None}
        told = json.dumps(settings) if settings else "the model's"
        return (
            f"{self._model.describe()}\nsystem prompt: {system}\nsettings: {told}\n"
            f"messages: {len(self.messages)}"
        )

    def _stats(self, rest: str) -> str:
        return self._model.stats()
