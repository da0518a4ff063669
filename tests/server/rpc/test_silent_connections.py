"""Silent connections to the local socket are limited in number and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from replay_proto.v1 import replay_pb2
from replay_server.rpc.local_socket.listener import MOST_SILENT

from tests.support.caller import SAME_HOST, CalledTable, Caller
from tests.support.deadlines import PATIENCE_S
from tests.support.frame_stub import HEAD, FrameLink, greeted, hello_for

pytestmark = pytest.mark.parametrize("data_path", [SAME_HOST], indirect=True, scope="session")


@pytest.fixture
def described(new_table: Callable[..., CalledTable], caller: Caller) -> replay_pb2.TableDescription:
    """A table for calls."""
    return new_table(capacity=10).describe()


@pytest.fixture
def open_silent(described: replay_pb2.TableDescription) -> Iterator[Callable[[], FrameLink]]:
    """Opens connections on which nothing is sent."""
    links: list[FrameLink] = []

    def open_one() -> FrameLink:
        links.append(FrameLink(described.socket))
        return links[-1]

    yield open_one
    for link in links:
        link.close()


def ends(link: FrameLink, within_s: float = PATIENCE_S) -> bool:
    link.socket.settimeout(within_s)
    try:
        return link.socket.recv(1) == b""
    except (TimeoutError, BlockingIOError):
        return False
    except ConnectionError:
        return True


def test_of_too_many_the_oldest_goes(
    described: replay_pb2.TableDescription, open_silent: Callable[[], FrameLink]
) -> None:
    silent = [open_silent() for _ in range(MOST_SILENT + 3)]
    assert all(ends(link) for link in silent[:3])
    assert not any(ends(link, 0.0) for link in silent[3:]), "the first were dropped because their time was over"
    greeted(described, "Learn").close()


def test_who_has_said_hello_is_not_counted(
    described: replay_pb2.TableDescription, open_silent: Callable[[], FrameLink]
) -> None:
    served = [greeted(described, "Sample") for _ in range(MOST_SILENT + 3)]
    open_silent()
    for link in served:
        link.send(b"\xff")
        assert link.receive()
        link.close()


def test_one_that_says_only_the_beginning_of_a_hello_is_silent(
    described: replay_pb2.TableDescription, open_silent: Callable[[], FrameLink]
) -> None:
    hello = hello_for(described, "Sample").SerializeToString()
    link = open_silent()
    for byte in HEAD.pack(len(hello), 0):
        link.socket.sendall(bytes([byte]))
    assert ends(link)
