"""Reads the few fields of a request that are needed to check its caller's rights.

    named = only(replay_pb2.LearnRequest, "table", "update").FromString(request)
    named.table, named.HasField("update")

If a field occurs twice, the last value wins, and nested messages are merged. Protobuf applies the same rules when it
parses the whole request later, so the check and the handler always see the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "replay.names"


def only(message_type: type[Message], *paths: str) -> type[Message]:
    """Create a message type that has only some of the fields of ``message_type``, and skips the rest without parsing.

    Args:
        message_type: the original type.
        *paths: the fields to keep, which must not be repeated: for example "table", or "config.name" for a field of a
            nested message. If a path names a whole nested message, the content of that message is skipped, and only
            `HasField` works.
    """
    described = message_type.DESCRIPTOR
    file = FileDescriptorProto(name=f"{described.full_name}.names", package=_PACKAGE, syntax="proto3")
    _describe(file.message_type.add(), described, paths, f".{_PACKAGE}")
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{described.name}"))


def _describe(made: DescriptorProto, described: Any, paths: Iterable[str], scope: str) -> None:
    made.name = described.name
    scope = f"{scope}.{made.name}"
    for path in paths:
        name, _, rest = path.partition(".")
        field = described.fields_by_name[name]
        copy = made.field.add(
            name=name, number=field.number, type=field.type, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
        if rest:
            _describe(made.nested_type.add(), field.message_type, [rest], scope)
            copy.type_name = f"{scope}.{field.message_type.name}"
        elif field.message_type is not None:
            # Bytes have the same wire format as messages. Each optional field needs its own oneof.
            copy.type, copy.proto3_optional, copy.oneof_index = copy.TYPE_BYTES, True, len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{name}")
