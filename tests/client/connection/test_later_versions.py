"""Tables of kinds that only a later version knows: an older client says so, and an older server refuses them."""

from __future__ import annotations

import re
from typing import TypeVar

import pytest
from google.protobuf.message import Message
from replay_client import Column, InternalServerError, Stack, Transitions
from replay_client.results.description import TableDescription
from replay_proto.steps import Steps
from replay_proto.v1 import replay_pb2

from tests.support.caller import Caller
from tests.support.refusals import refused

AnyMessage = TypeVar("AnyMessage", bound=Message)
STEPS = Steps.of({"x": Column("float32"), "stacked": Stack("x", 2)}, Transitions(1))
STORED = replay_pb2.StoredColumn(data_type=replay_pb2.DATA_TYPE_FLOAT32)


def later(message: AnyMessage) -> AnyMessage:
    """A message with a field of a later version, which has the number 100 and is empty."""
    return type(message).FromString(message.SerializeToString() + b"\xa2\x06\x00")


def config(*columns: replay_pb2.Column, steps: replay_pb2.Steps | None = None) -> replay_pb2.TableConfig:
    return replay_pb2.TableConfig(name="later", columns=columns, capacity=10, steps=steps)


CONFIGS = {
    "column": (config(later(replay_pb2.Column(name="x"))), "columns.x.source", "a type unknown to this version"),
    "column of steps": (
        config(later(replay_pb2.Column(name="y")), steps=STEPS.to_proto()),
        "columns.y.source",
        "a type unknown to this version",
    ),
    "derived column": (
        config(
            *STEPS.columns_to_proto(),
            replay_pb2.Column(name="y", derived=later(replay_pb2.DerivedColumn())),
            steps=STEPS.to_proto(),
        ),
        "columns.y.derived",
        "a kind unknown to this version",
    ),
    "item": (
        config(*STEPS.columns_to_proto(), steps=later(replay_pb2.Steps(gamma=0.9))),
        "steps.item",
        "a kind unknown to this version",
    ),
    "data type": (
        config(replay_pb2.Column(name="x", stored=replay_pb2.StoredColumn(data_type=99))),  # type: ignore[arg-type]
        "columns.x.data_type",
        "number 99",
    ),
    "column of steps in a table of rows": (
        config(*STEPS.columns_to_proto()),
        "columns.x.source",
        "step",
    ),
}
pytestmark = pytest.mark.parametrize(("described", "field", "got"), CONFIGS.values(), ids=CONFIGS)


def test_a_client_says_which_part_of_a_table_it_does_not_know(
    described: replay_pb2.TableConfig, field: str, got: str
) -> None:
    message = rf"table 'later' is of a type unknown to this client: {re.escape(field)}: .* {got}$"
    with pytest.raises(InternalServerError, match=message):
        TableDescription.from_proto(replay_pb2.TableDescription(config=described))


def test_a_server_refuses_what_it_does_not_know_and_names_it(
    caller: Caller, described: replay_pb2.TableConfig, field: str, got: str
) -> None:
    with refused("INVALID_FIELD", field=field, got=got):
        caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=described))
    assert "later" not in caller.table_names()
