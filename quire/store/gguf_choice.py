"""Choice of one GGUF file of several, by its quantization's name; nothing is read or fetched.

Without a name, it is the first of :data:`PREFERENCE` in the repository that fits the memory: four
bits a weight, as elsewhere; more where there are none; fewer where four do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from quire.core.counts import format_bytes
from quire.core.errors import ModelLoadError
from quire.planner.memory_fit import likely_bytes

#: Kinds of files, the one that is taken first in front.
PREFERENCE = (
    "Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0",
    "MXFP4", "MXFP4_MOE",
    "Q5_K_M", "Q5_K_S", "Q5_K_L", "Q5_K_XL", "Q5_K", "Q5_0", "Q5_1", "Q6_K", "Q6_K_L", "Q6_K_XL",
    "Q8_0", "Q8_K_XL", "BF16", "F16", "FP16", "F32", "FP32",
    "Q3_K_XL", "Q3_K_L", "Q3_K_M", "Q3_K", "IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XS", "Q2_K_XL",
    "Q2_K_L", "IQ3_XXS", "Q2_K", "Q2_K_S", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0",
    "IQ1_M", "IQ1_S",
)  # fmt: skip
#: Recipes that mix kinds by layer; after those that do not.
_MIXED = "UD-"
#: Files named in one error message.
MAX_NAMED = 20

_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_KIND = re.compile(
    rf"(?:^|[-._])((?:{_MIXED})?(?:I?Q\d|TQ\d|MXFP\d|NVFP\d|BF16|FP?16|FP?32)(?:_[A-Z0-9]+)*)$",
    re.IGNORECASE,
)
#: Kinds that no part of Quire can unpack.
_UNREADABLE = re.compile(rf"(?:{_MIXED})?(?:Q[12]_0|NVFP|Q\d_\d_\d)")


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


@dataclass(frozen=True, slots=True)
class ChosenGguf:
    """The file of a repository that is taken where none was named.

    Attributes:
        name: Path of the file in the repository.
        reason: Sentence that gives the reason; empty where there is only one file.
    """

    name: str
    reason: str = ""


def choose_fitting(sizes: Mapping[str, int | None], where: str, room_bytes: int) -> ChosenGguf:
    """Return the only GGUF file of a repository, or the first of several that fits.

    Args:
        sizes: Sizes of its files, as far as they are known; one of unknown size is taken to fit.
        where: The repository.
        room_bytes: Memory that an engine would get.

    Raises:
        ModelLoadError: No file fits or can be loaded, or several are equally good; the message
            names all.
    """
    files = gguf_files(sizes)
    ranks = {name: rank for name in files if (rank := _rank(name)) is not None}
    ranked = sorted(ranks, key=lambda name: ranks[name])
    unreadable = sorted({kind_of(name) for name in files if is_unreadable(name)})
    if len(files) < 2 or not ranked:
        if unreadable and all(map(is_unreadable, files)):
            raise _unreadable_error(", ".join(unreadable), where)
        return ChosenGguf(choose_gguf(files, None, where))
    fitting = [name for name in ranked if likely_bytes(sizes[name] or 0) <= room_bytes]
    if not fitting:
        least = min(ranked, key=lambda name: sizes[name] or 0)
        raise ModelLoadError(
            f"[load] {where} must have a GGUF file that fits in the memory that is free; got "
            f"{format_bytes(room_bytes)}, and {_listed(ranked, sizes)}. Free some, or take a "
            f"smaller model; {where}:{kind_of(least)} is fetched all the same."
        )
    equal = [name for name in ranked if ranks[name] == ranks[fitting[0]]]
    chosen = choose_gguf(equal, None, where)
    reason = f"{where}: {kind_of(chosen)}"
    if sizes[chosen]:
        reason += f", {format_bytes(sizes[chosen] or 0)}"
    reason += f", of {len(files)} files"
    if larger := [name for name in ranked if ranks[name] < ranks[chosen]]:
        reason += f"; {_listed(larger, sizes)} of {format_bytes(room_bytes)} that are free"
    if unreadable:
        reason += f"; {', '.join(unreadable)} cannot be loaded"
    if others := [kind_of(name) for name in ranked if name != chosen]:
        reason += f"; choose another by {where}:{others[0]}, quire show --hub {where} lists them"
    return ChosenGguf(chosen, reason)


def kind_of(name: str) -> str:
    """Return the quantization that a file's name tells, empty if it tells none."""
    match = _KIND.search(_PART.sub("", _stem(name)))
    return match[1].upper() if match is not None else ""


def is_unreadable(name: str) -> bool:
    """Whether a file's name tells a kind that cannot be loaded."""
    return _UNREADABLE.match(kind_of(name)) is not None


def check_readable(name: str, where: str) -> None:
    """Refuse a file of a kind that cannot be loaded, before it is fetched.

    Raises:
        ModelLoadError: The file is of such a kind.
    """
    if is_unreadable(name):
        raise _unreadable_error(name, where)


def _unreadable_error(found: str, where: str) -> ModelLoadError:
    return ModelLoadError(
        f"[load] {where} must have a GGUF file of a kind that can be loaded: Q2_K to Q8_0, IQ1_S "
        f"to IQ4_XS, TQ1_0, TQ2_0, MXFP4, or of 16 or 32 bits; got {found}. Name another file, or "
        "another repository."
    )


def _rank(name: str) -> tuple[int, bool] | None:
    """Return where in the order of preference a file is, None where it is not."""
    kind = kind_of(name)
    plain = kind.removeprefix(_MIXED)
    mixed = plain != kind
    if plain not in PREFERENCE or _PART.search(_stem(name)):
        return None
    return PREFERENCE.index(plain), mixed


def _listed(files: Iterable[str], sizes: Mapping[str, int | None]) -> str:
    needs = (f"{kind_of(f)} needs about {format_bytes(likely_bytes(sizes[f] or 0))}" for f in files)
    return ", ".join(needs)


def _is_named(name: str, tag: str) -> bool:
    """Whether ``tag`` is the file's name or its last part, in any case."""
    path, wanted = name.lower(), tag.lower()
    if wanted in (path, PurePosixPath(path).name):
        return True
    stem = _PART.sub("", _stem(path))
    return stem == wanted or stem.endswith(tuple(f"{mark}{wanted}" for mark in "-._"))


def _stem(name: str) -> str:
    return PurePosixPath(name).stem
