"""What the live page says of a server that gives it no figures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import grpc
import pytest
from replay_proto.v1 import replay_pb2
from replay_server.http.shards.channels import Channels, PeerTls
from replay_server.http.shards.peer import Peer

from tests.support.access import Authority, Certified

UID = bytes(16)
GOOD = replay_pb2.StatsResponse(shards=replay_pb2.ShardMap(uid=UID)).SerializeToString()
REASONS: Mapping[bytes | grpc.StatusCode, str] = {
    grpc.StatusCode.UNAUTHENTICATED: "it does not know this token",
    grpc.StatusCode.PERMISSION_DENIED: "this token may read no table there",
    b"\xff": "its answer is malformed",
    grpc.StatusCode.UNAVAILABLE: "no answer",
}


class Other(grpc.GenericRpcHandler):
    """A server that answers all calls with the same bytes, or refuses them."""

    def __init__(self) -> None:
        self.answer: bytes | grpc.StatusCode = GOOD

    def service(self, _call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Handle any method."""
        return grpc.unary_unary_rpc_method_handler(self._handle)

    async def _handle(self, _request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if isinstance(self.answer, grpc.StatusCode):
            await context.abort(self.answer, "refused")
        assert isinstance(self.answer, bytes)
        return self.answer


@asynccontextmanager
async def serving(certified: Certified | None = None) -> AsyncIterator[tuple[Other, str]]:
    """Serve inside the block, and yield the server and its address."""
    other, server = Other(), grpc.aio.server()
    server.add_generic_rpc_handlers((other,))
    if certified is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (certified.key.read_bytes(), certified.cert.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield other, f"localhost:{port}"
    finally:
        await server.stop(None)


async def asked(peer: Peer, token: str | None = "x" * 20) -> str | None:
    """Ask a server, and return why it is away, if it is."""
    others = asyncio.all_tasks()
    peer.ask(token, UID)
    await asyncio.wait(asyncio.all_tasks() - others)
    return None if peer.away is None else peer.away.reason


def test_a_server_is_away_since_its_last_answer_whatever_the_reason_is() -> None:
    async def scenario() -> None:
        channels, seconds, since = Channels(None), count(), set()
        async with serving() as (other, address):
            peer = Peer(channels, address, lambda: next(seconds))
            assert await asked(peer) is None
            for other.answer, reason in REASONS.items():
                assert await asked(peer) == reason
                assert (peer.answer, peer.rates) == (None, {})
                since.add(peer.away)
            assert len({each.since_s for each in since if each is not None}) == 1
            other.answer = grpc.StatusCode.UNAUTHENTICATED
            assert await asked(peer, token=None) == "it requires a token"
            other.answer = GOOD
            assert await asked(peer) is None
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        ("good", None),
        ("of another authority", "its certificate is not trusted, see --tls-ca"),
        ("expired", "its certificate has expired"),
        ("for another name", "its certificate is for another name"),
        ("none", "it does not use TLS"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said(tmp_path: Path, which: str, reason: str | None) -> None:
    ours, foreign = Authority(tmp_path / "ours"), Authority(tmp_path / "foreign")
    own = ours.certify("own")
    certified = {
        "good": own,
        "of another authority": foreign.certify("server"),
        "expired": ours.certify("expired", until=datetime.now(UTC) - timedelta(days=1)),
        "for another name": ours.certify("other", "example.org"),
        "none": None,
    }

    async def scenario() -> None:
        channels = Channels(PeerTls(ours.ca, own.cert, own.key))
        async with serving(certified[which]) as (_, address):
            assert await asked(Peer(channels, address)) == reason
        await channels.close()

    asyncio.run(scenario())
