"""Clients of earlier versions get the answers that their own server gave them.

`recordings/client_N.jsonl` has the messages of version N's client; `client_N.py` beside it is its program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from replay_proto.v1 import replay_pb2

from tests.compatibility.recording import Event, ReplayedCall, read
from tests.support.server_process import ServerProcess

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl"))
SERVICE = "/replay.v1.ReplayService/"
DRAWN = {"uid", "table_uid", "server_uid", "owner_id"}
MEASURED = {"server", "ages_s", "rates", "delay_s"}
ADDED = {"max_rows_per_call"}
"""Fields that later versions have added to replies. Earlier clients ignore them."""
NOT_COMPARED = {*DRAWN, *MEASURED, *ADDED, "directory", "socket", "version"}
"""Fields that differ between two servers. Draws of rows are equal, because the tables have a seed."""


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda file: file.stem)
def test_a_client_of_an_earlier_version_gets_the_same_answers(
    recording: Path, start_server: Callable[..., ServerProcess]
) -> None:
    events = read(recording)
    with grpc.insecure_channel(start_server().address) as channel:
        compared = [event.method for event, told, expected in answers(channel, events) if is_same(told, expected)]
    assert compared == [event.method for event in events if event.kind == "answer" and SERVICE in event.method]
    assert len(set(compared)) >= 12  # RPCs


def answers(channel: grpc.Channel, events: list[Event]) -> Iterator[tuple[Event, Any, Any]]:
    """Repeat the calls in the recorded order; yield each answer with the recorded one."""
    calls: dict[int, ReplayedCall] = {}
    renamed: dict[bytes, bytes] = {}  # this server's uid of each table, by the recorded server's
    for event in events:
        if not event.method.startswith(SERVICE):
            continue
        if event.call not in calls:
            calls[event.call] = ReplayedCall(channel, event.method)
        if event.kind == "request":
            calls[event.call].send(with_uids(event.body, renamed))
        elif event.kind == "requests end":
            calls[event.call].end_requests()
        elif event.kind == "answer":
            told, expected = (parsed(event, body) for body in (calls[event.call].answer(), event.body))
            if event.method == f"{SERVICE}CreateTable":
                renamed[expected.table.uid] = told.table.uid
            yield event, told, expected


def with_uids(message: bytes, renamed: dict[bytes, bytes]) -> bytes:
    for recorded, here in renamed.items():
        message = message.replace(recorded, here)  # both are 16 random bytes
    return message


def parsed(event: Event, body: bytes) -> Any:
    return getattr(replay_pb2, f"{event.method.removeprefix(SERVICE)}Response").FromString(body)


def is_same(told: Message, expected: Message) -> bool:
    assert fields(told) == fields(expected)
    return True


def fields(message: Message) -> dict[str, Any]:
    """Values by name, of all fields that two servers have in common."""
    common = [(field, value) for field, value in message.ListFields() if field.name not in NOT_COMPARED]
    return {field.name: value_of(field, value) for field, value in common}


def value_of(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Message):
        return fields(value)
    if field.message_type is not None and not field.message_type.GetOptions().map_entry:
        return [fields(part) for part in value]
    return dict(value) if hasattr(value, "keys") else value
