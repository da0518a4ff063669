"""Rights by field: which fields of which requests a token may send, built from the descriptors of the service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from replay_proto.access.tokens import Right
from replay_proto.v1 import replay_pb2
from replay_server.rpc.rights import FIELDS, Needed

from tests.support.access import token_entry
from tests.support.caller import make_draw
from tests.support.every_request import KINDS, World
from tests.support.refusals import refusal_in, refused
from tests.support.request_fields import CONTRACT, Field, fields
from tests.support.wire import METHODS, SERVICE

ALL = ("read", "write", "admin")
OWN = {
    found[2]: found[1]
    for found in re.finditer(r"// Right: (\w+)[^\n]*\n(?:  //[^\n]*\n)*  rpc (\w+)\(", CONTRACT.read_text("utf-8"))
}
"""The right that each RPC requires by itself, as the contract says; "any": one of them."""


def token(rights: tuple[str, ...], tables: str = "all") -> str:
    """The token with these rights, on all tables or on those that the requests name, but no others."""
    return f"{tables}-{'-'.join(rights)}-{'x' * 16}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server whose tokens have any one right, any two, or all."""
    folder: Path = tmp_path_factory.mktemp("field-rights")
    without = [tuple(right for right in ALL if right != left_out) for left_out in ALL]
    entries = [
        token_entry(token(rights), token(rights), rights) for rights in [ALL, *without, *((one,) for one in ALL)]
    ]
    named = token(ALL, "named")
    entries.append(token_entry(named, named, ALL, sorted(KINDS)))
    tokens = folder / "tokens.toml"
    tokens.write_text("".join(entries))
    made = World(folder, "--tokens", str(tokens), token=token(ALL))
    yield made
    made.close()


def messages(described: Descriptor) -> Iterator[Descriptor]:
    """A message, and all messages in it."""
    yield described
    for field in described.fields:
        if field.message_type is not None:
            yield from messages(field.message_type)


REQUESTS = {each.name: each for method in SERVICE.methods for each in messages(method.input_type)}
"""All messages in requests, by name."""


def needed(field: Field) -> list[Needed]:
    """What the field, and the messages that it is in, require."""
    names = (each.full_name.split(".")[-2:] for each in field.path)
    return [more for message, name in names if (more := FIELDS.get(message, {}).get(name)) is not None]


ALL_FIELDS = list(fields())
NEEDING = [field for field in ALL_FIELDS if needed(field)]
NEEDING_NOTHING = [field for field in ALL_FIELDS if not needed(field)]


@pytest.mark.parametrize("message", REQUESTS)
def test_every_field_of_every_request_says_who_may_send_it(message: str) -> None:
    assert set(FIELDS[message]) == set(REQUESTS[message].fields_by_name)


def test_every_rpc_says_its_right_in_the_contract() -> None:
    assert set(OWN) == set(METHODS)
    assert set(FIELDS) == set(REQUESTS)


def request_with(world: World, field: Field) -> Message:
    """A valid request in which the field is set, if it can be."""
    makers = world.requests(field.method)
    made = [make() for make in makers]
    return next((each for each in made if field.is_present(each)), made[0])


@pytest.mark.parametrize("field", NEEDING, ids=str)
def test_who_lacks_a_right_that_a_field_needs_is_refused_and_nothing_changes(world: World, field: Field) -> None:
    request = request_with(world, field)
    assert field.is_present(request), f"no request sets {field}; add one to `World.requests`"
    before = state(world)
    for right, on in needed(field):
        lacking = tuple(each for each in ALL if Right[each.upper()] is not right)
        with refused("PERMISSION_DENIED", right=str(right.name).lower()):
            # A series has the name of a table that the other token does not have.
            world.call(field.method, request, token(ALL, "named") if on == "series" else token(lacking))
    assert state(world) == before
    world.call(field.method, request)


@pytest.mark.parametrize("field", NEEDING_NOTHING, ids=str)
def test_any_other_field_takes_only_the_right_of_its_rpc(world: World, field: Field) -> None:
    own = "read" if OWN[field.method] == "any" else OWN[field.method]
    request = request_with(world, field)
    for name, more in FIELDS[request.DESCRIPTOR.name].items():
        if more is not None and more.right is not Right[own.upper()]:
            request.ClearField(name)
    assert reason_of(world, field.method, request, token((own,))) != "PERMISSION_DENIED"


@pytest.mark.parametrize("method", ["Sample", "Learn"])
def test_only_who_may_charge_samples_draws_without_being_counted(world: World, method: str) -> None:
    """In a table with `samples_per_insert`: there is nothing to charge in one that only has a `min_size`."""
    request = getattr(replay_pb2, f"{method}Request")(table="limited", draw=make_draw(1, charged_apart=True))
    with refused("PERMISSION_DENIED", right="write"):
        world.call(method, request, token(("read",)))
    world.call(method, request, token(("read", "write")))
    request.table = "late"
    assert reason_of(world, method, request, token(("read",))) != "PERMISSION_DENIED"


def reason_of(world: World, method: str, request: Message, given: str) -> str:
    """Why a call is refused; empty if it is answered."""
    try:
        world.call(method, request, given)
    except grpc.RpcError as error:
        return refusal_in(error).reason
    return ""


@pytest.mark.parametrize("method", METHODS)
def test_no_rpc_is_open_to_who_lacks_its_right(world: World, method: str) -> None:
    own = OWN[method]
    if own == "any":
        world.call(method, world.requests(method)[0](), token(("admin",)))
        return
    request = world.requests(method)[0]()
    before = state(world)
    with refused("PERMISSION_DENIED"):
        world.call(method, request, token(tuple(each for each in ALL if each != own)))
    assert state(world) == before


def state(world: World) -> list[bytes]:
    """What a refused request must not change: all tables, their limiters and reports, checkpoints, and the map."""
    stats: replay_pb2.StatsResponse = world.call("Stats", replay_pb2.StatsRequest())
    stats.ClearField("server")
    for table in stats.tables:
        table.ClearField("rates")
        table.ClearField("ages_s")
    listed = world.call("ListCheckpoints", replay_pb2.ListCheckpointsRequest())
    return [each.SerializeToString(deterministic=True) for each in (stats, listed)]
