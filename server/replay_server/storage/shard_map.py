"""Stores which servers hold the shards of this service's tables, in a small durable file.

    kept = ShardMapFile(root.path)
    kept.replace(new)
    kept.current

Clients read the map from any server and use the newest version. The server itself
only checks by it that a new table can be divided.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from replay_proto import shard_maps
from replay_proto.errors import FieldError
from replay_proto.shard_maps import MOST_ANCESTORS, STATES, LostRows, Shard, is_made_from
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.files.durable_files import replace_file
from replay_server.files.mapped_file import tells_full
from replay_server.storage.format import SHARD_MAP_FILE, UID_BYTES
from replay_server.storage.ranges import KEYS, MAP_CHANGES, MAP_VERSIONS, SHARD_IDS, Range
from replay_server.storage.table_config import is_table_name
from replay_server.storage.table_directory import DamagedTableError

_MOST_SHARDS: Final = 1024
_MOST_ADDRESS: Final = 256
_MOST_TABLES: Final = 10_000
_KNOWN: Final = "active, draining, lost or retired"
_GONE: Final = ("lost", "retired")
"""States of shards whose ids are never used again."""


class ShardMap(shard_maps.ShardMap):
    """All servers of a service. The map has been validated."""

    @classmethod
    def from_proto(cls, message: replay_pb2.ShardMap) -> Self:
        """Read and check a map that a client sent."""
        for index, shard in enumerate(message.shards):
            if shard.state not in STATES.values():
                raise FieldError(f"map.shards[{index}].state", _KNOWN, "another state")
        return super().from_proto(message).checked()

    def has(self, shard_id: int) -> bool:
        """Whether the map has a shard with this id, in any state."""
        return any(shard.id == shard_id for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values, with hexadecimal ids."""
        shards = [
            {
                **vars(shard),
                "lost_rows": [{**vars(lost), "table_uids": _hex(lost.table_uids)} for lost in shard.lost_rows],
            }
            for shard in self.shards
        ]
        ids = {"uid": self.uid.hex(), "id": self.id.hex(), "ancestors": _hex(self.ancestors)}
        return {**vars(self), **ids, "shards": shards}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Convert from the JSON values of `to_json`, and check them.

        Raises:
            FieldError, KeyError, TypeError, ValueError: the values are malformed.
        """
        shards = tuple(
            Shard(**{**shard, "lost_rows": tuple(_lost_from_json(lost) for lost in shard.get("lost_rows", ()))})
            for shard in stored["shards"]
        )
        own_id, ancestors = bytes.fromhex(stored.get("id", "")), map(bytes.fromhex, stored.get("ancestors", ()))
        return cls(bytes.fromhex(stored["uid"]), stored["version"], shards, own_id, tuple(ancestors)).checked()

    def check_newer(self, version: int) -> None:
        """Raise `FieldError` unless this map may follow one of this version; 0: it is the first."""
        Range(version + MAP_CHANGES.least, version + MAP_CHANGES.most).check("map.version", self.version)

    def check_follows(self, old: ShardMap) -> None:
        """Check that this map may replace an older one of the service.

        Raises:
            FieldError: this map belongs to another service, lacks an id of the older map, changes a lost or retired
                shard, or was not made from the older map.
        """
        if old.uid != self.uid:
            raise FieldError("map.uid", f"that of this service ({old.uid.hex()})", self.uid.hex())
        by_id = {shard.id: shard for shard in self.shards}
        for shard in old.shards:
            new = by_id.get(shard.id)
            if new is None or (shard.state in _GONE and new != shard):
                expected = f"shard {shard.id} at {shard.address}, {shard.state}; ids are never used again"
                got = "no such shard" if new is None else f"it at {new.address}, {new.state}"
                raise FieldError("map.shards", expected, got)
        if not is_made_from(self, old):
            expected = f"a map made from that of this server, {old.version} ({old.id.hex()}), which someone has changed"
            raise FieldError("map.ancestors", expected, f"map {self.version} ({self.id.hex()}), made from others")

    def checked(self) -> Self:
        """Return this map if it is valid."""
        if len(self.uid) != UID_BYTES:
            raise FieldError("map.uid", f"{UID_BYTES} bytes", f"{len(self.uid)} bytes")
        MAP_VERSIONS.check("map.version", self.version)
        if len(self.id) not in (0, UID_BYTES):
            raise FieldError("map.id", f"{UID_BYTES} bytes", f"{len(self.id)} bytes")
        if len(self.ancestors) > MOST_ANCESTORS or any(len(each) != UID_BYTES for each in self.ancestors):
            raise FieldError("map.ancestors", f"at most {MOST_ANCESTORS} ids of {UID_BYTES} bytes", "others")
        if not 1 <= len(self.shards) <= _MOST_SHARDS:
            raise FieldError("map.shards", f"1 to {_MOST_SHARDS} shards", str(len(self.shards)))
        for index, shard in enumerate(self.shards):
            field = f"map.shards[{index}]"
            SHARD_IDS.check(f"{field}.id", shard.id)
            if index and shard.id <= self.shards[index - 1].id:
                raise FieldError(f"{field}.id", "more than the id before it", str(shard.id))
            if not 1 <= len(shard.address) <= _MOST_ADDRESS:
                raise FieldError(f"{field}.address", f"1 to {_MOST_ADDRESS} characters", repr(shard.address))
            if len(shard.lost_rows) > _MOST_TABLES:
                raise FieldError(f"{field}.lost_rows", f"at most {_MOST_TABLES} tables", str(len(shard.lost_rows)))
            for lost in shard.lost_rows:
                _check_lost(f"{field}.lost_rows", lost)
            if shard.state not in STATES:
                raise FieldError(f"{field}.state", _KNOWN, "another state")
        addresses = [shard.address for shard in self.in_use]
        for address in addresses:
            if addresses.count(address) > 1:
                raise FieldError("map.shards", "each address once", f"{address!r} twice")
        return self


class ShardMapFile:
    """The map that a server keeps, if any."""

    def __init__(self, folder: Path) -> None:
        """Read the map in a server's root.

        Raises:
            DamagedTableError: the file is corrupt.
        """
        self.folder = folder
        """The server's root."""
        self._path = folder / SHARD_MAP_FILE
        self.current: ShardMap | None = None
        """The map; None if the tables of this server have no other shards."""
        if self._path.exists():
            try:
                self.current = ShardMap.from_json(json.loads(self._path.read_text("utf-8")))
            except (ValueError, KeyError, TypeError, FieldError) as error:
                raise DamagedTableError(f"{self._path}: corrupt: {error}; remove it, and set the map again") from error

    @property
    def version(self) -> int:
        """Version of the map; 0 if there is none."""
        return 0 if self.current is None else self.current.version

    def to_proto(self) -> replay_pb2.ShardMap | None:
        """Convert the map to the protobuf message, if there is one."""
        return None if self.current is None else self.current.to_proto()

    def replace(self, new: ShardMap) -> None:
        """Store another map durably.

        Raises:
            RequestError: NO_SPACE; the old map stays.
            OSError: the file cannot be written for another reason; the old map stays.
        """
        try:
            replace_file(self._path, json.dumps(new.to_json(), indent=1))
        except OSError as error:
            if tells_full(error):
                raise errors.no_space(SHARD_MAP_FILE, self.folder, "file") from error
            raise
        self.current = new


def _check_lost(field: str, lost: LostRows) -> None:
    """Raise `FieldError` unless these may be the rows of a table."""
    if not is_table_name(lost.table):
        raise FieldError(f"{field}.table", "the name of a table", repr(lost.table))
    if len(lost.table_uids) > _MOST_SHARDS or any(len(uid) != UID_BYTES for uid in lost.table_uids):
        raise FieldError(f"{field}.table_uids", f"at most {_MOST_SHARDS} uids of {UID_BYTES} bytes", "others")
    KEYS.check(f"{field}.inserted", lost.inserted)
    Range(0, lost.inserted).check(f"{field}.size", lost.size)


def _lost_from_json(stored: dict[str, Any]) -> LostRows:
    return LostRows(**{**stored, "table_uids": tuple(map(bytes.fromhex, stored["table_uids"]))})


def _hex(ids: Iterable[bytes]) -> list[str]:
    return [each.hex() for each in ids]
