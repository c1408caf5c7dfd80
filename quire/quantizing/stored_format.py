"""The stored formats that results can be written in, by name."""

from __future__ import annotations

from quire.quantizing.layouts.awq import AWQLayout
from quire.quantizing.layouts.bitsandbytes import BitsAndBytesLayout
from quire.quantizing.layouts.compressed_tensors import CompressedTensorsLayout
from quire.quantizing.layouts.fp8 import FP8Layout
from quire.quantizing.layouts.gptq import GPTQLayout
from quire.quantizing.layouts.hqq import HQQLayout
from quire.quantizing.layouts.quip import QuipLayout
from quire.quantizing.layouts.squeezellm import SqueezeLLMLayout
from quire.quantizing.layouts.stored_layout import StoredFormat

__all__ = ["FORMATS", "StoredFormat"]

_KNOWN: tuple[StoredFormat, ...] = (
    GPTQLayout(),
    CompressedTensorsLayout(),
    AWQLayout(),
    FP8Layout(),
    BitsAndBytesLayout(),
    HQQLayout(),
    SqueezeLLMLayout(),
    QuipLayout(),
)
FORMATS: dict[str, StoredFormat] = {form.name: form for form in _KNOWN}
