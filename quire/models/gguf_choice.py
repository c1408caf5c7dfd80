"""Which GGUF file of several is meant: by its quantization's name; nothing is read or fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from quire.core.errors import ModelLoadError

#: Taken of a repository where nothing else is said and there are several, as elsewhere.
DEFAULT_TAG = "Q4_K_M"
#: Files named in one error message.
MAX_NAMED = 20

_PART = re.compile(r"-(\d{5})-of-(\d{5})$")


def gguf_files(names: Iterable[str]) -> list[str]:
    """Return the models among ``names``: GGUF files, but no projector of images."""
    return sorted(
        name
        for name in names
        if name.lower().endswith(".gguf")
        and not PurePosixPath(name).name.lower().startswith("mmproj")
    )


def choose_gguf(names: Iterable[str], tag: str | None, where: str) -> str:
    """Return the one file that ``tag`` names, in any case, or the only one without a tag.

    Args:
        names: Paths in the folder or repository, ``/`` between their parts; others than GGUF
            files do not count.
        tag: A quantization such as ``Q4_K_M``, or a file's name.
        where: The folder or repository, for the error.

    Raises:
        ModelLoadError: No file or several fit, or a model is split over files; all are named.
    """
    files = gguf_files(names)
    found = files if tag is None else [name for name in files if _is_named(name, tag)]
    if len(found) == 1 and not _PART.search(_stem(found[0])):
        return found[0]
    asked = "" if tag is None else f" for {tag}"
    if len({_PART.sub("", _stem(name)) for name in found}) == 1:
        rule, files = f"must be one GGUF file{asked}; got one in {len(found)} parts", found
        advice = "Join the parts with llama-gguf-split --merge and give the file"
    elif found:
        rule, files = f"must have one GGUF file{asked}; got {len(found)}", found
        advice = "Name one"
    else:
        rule = f"must have a GGUF file{asked}; got {len(files) or 'none'}"
        advice = "Name one of them" if files else "Give a repository that has GGUF files"
    listed = ", ".join(files[:MAX_NAMED]) + (" ..." if len(files) > MAX_NAMED else "")
    raise ModelLoadError(f"[load] {where} {rule}{f': {listed}' if listed else ''}. {advice}.")


def choose_default(names: Iterable[str], where: str) -> str:
    """Return the only GGUF file of a repository, or the one of several that is :data:`DEFAULT_TAG`.

    Raises:
        ModelLoadError: There are several, and not one with that tag; all are named.
    """
    files = gguf_files(names)
    default = [name for name in files if _is_named(name, DEFAULT_TAG)]
    return choose_gguf(default if len(default) == 1 else files, None, where)


def _is_named(name: str, tag: str) -> bool:
    """Whether ``tag`` is the file's name or its last part, in any case."""
    path, wanted = name.lower(), tag.lower()
    if wanted in (path, PurePosixPath(path).name):
        return True
    stem = _PART.sub("", _stem(path))
    return stem == wanted or stem.endswith(tuple(f"{mark}{wanted}" for mark in "-._"))


def _stem(name: str) -> str:
    return PurePosixPath(name).stem
