"""What all channels have in common: no proxies, and names that are looked up again soon."""

from __future__ import annotations

import ast
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from replay_client import ReplayClient

from tests.packaging.project import PACKAGES, ROOT
from tests.support.server_process import ServerProcess, server_environment

StartServer = Callable[..., ServerProcess]
ONE_PLACE = "replay_proto/channels.py"
OPENS = {"insecure_channel", "secure_channel"}
NOWHERE = "http://127.0.0.1:1"
"""A proxy that does not answer."""
MOST_S = 10.0
"""For a name's new address to be found; by default, gRPC asks again after 30 s."""


def opened_in(source: Path) -> bool:
    """Whether a file opens channels itself."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in OPENS
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
    )


def test_channels_are_opened_in_one_place() -> None:
    sources = [source for folder in PACKAGES.values() for source in folder.rglob("*.py")]
    sources += [*(ROOT / "docker").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    assert [str(source)[-len(ONE_PLACE) :] for source in sources if opened_in(source)] == [ONE_PLACE]


def test_a_health_check_takes_no_proxy(server: ServerProcess) -> None:
    variables = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), NOWHERE)
    command = [sys.executable, str(ROOT / "docker" / "healthcheck.py"), server.address]
    done = subprocess.run(command, env=server_environment(variables), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class NameServer:
    """A name server that knows one name, and counts how often it is asked."""

    def __init__(self) -> None:
        self.host = "127.0.0.2"
        """The address of every name."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._answer, daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._socket.close()

    def _answer(self) -> None:
        while True:
            try:
                query, peer = self._socket.recvfrom(512)
            except OSError:
                return
            question = query[12 : query.index(b"\0", 12) + 5]
            wants_v4 = question[-4:-2] == b"\0\1"
            # An answer without a lifetime: the name of the question, type A, class IN, 0 s, four bytes.
            record = struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(self.host)
            head = query[:2] + struct.pack("!HHHHH", 0x8180, 1, int(wants_v4), 0, 0)
            self._socket.sendto(head + question + (record if wants_v4 else b""), peer)


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    """A name server."""
    made = NameServer()
    yield made
    made.close()


def test_a_server_with_a_new_address_is_found_soon(start_server: StartServer, name_server: NameServer) -> None:
    first = start_server("--host", name_server.host, "--insecure")
    with ReplayClient(f"dns://127.0.0.1:{name_server.port}/replay.test:{first.port}", timeout_s=60.0) as client:
        assert client.tables() == []
        first.terminate()
        name_server.host = "127.0.0.3"
        start_server("--host", name_server.host, "--insecure", port=first.port)
        began = time.monotonic()
        assert client.tables() == []
        assert time.monotonic() - began < MOST_S
