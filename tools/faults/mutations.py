"""Mutations of bytes and messages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_MOST_NEW = 9
_LONGEST_RANDOM = 300
_HOSTILE = (b"\xff" * 10, b"\x80" * 10, bytes(8), b"\x7f" + b"\xff" * 7, b"\x00\x00\xf8\x7f", b"../", b"\xff\xfe")


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Corrupt the content one to four times, or in one of ten cases replace it entirely."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(_LONGEST_RANDOM))
    for _ in range(rng.randint(1, 4)):
        content = _damaged(content, rng)
    return content


def _damaged(content: bytes, rng: random.Random) -> bytes:
    first, second = sorted(rng.randint(0, len(content)) for _ in range(2))
    start, middle, end = content[:first], content[first:second], content[second:]
    new = rng.choice([*_HOSTILE, rng.randbytes(rng.randint(1, _MOST_NEW))])
    match rng.randrange(7):
        case 0:
            return start + new + content[first + len(new) :]
        case 1:
            return start + new + content[first:]
        case 2:
            return start + end
        case 3:
            return start + middle + middle + end
        case 4:
            return start + end + middle
        case 5:
            return content[:first]
        case _:
            return flipped(content, rng)


def flipped(content: bytes, rng: random.Random) -> bytes:
    """The content with one bit flipped."""
    if not content:
        return content
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


_INTEGERS = (0, 1, -1, 2, 7, 12, 13, 63, 64, 65, 1024, 1025, 2**31, 2**32, 2**40, 2**47, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "victim", "other", "..", "../x", "a/b", "_link", "x" * 200, "\0", "sum_tree", "rank", "uniform", "alpha")


def made_odd(message: Message, rng: random.Random) -> None:
    """Change one field of a message, or of a nested one, to another valid value of its type."""
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    if not fields:
        return
    described = rng.choice(fields)
    value = getattr(message, described.name)
    if isinstance(value, Message):
        if rng.random() < 0.1:
            message.ClearField(described.name)
        else:
            made_odd(value, rng)
    elif isinstance(value, (bytes, str, int, float)):
        setattr(message, described.name, _odd_value(described, value, rng))
    else:
        _make_odd_list(message, described, rng)


def _make_odd_list(message: Message, described: FieldDescriptor, rng: random.Random) -> None:
    values = getattr(message, described.name)
    if described.message_type is None:
        values.append(_odd_value(described, b"", rng))
    elif described.message_type.GetOptions().map_entry:
        values[rng.choice(_TEXTS)] = rng.choice(_FLOATS)
    elif values and rng.random() < 0.7:
        made_odd(rng.choice(values), rng)
    elif rng.random() < 0.5:
        values.add()
    else:
        message.ClearField(described.name)


def _odd_value(described: FieldDescriptor, old: object, rng: random.Random) -> object:
    match described.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            if described.type == FieldDescriptor.TYPE_STRING:
                return rng.choice(_TEXTS)
            assert isinstance(old, bytes)
            return rng.choice([b"", bytes(16), old * 2, mutated(old, rng)])
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM | FieldDescriptor.CPPTYPE_INT32:
            return rng.randint(-2, 15)
        case FieldDescriptor.CPPTYPE_UINT64 | FieldDescriptor.CPPTYPE_UINT32:
            return abs(rng.choice(_INTEGERS))
        case _:
            return rng.choice(_INTEGERS)
