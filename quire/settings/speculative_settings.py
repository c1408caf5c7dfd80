"""Speculative methods as users give them: vLLM's JSON, its short flags, and its old ones."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from quire.core.counts import parse_count
from quire.core.errors import ConfigError
from quire.core.speculative_config import (
    AVAILABLE_ACCEPTANCES,
    METHODS,
    WITHOUT_MODEL,
    SpeculativeMethod,
    refuse,
)
from quire.core.suggestions import did_you_mean
from quire.settings.known_settings import QUANTIZATIONS as KNOWN_QUANTIZATIONS
from quire.settings.known_settings import KnownSetting, flag_name

CONFIG = "--speculative-config"
#: Settings of their own, and the keys of the JSON object that they stand for.
SHORT_FORMS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "speculative_max_model_len": "max_model_len",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_disable_by_batch_size": "disable_by_batch_size",
}
#: Other engines' names of methods, with what is said of them.
OTHER_METHODS = {
    "[ngram]": ("ngram", ""),
    "ngram_gpu": ("ngram", "proposals are looked up on the CPU"),
    "suffix": ("ngram", "it finds the longest match by a suffix automaton, too"),
}
#: Keys that only other engines have.
OTHER_KEYS = {
    "enforce_eager": KnownSetting("changes nothing: there are no graphs to capture"),
    "attention_backend": KnownSetting("changes nothing: there is one way to compute attention"),
    "moe_backend": KnownSetting("changes nothing: there is one way to compute experts"),
    "draft_load_config": KnownSetting("changes nothing: the files say what they are"),
    "code_revision": KnownSetting("changes nothing: code of a checkpoint is never run"),
    "disable_padded_drafter_batch": KnownSetting("changes nothing: batches are not padded"),
    "use_local_argmax_reduction": KnownSetting("changes nothing: one process draws"),
    "disable_logprobs": KnownSetting("changes nothing: logprobs are those without speculation"),
    "draft_sample_method": KnownSetting(
        "changes nothing: proposals are drawn with the settings of their request"
    ),
    "rejection_sample_method": KnownSetting(
        'changes nothing: answers are distributed as without speculation (see "acceptance")'
    ),
}
_OWN_KEYS = {field.name for field in fields(SpeculativeMethod)} - {"is_inferred"}
#: Read here, and no fields.
_READ_KEYS = {"draft_tensor_parallel_size"}
KEYS = sorted(_OWN_KEYS | _READ_KEYS | set(OTHER_KEYS))


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """The methods that the settings ask for.

    Attributes:
        methods: All ways to propose tokens; requests that name none take the first.
        notices: A line for each part that does nothing, or is read as something else.
    """

    methods: tuple[SpeculativeMethod, ...] = ()
    notices: tuple[str, ...] = ()


def parse_speculative(
    config: Any = None, short: Mapping[str, Any] | None = None
) -> SpeculationSettings:
    """Read the methods by which tokens are proposed.

    Args:
        config: An object of ``--speculative-config`` or a list of them, or its JSON text; None or
            empty: none.
        short: Settings of :data:`SHORT_FORMS`; None is not given. They add to a single object.

    Raises:
        ConfigError: A key is unknown, a value cannot be, or two settings contradict each other.
    """
    objects = _objects(config)
    given = {name: value for name, value in (short or {}).items() if value is not None}
    if given and len(objects) > 1:
        names = ", ".join(map(flag_name, given))
        raise ConfigError(
            f"[config] {CONFIG} must hold one method with {names}; got {len(objects)}. Write "
            "them into the list."
        )
    if given:
        objects = [_joined(objects[0] if objects else {}, given)]
    notices: list[str] = []
    methods = tuple(_method(entry, given, notices) for entry in objects)
    # Two models without a method may turn out to be for different ones.
    made = [each.method for each in methods if not each.is_inferred]
    for method in made:
        if made.count(method) > 1:
            raise ConfigError(f"[config] {CONFIG} must name each method once; got {method} twice.")
    return SpeculationSettings(methods, tuple(notices))


def name_methods(config: Any, methods: Sequence[SpeculativeMethod]) -> str:
    """Return a setting of several objects with a method in each.

    Args:
        config: The same as in :func:`parse_speculative`.
        methods: Methods of the setting's objects, in their order.
    """
    objects = _objects(config)
    for entry, method in zip(objects, methods, strict=True):
        if method.is_inferred:
            entry["method"] = method.method
    return json.dumps(objects)


def _objects(config: Any) -> list[dict[str, Any]]:
    value = config
    if isinstance(config, str):
        try:
            value = json.loads(config)
        except (ValueError, RecursionError):
            value = None
    if value in ({}, []) or config is None:
        return []
    objects = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, dict) and entry for entry in objects):
        raise ConfigError(
            f"[config] {CONFIG} must be a JSON object or a list of them; got {config!r:.80}. Write "
            """'{"method": "ngram"}'."""
        )
    return [dict(entry) for entry in objects]


def _joined(entry: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the short forms to an object; the same value twice is no contradiction."""
    source = dict.fromkeys(entry, CONFIG)
    for name, value in given.items():
        key, flag = SHORT_FORMS[name], flag_name(name)
        if key == "model" and value in OTHER_METHODS:
            key = "method"
        if _same_form(key, entry.setdefault(key, value)) != _same_form(key, value):
            raise ConfigError(
                f'[config] {source[key]} and {flag} must not differ in "{key}"; got '
                f"{entry[key]!r:.80} and {value!r:.80}. Give one."
            )
        source.setdefault(key, flag)
    return entry


def _same_form(key: str, value: Any) -> Any:
    if key == "method":
        return OTHER_METHODS.get(str(value), (value,))[0]
    return _length(value) if key == "max_model_len" else value


def _method(
    entry: dict[str, Any], given: Mapping[str, Any], notices: list[str]
) -> SpeculativeMethod:
    """Read one object; what does nothing is told in ``notices``."""
    for key in entry:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f" Keys are {', '.join(KEYS)}."
            raise ConfigError(f"[config] {CONFIG} must have known keys; got {key!r:.80}.{hint}")
    values = {key: value for key, value in entry.items() if value is not None}
    _refuse_what_cannot_be(values)
    for key in [key for key in values if key in OTHER_KEYS]:
        shown = f'{CONFIG} "{key}"'
        notice = OTHER_KEYS[key].notice(shown, shown, values.pop(key))
        notices += [notice] if notice is not None else []
    inferred = _name_method(values, given, notices)
    quantization = values.get("quantization")
    is_own = values.get("method") == "draft_model"  # whose checkpoint may have it
    if isinstance(quantization, str) and quantization in KNOWN_QUANTIZATIONS and not is_own:
        ours, why = KNOWN_QUANTIZATIONS[quantization]
        values["quantization"] = ours
        notices.append(f'{CONFIG} "quantization" {quantization} is {ours} here: {why}.')
    if "max_model_len" in values:
        values["max_model_len"] = _length(values["max_model_len"])
    if "speculative_token_tree" in values:
        values["speculative_token_tree"] = _tree(values["speculative_token_tree"])
    if values.get("num_speculative_tokens") == 0:
        refuse("num_speculative_tokens", "must be at least 1", 0)
    schedule = values.get("num_speculative_tokens_per_batch_size")
    if schedule is not None:
        values["num_speculative_tokens_per_batch_size"] = _schedule(schedule)
    method = SpeculativeMethod(**values, is_inferred=inferred)
    if method.acceptance not in AVAILABLE_ACCEPTANCES:
        known = ", ".join(sorted(AVAILABLE_ACCEPTANCES))
        refuse("acceptance", f"must be {known}: others are not available", method.acceptance)
    return method


def _refuse_what_cannot_be(values: dict[str, Any]) -> None:
    """Refuse what the engine does not do; take out what then asks for nothing."""
    width = values.pop("draft_tensor_parallel_size", 1)
    if width != 1:
        refuse("draft_tensor_parallel_size", "must be 1: one process drafts", width)
    if values.get("rejection_sample_method") == "synthetic":
        rule = "must be left out or standard: this one would change the answers"
        refuse("rejection_sample_method", rule, "synthetic")


def _name_method(values: dict[str, Any], given: Mapping[str, Any], notices: list[str]) -> bool:
    """Set ``method`` where it has another name or none; return whether it was inferred."""
    model = values.get("model")
    if "method" not in values and model is None:
        asked = ", ".join(map(flag_name, given)) or CONFIG
        raise ConfigError(
            f"[config] {asked} must come with a method or a model; got neither. Methods are "
            f"{', '.join(METHODS)}."
        )
    inferred = "method" not in values and model not in (*WITHOUT_MODEL, *OTHER_METHODS)
    if "method" not in values:
        values["method"] = "draft_model" if inferred else values.pop("model")
    name = str(values["method"])
    ours, why = OTHER_METHODS.get(name, (name, ""))
    if name.endswith("_mtp"):
        ours, why = "mtp", "the checkpoint says whose modules they are"
    if why:
        notices.append(f"{CONFIG} method {name} is {ours} here: {why}.")
    values["method"] = ours
    if ours in WITHOUT_MODEL and values.get("model") in (ours, name, "[ngram]"):
        del values["model"]  # vLLM takes the method's name there, too
    return inferred


def _length(value: Any) -> Any:
    """Read tokens with a unit (``4k``); what is none is left for the checks."""
    try:
        return parse_count(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _tree(value: Any) -> tuple[Any, ...]:
    """Read a tree, from text as vLLM has it (``[(0,), (0, 0)]``) or a list."""
    read = value
    if isinstance(value, str):
        try:
            read = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            read = None
    if not isinstance(read, list) or not all(isinstance(node, list | tuple) for node in read):
        rule = "must be a tree: a list of tuples of ranks, such as [(0,), (1,), (0, 0)]"
        refuse("speculative_token_tree", rule, value)
    return tuple(map(tuple, read))


def _schedule(value: Any) -> tuple[tuple[Any, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(entry, list | tuple) for entry in value):
        rule = "must be a list of [first, last, tokens]"
        refuse("num_speculative_tokens_per_batch_size", rule, value)
    return tuple(map(tuple, value))
