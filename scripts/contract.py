"""The protocol as Markdown: services, messages and enums with the comments in proto/replay/v1."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

PROTO: Final = Path(__file__).resolve().parents[1] / "proto"
BUF: Final = Path(sys.executable).with_name("buf")
PACKAGE: Final = "replay.v1"
"""Package of the protocol. Types of other packages are named without a link."""
_FILE_COMMENT: Final = 12, 0
"""The first number is the path of the statement ``syntax``, whose leading comment describes the file."""

Comments = dict[tuple[int, ...], str]
Type = DescriptorProto | EnumDescriptorProto | ServiceDescriptorProto


def markdown() -> str:
    """Return the protocol as Markdown: each file with its services, messages and enums."""
    image = subprocess.run([BUF, "build", PROTO, "--output", "-"], capture_output=True, check=True).stdout
    files = FileDescriptorSet.FromString(image).file
    return "\n\n".join(text for file in files if file.package == PACKAGE for text in _file(file))


def _file(file: FileDescriptorProto) -> Iterator[str]:
    comments = {tuple(found.path): _text(found.leading_comments) for found in file.source_code_info.location}
    yield f"## {Path(file.name).name}"
    yield comments[_FILE_COMMENT[:1]]
    kinds: dict[int, Sequence[Type]] = {6: file.service, 4: file.message_type, 5: file.enum_type}
    for number, types in kinds.items():
        for index, found in enumerate(types):
            yield from _type(found, (number, index), comments)


def _type(found: Type, path: tuple[int, ...], comments: Comments, prefix: str = "") -> Iterator[str]:
    name = prefix + found.name
    yield f"({_anchor(name)})=\n### {name}\n\n{comments.get(path, '')}"
    match found:
        case ServiceDescriptorProto():
            for index, method in enumerate(found.method):
                yield f"**`rpc {method.name}`** {_signature(method)}\n\n{comments[(*path, 2, index)]}"
        case EnumDescriptorProto():
            rows = [(f"`{value.name}` = {value.number}", (*path, 2, index)) for index, value in enumerate(found.value)]
            yield _table("value", rows, comments)
        case DescriptorProto():
            rows = [(_field(field, found), (*path, 2, index)) for index, field in enumerate(found.field)]
            yield _table("field", rows, comments) if rows else "No fields."
            for index, nested in enumerate(found.nested_type):
                if not nested.options.map_entry:
                    yield from _type(nested, (*path, 3, index), comments, f"{name}.")
            for index, enum in enumerate(found.enum_type):
                yield from _type(enum, (*path, 4, index), comments, f"{name}.")


def _signature(method: MethodDescriptorProto) -> str:
    given = ("stream " if method.client_streaming else "") + _link(method.input_type)
    answer = ("stream " if method.server_streaming else "") + _link(method.output_type)
    return f"({given}) returns ({answer})"


def _field(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """Return the number, name and type of a field."""
    entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        kind = f"map of {_kind(entry.field[0])} to {_kind(entry.field[1])}"
    elif field.label == FieldDescriptorProto.LABEL_REPEATED:
        kind = f"repeated {_kind(field)}"
    elif field.proto3_optional:
        kind = f"optional {_kind(field)}"
    elif field.HasField("oneof_index"):
        kind = f"{_kind(field)}, one of `{message.oneof_decl[field.oneof_index].name}`"
    else:
        kind = _kind(field)
    return f"{field.number}: `{field.name}`, {kind}"


def _kind(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _link(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _link(type_name: str) -> str:
    name = type_name.removeprefix(f".{PACKAGE}.")
    return name.lstrip(".") if name == type_name else f"[{name}](#{_anchor(name)})"


def _anchor(name: str) -> str:
    return f"contract-{name.lower().replace('.', '-')}"


def _table(heading: str, rows: Sequence[tuple[str, tuple[int, ...]]], comments: Comments) -> str:
    lines = [f"| {name} | {_cell(comments.get(path, ''))} |" for name, path in rows]
    return "\n".join([f"| {heading} | |", "|---|---|", *lines])


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _text(comment: str) -> str:
    """Return a comment as Markdown, without the space after ``//``."""
    return re.sub(r"^ ", "", comment, flags=re.M).strip()
