"""Messages to prompt text by the model's own Jinja template; it tokenizes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from quire.checkpoints.config_fields import read_json
from quire.core.errors import ConfigError, RequestError
from quire.system.regular_files import read_regular_text
from quire.text.templates.message_content import as_parts, as_text, read_content, with_text
from quire.text.templates.template_needs import TemplateNeeds, check_calls, has_forms
from quire.text.templates.template_processes import TemplateFailure, render, variables_of
from quire.text.tokenizers.plain_text import SpecialTexts, cut_at, unused_mark

# Put after the text of a message to be continued. The space shows whether the template trims.
_END_MARK = "\x02end of the final message\x02 "

#: Is shown by every template that shows a user's text.
_PROBE = "a text"
#: A template that reads parts has it.
_TEXT_OF_PART = re.compile(r"""\[\s*['"]text['"]\s*\]|\.\s*text\b""")
_SYSTEM = ("system", "developer")
#: What Ollama's templates are full of and Jinja's never have: ``{{ .Prompt }}``, ``{{ end }}``.
_GO_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.|\$|(?:if|else|end|range|with|define|block)\b)")


class ChatTemplate:
    """The chat templates of one model.

    Args:
        templates: Jinja sources by name. ``default`` is used, or ``tool_use`` when there are tools.
        special_tokens: Variables such as ``bos_token``.

    Attributes:
        default_kwargs: Further variables, unless a conversation brings its own.
        default_system: Message before a conversation that has none of the system or developer.
        default_messages: Messages before the other messages of every conversation.
        picture_text: Text that templates write for a picture; None if the model reads only text.
        picture_margins: Texts before and after ``picture_text``.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.templates = dict(templates)
        self.special_tokens = dict(special_tokens)
        self.default_kwargs: Mapping[str, Any] = {}
        self.default_system: str | None = None
        self.default_messages: Sequence[Mapping[str, Any]] = ()
        self.picture_text: str | None = None
        self.picture_margins = ("", "")
        self._takes_parts: dict[str, bool] = {}
        self._needs: dict[str, TemplateNeeds] = {}

    @cached_property
    def shows_tools(self) -> bool:
        """Whether a conversation's prompt can tell the model of tools."""
        return "tool_use" in self.templates or self.reads("tools")

    def prepare(self) -> None:
        """Compile the templates in a process, so that the first conversation need not wait."""
        for source in self.templates.values():
            _variables(source)

    def reads(self, name: str) -> bool:
        """Return whether a template looks at the variable ``name``."""
        return any(name in _variables(source) for source in self.templates.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **chat_template_kwargs: Any,
    ) -> str:
        """Return the prompt for a conversation, special tokens written out in it.

        The arguments are those of :meth:`render_parts`, but for its first.
        """
        return "".join(
            self.render_parts(
                None,
                messages,
                add_generation_prompt,
                continue_final_message,
                tools,
                **chat_template_kwargs,
            )
        )

    def render_parts(
        self,
        special_texts: SpecialTexts | None,
        messages: Sequence[Mapping[str, Any]],
        /,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **chat_template_kwargs: Any,
    ) -> list[str]:
        """Return the prompt for a conversation in parts that are tokenized one after another.

        There is one part unless messages or tools spell a special token; see
        :mod:`quire.text.tokenizers.plain_text`.

        Args:
            special_texts: Special tokens that are plain text in messages and tools; None for none.
            messages: Messages in OpenAI's form. Content parts must be text, which is joined by
                newlines, or pictures where the model reads them.
            add_generation_prompt: Whether to end with the header of an assistant's message.
            continue_final_message: Whether to end inside the last message, so that the model
                continues it; ``add_generation_prompt`` must be off.
            tools: JSON schemas of functions, in OpenAI's form.
            **chat_template_kwargs: More variables of the template (``enable_thinking`` ...).

        Raises:
            RequestError: A message is malformed, or the template refuses the conversation.
        """
        try:
            return self._prompt(
                special_texts,
                messages,
                add_generation_prompt,
                continue_final_message,
                tools,
                {**self.default_kwargs, **chat_template_kwargs},
            )
        except RecursionError as error:
            raise RequestError(
                "[chat] messages, tools and chat_template_kwargs must not be nested that deeply.",
                "messages",
            ) from error

    def _prompt(
        self,
        special_texts: SpecialTexts | None,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any],
    ) -> list[str]:
        takes_pictures = self.picture_text is not None
        conversation = [
            _read_message(message, i, takes_pictures) for i, message in enumerate(messages)
        ]
        name = self._choose(tools)
        if has_forms(conversation):
            if name not in self._needs:
                self._needs[name] = TemplateNeeds.find(partial(self._probe, name))
            self._needs[name].shape(conversation)
        if conversation:
            self._add_defaults(conversation)
        shown = None if tools is None else _plain(tools, "tools")
        mark = None
        if special_texts is not None and special_texts.occur_in([conversation, shown]):
            mark = unused_mark(conversation, shown, dict(chat_template_kwargs))
            conversation, shown = special_texts.mark([conversation, shown], mark)
        if not conversation:
            raise RequestError("[chat] messages must not be empty; got none.", "messages")
        if "messages" in chat_template_kwargs:
            raise RequestError(
                "[chat] chat_template_kwargs must not hold messages; they have their own field.",
                "chat_template_kwargs",
            )
        if continue_final_message:
            if add_generation_prompt:
                raise RequestError(
                    "[chat] continue_final_message must not be combined with "
                    "add_generation_prompt; got both. Turn one off.",
                    "continue_final_message",
                )
            conversation[-1]["content"] = with_text(conversation[-1]["content"], _END_MARK)
        self._give_parts(name, conversation)
        variables = {
            **self.special_tokens,
            "documents": None,
            **_plain(chat_template_kwargs, "chat_template_kwargs"),
            "messages": conversation,
            "tools": shown,
            "add_generation_prompt": add_generation_prompt,
        }
        prompt = self._render(name, variables)
        if self.picture_text is not None and any(self.picture_margins):
            prompt = prompt.replace(self.picture_text, self.picture_text.join(self.picture_margins))
        if continue_final_message:
            prompt = _cut_after_mark(prompt)
        return [prompt] if mark is None else cut_at(prompt, mark)

    def _give_parts(self, name: str, conversation: list[dict[str, Any]]) -> None:
        """Give contents the form that the template takes: parts, or text with placeholders."""
        picture_text = self.picture_text
        if name not in self._takes_parts:
            self._takes_parts[name] = (
                self._needs_parts(name)
                if picture_text is None
                else self._shows_parts(name, picture_text)
            )
        for message in conversation:
            content = message["content"]
            if content is None:
                continue
            if self._takes_parts[name]:
                message["content"] = as_parts(content)
            elif picture_text is not None:
                message["content"] = as_text(content, picture_text)

    def _needs_parts(self, name: str) -> bool:
        """Return whether a template writes a text as a part, and not the text itself."""

        def shows(content: str | list[dict[str, Any]]) -> bool:
            return _PROBE in (self._probe(name, [{"role": "user", "content": content}]) or "")

        reads_parts = _TEXT_OF_PART.search(self.templates[name]) is not None
        return reads_parts and not shows(_PROBE) and shows(as_parts(_PROBE))

    def _shows_parts(self, name: str, picture_text: str) -> bool:
        """Return whether a template writes a placeholder for a part that is a picture."""
        content = [{"type": "image"}, {"type": "text", "text": _PROBE}]
        shown = self._probe(name, [{"role": "user", "content": content}]) or ""
        # A template of text alone writes the list out as Python does.
        return shown.count(picture_text) == 1 and _PROBE in shown and "'type'" not in shown

    def _probe(
        self,
        name: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str | None:
        """Return what a template makes of messages of our own; None where it refuses them.

        Raises:
            RequestError: The template takes too much; further probes would take as much.
        """
        variables = {
            **self.special_tokens,
            "documents": None,
            **self.default_kwargs,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": False,
        }
        try:
            return self._render(name, variables)
        except RequestError as error:
            failure = error.__cause__
            if isinstance(failure, TemplateFailure) and failure.is_over_limits:
                raise
            return None

    def _add_defaults(self, conversation: list[dict[str, Any]]) -> None:
        roles = [message["role"] for message in conversation]
        if self.default_system and not any(role in _SYSTEM for role in roles):
            conversation.insert(0, {"role": "system", "content": self.default_system})
        num_system = sum(1 for _ in takewhile(lambda m: m["role"] in _SYSTEM, conversation))
        conversation[num_system:num_system] = map(dict, self.default_messages)

    def _choose(self, tools: Sequence[Any] | None) -> str:
        name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise RequestError(
                f"[chat] the model must have a default template; got {sorted(self.templates)}. "
                "Name a file with --chat-template."
            )
        return name

    def _render(self, name: str, variables: dict[str, Any]) -> str:
        try:
            return render(self.templates[name], variables)
        except TemplateFailure as failure:
            raise RequestError(
                f"[chat] the model's template must accept the messages; it {failure}. "
                "Change them, or use another template with --chat-template.",
                "messages",
            ) from failure


def _variables(source: str) -> frozenset[str]:
    try:
        return variables_of(source)
    except TemplateFailure:  # rendering it says what is wrong
        return frozenset()


def find_template(
    folder: Path,
    config: Mapping[str, Any],
    override: str | None,
    special_tokens: Mapping[str, str],
    preset: str | None = None,
) -> ChatTemplate | None:
    """Find a model's chat templates, or return None when it has none.

    In order: the file ``override``; the source ``preset``; ``chat_template.jinja`` with
    ``additional_chat_templates/``; ``chat_template`` of ``chat_template.json``, where processors of
    pictures had it, or of ``tokenizer_config.json``, one source or a list of named ones.

    Raises:
        ConfigError: ``override`` cannot be read or is no Jinja template.
        ValueError: The model's entry has a form we do not know.
    """
    if override is not None:
        try:
            source = read_regular_text(override)
            variables_of(source)
        except (OSError, UnicodeError, TemplateFailure) as error:
            raise ConfigError(
                f"[config] --chat-template must be a readable Jinja file; got {override} ({error})."
            ) from error
        return ChatTemplate({"default": source}, special_tokens)
    if preset is not None:
        return ChatTemplate({"default": preset}, special_tokens)
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    templates = {name: read_regular_text(path) for name, path in files.items() if path.exists()}
    older = folder / "chat_template.json"
    if not templates and older.exists():
        templates = _read_entry(read_json(older).get("chat_template"))
    if not templates:
        templates = _read_entry(config.get("chat_template"))
    return ChatTemplate(templates, special_tokens) if templates else None


def check_template(source: str) -> None:
    """Check that a text can be a chat template.

    Raises:
        ConfigError: The text is not a Jinja template, shows no messages, or takes too much for a
            short conversation.
    """
    reason = _refusal(source)
    if reason:
        told = f"a Go template ({reason})" if _GO_TEMPLATE.search(source) else reason
        raise ConfigError(
            f"[template] must be a Jinja chat template, which shows messages; got {told}. Send the "
            "chat_template of the model's tokenizer_config.json, or leave it out: the model has "
            "its own."
        )


def _refusal(source: str) -> str:
    """Return why a text can be no chat template; empty if it can."""
    try:
        if "messages" not in variables_of(source):
            return "one that does not read messages"
    except TemplateFailure as failure:
        return f"one that {failure}"
    message = {"role": "user", "content": _PROBE}
    try:
        render(source, {"messages": [message], "add_generation_prompt": True})
    except TemplateFailure as failure:
        # What it says of this conversation it need not say of another one.
        return f"one that {failure}" if failure.is_over_limits else ""
    return ""


def no_template_error() -> RequestError:
    """Return the error for a chat with a model that has no template."""
    return RequestError(
        "[chat] the model must have a chat template; got none. "
        "Name a Jinja file with --chat-template, or complete plain text instead.",
        "messages",
    )


def _read_entry(entry: Any) -> dict[str, str]:
    if entry is None:
        return {}
    if isinstance(entry, str):
        return {"default": entry}
    try:
        named = {item["name"]: item["template"] for item in entry}
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"a chat_template that is neither text nor a list of named ones ({error!r})"
        ) from error
    return named


def _cut_after_mark(prompt: str) -> str:
    mark = _END_MARK.strip(" ")
    at = prompt.rfind(mark)
    if at < 0:
        raise RequestError(
            "[chat] continue_final_message needs a template that shows the final message; "
            "this one leaves it out.",
            "continue_final_message",
        )
    kept = prompt[:at]
    # A template that trims its messages would have trimmed this one's end too.
    return kept if prompt.startswith(_END_MARK, at) else kept.rstrip()


def _read_message(message: Any, index: int, takes_pictures: bool) -> dict[str, Any]:
    """Check one message and return a copy made of plain values, its content text or parts."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(
            f"[chat] {where} must be an object with a role; got {message!r:.80}.", where
        )
    plain: dict[str, Any] = _plain({k: v for k, v in message.items() if k != "content"}, where)
    if message.get("content") is None and message["role"] != "assistant":
        raise RequestError(f"[chat] {where}.content must be given; got none.", f"{where}.content")
    plain["content"] = read_content(message.get("content"), f"{where}.content", takes_pictures)
    check_calls(plain, where)
    return plain


def _plain(value: Any, where: str) -> Any:
    """Copy a JSON value, so that templates meet no object with methods of its own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise RequestError(f"[chat] {where} must be a JSON value; got {type(value).__name__}.", where)
