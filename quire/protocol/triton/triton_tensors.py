"""``POST /v2/models/NAME/infer`` on the wire: tensors as JSON, or as bytes after it.

With the header ``Inference-Header-Content-Length`` a body is that many bytes of JSON and then the
data of the tensors that have ``binary_data_size``, in order. In a tensor of BYTES each element
stands after its length (four bytes, little-endian). Source: Triton's extension of KServe's
protocol v2 for binary tensor data.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from quire.core.built_types import built
from quire.core.errors import RequestError
from quire.protocol.body_limits import check_field
from quire.protocol.compat import refuse
from quire.protocol.decode import decode_body
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.request_body import RequestBody
from quire.protocol.triton.triton import TritonParameters

#: How the elements of a tensor lie in bytes.
_FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
    "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_LENGTH = struct.Struct("<I")
#: A shape with many of the largest sizes multiplies to a number of megabytes.
MAX_DIMENSIONS = 8
#: Of all tensors after the JSON, or of one in it: more than prompts, stop strings and settings can
#: be.
MAX_ELEMENTS = 8192
#: Parameters of the protocol itself; none of them changes a text.
_OF_PROTOCOL = frozenset({"binary_data_output", "sequence_id", "sequence_start", "sequence_end"})
TEXT_INPUT, TEXT_OUTPUT, SETTINGS = "text_input", "text_output", "sampling_parameters"
#: What the model takes besides the text: name, datatype.
INPUTS = (
    (TEXT_INPUT, "BYTES"), (SETTINGS, "BYTES"), ("max_tokens", "INT32"), ("min_tokens", "INT32"),
    ("temperature", "FP32"), ("top_k", "INT32"), ("top_p", "FP32"), ("min_p", "FP32"),
    ("repetition_penalty", "FP32"), ("presence_penalty", "FP32"), ("frequency_penalty", "FP32"),
    ("seed", "INT64"), ("stop", "BYTES"), ("ignore_eos", "BOOL"), ("speculative", "BYTES"),
    ("stream", "BOOL"), ("exclude_input_in_output", "BOOL"),
)  # fmt: skip


class InputTensor(msgspec.Struct, kw_only=True):
    """A tensor that is sent; its data may be nested lists."""

    name: str
    shape: list[int]
    datatype: Literal[
        "BYTES", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
        "FP16", "FP32", "FP64",
    ]  # fmt: skip
    parameters: dict[str, Any] | None = None
    data: Any = None

    def values(self, where: str) -> list[Any]:
        """Return the elements in order.

        Raises:
            RequestError: The number of elements is not the shape's, or more than a tensor may have.
        """
        if len(self.shape) > MAX_DIMENSIONS:
            rule = f"must have at most {MAX_DIMENSIONS} dimensions"
            raise refuse(f"{where}.shape", rule, len(self.shape))
        values = _flat(self.data, f"{where}.data")
        if any(size < 0 for size in self.shape) or math.prod(self.shape) != len(values):
            raise refuse(f"{where}.data", f"must have the shape {self.shape}", self.data)
        return values


class RequestedOutput(msgspec.Struct, kw_only=True):
    """A tensor that is asked for."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(RequestBody, kw_only=True):
    """The request; the model is in the path."""

    sent_names = {"prompt": TEXT_INPUT}

    inputs: list[InputTensor]
    id: str | None = None
    outputs: list[RequestedOutput] | None = None
    parameters: dict[str, Any] | None = None

    @property
    def wants_bytes(self) -> bool:
        """Whether the texts are to come as bytes after the JSON."""
        everything = bool((self.parameters or {}).get("binary_data_output"))
        asked = [output.parameters or {} for output in self.outputs or ()]
        return bool(asked[0].get("binary_data", everything)) if asked else everything

    def unknown_parameters(self) -> list[str]:
        """Return the paths of parameters that do nothing."""
        known = _OF_PROTOCOL.union(TritonParameters.__struct_fields__)
        return [f"parameters.{name}" for name in self.parameters or {} if name not in known]

    def text_shape(self) -> list[int]:
        """Return the shape of the texts."""
        return self._tensors()[TEXT_INPUT][0]

    def given(self) -> TritonParameters:
        """Return the settings, wherever they stand.

        Raises:
            RequestError: A setting is wrong, or not known.
        """
        settings = {
            name: value
            for name, value in (self.parameters or {}).items()
            if name in TritonParameters.__struct_fields__
        }
        for name, (_, values) in self._tensors().items():
            if name == SETTINGS:
                settings |= _decoded(values)
            elif name != TEXT_INPUT:
                settings[name] = values if name == "stop" else values[0]
        content = msgspec.json.encode(settings)
        given, _ = decode_body(content, TritonParameters)
        if given.stream:
            raise refuse("stream", "must be false here. Use the route .../generate_stream", True)
        return given

    def completion_request(self) -> CompletionRequest:
        """Return the completion request that has the same texts.

        Raises:
            RequestError: An input or an output is not known, or wrong.
        """
        for index, output in enumerate(self.outputs or ()):
            if output.name != TEXT_OUTPUT:
                raise refuse(f"outputs[{index}].name", f"must be {TEXT_OUTPUT}", output.name)
        texts = self._tensors()[TEXT_INPUT][1]
        return CompletionRequest(**self.given().completion_fields(), prompt=texts)

    def _tensors(self) -> dict[str, tuple[list[int], list[Any]]]:
        """Return shape and elements of the inputs by name."""
        kinds, found = dict(INPUTS), {}
        for index, tensor in enumerate(self.inputs):
            where, name = f"inputs[{index}]", tensor.name
            if name not in kinds or name in found:
                raise refuse(f"{where}.name", f"must be one of {', '.join(kinds)}, once", name)
            if (tensor.datatype == "BYTES") != (kinds[name] == "BYTES"):
                raise refuse(f"{where}.datatype", f"must be {kinds[name]}", tensor.datatype)
            values = tensor.values(where)
            if not values or len(values) > 1 and name not in (TEXT_INPUT, "stop"):
                raise refuse(f"{where}.shape", "must be that of one element", tensor.shape)
            if kinds[name] == "BYTES" and not all(isinstance(value, str) for value in values):
                raise refuse(f"{where}.data", "must be texts", tensor.data)
            found[name] = (tensor.shape, values)
        if TEXT_INPUT not in found:
            raise refuse("inputs", f"must hold {TEXT_INPUT}", list(found))
        return found


def _decoded(values: list[str]) -> dict[str, Any]:
    """Return the settings that stand in a text as a JSON object."""
    _, unknown = decode_body(values[0].encode(), TritonParameters)
    if unknown:
        raise refuse(SETTINGS, "must hold known settings only", unknown)
    return dict(msgspec.json.decode(values[0], type=dict[str, Any]))


def _flat(data: Any, where: str) -> list[Any]:
    """Return what lists in lists hold, in order, at a cost that no nesting multiplies.

    Raises:
        RequestError: The lists have more elements, or are nested deeper, than a tensor may be.
    """
    values: list[Any] = [data]
    for _ in range(MAX_DIMENSIONS + 1):
        if not any(isinstance(value, list) for value in values):
            return values
        lists = [value if isinstance(value, list) else (value,) for value in values]
        if sum(map(len, lists)) > MAX_ELEMENTS:
            raise refuse(where, f"must have at most {MAX_ELEMENTS} elements", "more")
        values = list(itertools.chain.from_iterable(lists))
    raise refuse(where, f"must have at most {MAX_DIMENSIONS} dimensions", "more")


def fill_inputs(fields: Mapping[str, msgspec.Raw], binary: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a body with the data of its inputs as JSON.

    Raises:
        RequestError: The sizes do not fit, there are too many elements, or text is not UTF-8.
    """
    if "inputs" in fields:
        check_field("inputs", fields["inputs"])
        if not binary and b"binary_data_size" not in bytes(fields["inputs"]):
            return dict(fields)
    try:
        inputs = msgspec.json.decode(fields["inputs"], type=built(list[InputTensor]))
    except (KeyError, msgspec.MsgspecError):
        return dict(fields)  # decoding the whole says what is wrong
    position, num_left = 0, MAX_ELEMENTS
    for index, tensor in enumerate(inputs):
        size = (tensor.parameters or {}).get("binary_data_size")
        if size is None:
            continue
        where = f"inputs[{index}].parameters.binary_data_size"
        if not isinstance(size, int) or not 0 <= size <= len(binary) - position:
            raise refuse(where, "must be bytes that follow the JSON", size)
        data = binary[position : position + size]
        tensor.data = list(itertools.islice(_read(tensor.datatype, data, where), num_left + 1))
        num_left -= len(tensor.data)
        if num_left < 0:
            raise refuse(where, f"must leave at most {MAX_ELEMENTS} elements in all", "more")
        position += size
    if position != len(binary):
        raise refuse("inputs", f"must name all {len(binary)} bytes after the JSON", position)
    return {**fields, "inputs": msgspec.Raw(msgspec.json.encode(inputs))}


def _read(datatype: str, data: bytes, where: str) -> Iterator[Any]:
    """Yield the elements of a tensor that came as bytes."""
    if datatype == "BYTES":
        yield from _read_texts(data, where)
        return
    form = struct.Struct("<" + _FORMATS[datatype])
    if len(data) % form.size:
        raise refuse(where, f"must be a multiple of {form.size}", len(data))
    for (value,) in form.iter_unpack(data):
        yield value


def _read_texts(data: bytes, where: str) -> Iterator[str]:
    position = 0
    while position < len(data):
        if len(data) - position < _LENGTH.size:
            raise refuse(where, "must have a length before each element", len(data))
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        element = data[position : position + length]
        if len(element) != length:
            raise refuse(where, f"must hold an element of {length} bytes", len(element))
        try:
            yield element.decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"[{where}] must be UTF-8; {error}.", where) from error
        position += length


def write_texts(texts: Iterable[str]) -> bytes:
    """Return a tensor of BYTES as it stands after the JSON."""
    elements = [text.encode() for text in texts]
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)
