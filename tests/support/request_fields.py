"""All fields of all requests, found from the descriptors, and numbers to put into them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from replay_proto.v1 import replay_pb2

REPLAY_SERVICE: Final = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"]
CONTRACT: Final = Path(__file__).parents[2] / "proto" / "replay" / "v1" / "replay.proto"
_MESSAGE: Final = re.compile(r"^message (\w+)", re.M)
_ARRAY: Final = re.compile(r"  // (u?int\d+|float\d+)\[[^\n]*\n(?:  //[^\n]*\n)*  bytes (\w+) =")
_WHOLE_BITS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
    FieldDescriptor.CPPTYPE_ENUM: (32, True),
}
_FLOATS: Final = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
WHOLE: Final = (0, -1, 1, 1 << 31, 1 << 53, (1 << 62) + 1, (1 << 63) - 1, (1 << 64) - 1, -(1 << 31), -(1 << 63))
"""Extreme whole numbers."""
REAL: Final = (
    *(0.0, -0.0, -1.0, 2.0**31, 2.0**53, 2.0**62 + 1024, 2.0**63, 5e-324, 1e308, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
"""Extreme floats."""


class Field(NamedTuple):
    """A field of a request, perhaps nested."""

    method: str
    """The RPC."""
    path: tuple[FieldDescriptor, ...]
    """Fields from the request down to this one."""
    dtype: str = ""
    """NumPy's name of the element type, if it is an array in bytes."""

    def __str__(self) -> str:
        """Its name, such as "Sample.draw.batch_size"."""
        return ".".join([self.method, *(each.name for each in self.path)])

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers."""
        return bool(self.dtype) or self.path[-1].cpp_type in (*_WHOLE_BITS, *_FLOATS)

    @property
    def extremes(self) -> list[int | float]:
        """Those of the extreme numbers that its type can hold."""
        if self.dtype.startswith("float") or (not self.dtype and self.path[-1].cpp_type in _FLOATS):
            return list(REAL)
        if self.dtype:
            info = np.iinfo(self.dtype)
            least, most = int(info.min), int(info.max)
        else:
            bits, is_signed = _WHOLE_BITS[self.path[-1].cpp_type]
            least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
        return [number for number in dict.fromkeys((*WHOLE, most)) if least <= number <= most]

    def is_present(self, request: Message) -> bool:
        """Whether a request sends the field."""
        return self._is_below(request, 0)

    def _is_below(self, message: Any, depth: int) -> bool:
        field = self.path[depth]
        there = getattr(message, field.name)
        if depth == len(self.path) - 1:
            return bool(there) or (field.has_presence and message.HasField(field.name))
        if _is_map(field):
            return bool(there)
        below = reversed(there) if field.is_repeated else [there] if message.HasField(field.name) else []
        return any(self._is_below(each, depth + 1) for each in below)

    def is_set(self, request: Message) -> bool:
        """Whether the field has other numbers than 0 in a request."""
        cleared = type(request)()
        cleared.CopyFrom(request)
        return self.put(cleared, 0) and cleared != request

    def put(self, request: Message, number: float) -> bool:
        """Put a number into the field; return whether the request has a place for it.

        Of several values, all become this number; of several messages, the last one with a place for it has it.
        """
        return self._put_below(request, 0, number)

    def _put_below(self, message: Any, depth: int, number: float) -> bool:
        field = self.path[depth]
        if depth == len(self.path) - 1:
            return self._put(message, number)
        there = getattr(message, field.name)
        if _is_map(field):
            for key in there:
                there[key] = number
            return bool(there)
        if field.is_repeated:
            return any(self._put_below(each, depth + 1, number) for each in reversed(there))
        return message.HasField(field.name) and self._put_below(there, depth + 1, number)

    def _put(self, place: Any, number: float) -> bool:
        last = self.path[-1]
        there = getattr(place, last.name)
        if self.dtype:
            size = len(there) // np.dtype(self.dtype).itemsize
            setattr(place, last.name, np.full(size, number, self.dtype).tobytes())
            return size > 0
        if last.is_repeated:
            there[:] = [number] * len(there)
            return bool(there)
        setattr(place, last.name, number)
        return True


def fields(service: ServiceDescriptor = REPLAY_SERVICE) -> Iterator[Field]:
    """Yield all fields of all requests of a service, except messages."""
    for method in service.methods:
        for path in _below(method.input_type, ()):
            yield Field(method.name, path, array_types().get(path[-1].full_name, ""))


def numeric_fields(service: ServiceDescriptor = REPLAY_SERVICE) -> list[Field]:
    """Return the fields that hold numbers."""
    return [field for field in fields(service) if field.is_number]


def array_types() -> dict[str, str]:
    """Return the element types of all fields that the contract describes as arrays, by full name."""
    text = CONTRACT.read_text("utf-8")
    starts = [*_MESSAGE.finditer(text)]
    found = {}
    for start, end in zip(starts, [*(each.start() for each in starts[1:]), len(text)], strict=True):
        for dtype, name in _ARRAY.findall(text, start.start(), end):
            found[f"replay.v1.{start[1]}.{name}"] = dtype
    return found


def _below(described: Descriptor, above: Sequence[FieldDescriptor]) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in described.fields:
        if field.message_type is None:
            yield (*above, field)
        else:
            yield from _below(field.message_type, (*above, field))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
