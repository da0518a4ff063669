"""What of a request is read before its caller's rights are known.

    named = only(replay_pb2.LearnRequest, "table", "update").FromString(request)
    named.table, named.HasField("update")

Protobuf itself reads these few fields, by the same rules by which it reads the whole request later: of a field that
comes twice the last one counts, and messages are merged. So a caller cannot show one name to the check of rights and
another one to the handler.
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
    """A message type with some of the fields of another; what else a message has is skipped, not parsed.

    Args:
        message_type: the other one.
        *paths: which fields, none of them repeated: "table", or in a message within it "config.name". A message of
            which no field is named is not looked into: its `HasField` says whether it is there.
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
            # Bytes look the same on the wire. A field that is marked as optional is in a group of its own.
            copy.type, copy.proto3_optional, copy.oneof_index = copy.TYPE_BYTES, True, len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{name}")
