"""Descriptions and statistics of servers, tables and checkpoints."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


D = TypeVar("D", bound="DataclassInstance")


def mirrored(kind: type[D], message: Message, **others: object) -> D:
    """Create a dataclass. Fields that are not in ``others`` are copied from the message's fields of the same names."""
    same = {field.name: getattr(message, field.name) for field in fields(kind) if field.name not in others}
    return kind(**same, **others)
