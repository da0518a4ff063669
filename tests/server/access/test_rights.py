"""Rights that each RPC requires, for arbitrary tokens, compared with a plain table."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st
from replay_proto.access.tokens import Right, TokenEntry
from replay_proto.v1 import replay_pb2
from replay_server.auth import Revocations, TokenHolder
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.rpc.endpoints import all_endpoints
from replay_server.rpc.rights import Demand
from replay_server.rpc.statuses import CODES
from replay_server.storage.root import Root

from tests.support.wire import METHODS

NAMES = ("mine", "mine-2", "theirs", "periodic", "checkpoint")
PATTERNS = ("*", "mine*", "mine-?", "mine", "theirs", "p*", "?", "*e*")
TABLE = """
CreateTable        admin on the table
DropTable          admin on the table
ListTables         read on any
DescribeTable      read/write/admin on the table
ResetTable         admin on the table
Insert             write on the table
Write              write on the table
Sample             read on the table
Read               read on the table
UpdatePriorities   write on the table
UpdateRows         write on the table
Learn              read on the table
Learn:update       read on the table, write on the table
Learn:row_update   read on the table, write on the table
Learn:rows         read on the table, write on the table
Learn:charge       read on the table, write on the table
Learn:refund       read on the table, write on the table
Stats              read on any
Stats:table        read on the table
Checkpoint         admin on all
Checkpoint:series  admin on all
Checkpoint:tables  admin on the table, admin on the other
Checkpoint:both    admin on the table, admin on the other, admin on the series
ListCheckpoints    admin on all
VerifyCheckpoint   admin on all
GetShards          read/write/admin on any
SetShards          admin on all
ReportShard        write on the table
Inspect            read on the table
"""
"""Required rights by RPC (with a kind of request after a colon). `on any`: on any table that the token covers."""
EXPECTED = {line.split()[0]: line.split(maxsplit=1)[1].split(", ") for line in TABLE.strip().splitlines()}


def _demands() -> Mapping[str, Demand]:
    """Rights that each RPC of a server requires."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Root.in_memory(Path(folder))) as root:
        return {name: endpoint.demand for name, endpoint in all_endpoints(Catalog(root)).items()}


DEMANDS = _demands()


class OneToken:
    """A token file with one token that does not expire."""

    def __init__(self, entry: TokenEntry) -> None:
        self._entry = entry

    def entry(self, _digest: bytes) -> TokenEntry:
        return self._entry

    def has_expired(self, _entry: TokenEntry) -> bool:
        return False


def request_of(call: str, table: str, other: str, series: str) -> Message:
    """A request about these tables and this series."""
    rpc, _, kind = call.partition(":")
    if rpc == "CreateTable":
        return replay_pb2.CreateTableRequest(config=replay_pb2.TableConfig(name=table))
    if rpc == "Checkpoint":
        return replay_pb2.CheckpointRequest(
            tables=[table, other] if kind in ("tables", "both") else [],
            series=series if kind in ("series", "both") else "",
        )
    if call == "Learn:update":
        return replay_pb2.LearnRequest(table=table, update=replay_pb2.PriorityUpdate())
    if call == "Learn:row_update":
        return replay_pb2.LearnRequest(table=table, row_update=replay_pb2.RowUpdate())
    if call == "Learn:rows":
        return replay_pb2.LearnRequest(table=table, rows=b"row")
    if rpc == "Learn" and kind:
        return replay_pb2.LearnRequest(table=table, **{kind: 1})  # type: ignore[arg-type]
    message: Message = getattr(replay_pb2, f"{rpc}Request")()
    if "table" in message.DESCRIPTOR.fields_by_name and call != "Stats":
        message.table = table  # type: ignore[attr-defined]
    return message


def is_for(patterns: Sequence[str], name: str) -> bool:
    """Whether a token with these patterns covers a table."""
    regexes = (re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".") for pattern in patterns)
    return any(re.fullmatch(regex, name) for regex in regexes)


def is_expected(call: str, entry: TokenEntry, table: str, other: str, series: str) -> bool:
    """Whether the table says that the call is allowed."""

    def has(wanted: str) -> bool:
        rights, on = wanted.split(" on ")
        if not any(Right[right.upper()] & entry.rights for right in rights.split("/")):
            return False
        if on == "any" or "*" in entry.tables:
            return True
        if on == "all" or (on == "the series" and series == "periodic"):
            return False
        return is_for(entry.tables, {"the table": table, "the other": other, "the series": series}[on])

    # Without a series, it is named after the first table.
    first_is_taken = call == "Checkpoint:tables" and table == "periodic" and "*" not in entry.tables
    return all(map(has, EXPECTED[call])) and not first_is_taken


def is_allowed(call: str, entry: TokenEntry, request: Message) -> bool:
    """Whether the service allows the call, or refuses it with the wrong error."""
    demand, data = DEMANDS[call.partition(":")[0]], request.SerializeToString()
    caller = TokenHolder(OneToken(entry), b"", Revocations())  # type: ignore[arg-type]
    try:
        demand.check(caller, None if demand.names is None else demand.names.FromString(data), "")
    except RequestError as refusal:
        named = set(re.findall("'([^']*)'", str(refusal))) - {entry.name}
        names_only_what_came = all(name.encode() in data for name in named)
        return CODES[refusal.reason] is not grpc.StatusCode.PERMISSION_DENIED or not names_only_what_came
    return True


def test_every_rpc_has_its_line() -> None:
    assert {call.partition(":")[0] for call in EXPECTED} == set(METHODS) == set(DEMANDS)


@pytest.mark.parametrize("call", EXPECTED)
@given(
    rights=st.sets(st.sampled_from(list(Right)), min_size=1),
    patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3),
    table=st.sampled_from(NAMES),
    other=st.sampled_from(NAMES),
    series=st.sampled_from(NAMES),
)
@example(rights={Right.WRITE}, patterns=["*"], table="mine", other="mine", series="mine")
@example(rights={Right.ADMIN}, patterns=["mine*"], table="mine", other="theirs", series="periodic")
@example(rights={Right.ADMIN}, patterns=["mine", "p*"], table="mine", other="mine", series="periodic")
def test_what_is_allowed_is_what_the_table_says(
    call: str, rights: set[Right], patterns: list[str], table: str, other: str, series: str
) -> None:
    granted = Right(0)
    for right in rights:
        granted |= right
    entry = TokenEntry("token", b"", granted, tuple(patterns))
    allowed = is_allowed(call, entry, request_of(call, table, other, series))
    assert allowed == is_expected(call, entry, table, other, series)
