"""TLS and mutual TLS: admission, and reloading certificates."""

from __future__ import annotations

import queue
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import grpc
import numpy as np
import pytest
from replay_client import Column, InvalidArgumentError, ReplayClient, ServerUnavailableError, Tls
from replay_client.security import Access
from replay_proto.access.certificates import RENEWAL_S, ServerCertificates
from replay_proto.v1 import replay_pb2, replay_pb2_grpc

from tests.support.access import ALL, Authority, tls_flags, write_usual_tokens
from tests.support.deadlines import wait_until
from tests.support.http_port import http_port
from tests.support.refusals import code_of
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
SHORT_S = 2.0
PAUSE_S = 0.005


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def gets_in(server: ServerProcess, tls: Tls | None, token: str | None = None) -> bool:
    """Whether the server serves a client."""
    with ReplayClient(server.address, tls=tls, token=token, timeout_s=SHORT_S) as client:
        try:
            client.tables()
        except ServerUnavailableError:
            return False
    return True


def test_rows_travel_in_all_ways_over_tls(start_server: StartServer, authority: Authority) -> None:
    server = start_server(*tls_flags(authority.certify("server")))
    with ReplayClient(server.address, tls=authority.tls(), same_host=False) as client:
        table = client.create_table("table", columns={"x": Column("int64", (10_000,))}, capacity=100)
        with table.writer() as writer:
            for number in range(50):
                writer.append(x=[number] * 10_000)
        with table.sampler(20, beta=0.4) as sampler:
            batch = next(sampler)
        assert (batch["x"][:, 0] == batch.row_keys).all()
        assert table.sample(20, beta=0.4)["x"].shape == (20, 10_000)


def test_whoever_does_not_trust_it_or_speaks_plainly_stays_out(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    server = start_server(*tls_flags(authority.certify("server")))
    assert not gets_in(server, Authority(tmp_path / "other").tls())
    assert not gets_in(server, Tls())
    assert not gets_in(server, None)


def test_the_error_says_why_a_certificate_is_not_trusted(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    server = start_server(*tls_flags(authority.certify("server")))
    tls = Authority(tmp_path / "other").tls()
    with ReplayClient(server.address, tls=tls) as client, pytest.raises(ServerUnavailableError) as refused:
        client.stats()
    assert "CERTIFICATE_VERIFY_FAILED" in refused.value.__notes__[0]


def test_a_certificate_of_another_host_is_not_trusted_unless_its_name_is_given(
    start_server: StartServer, authority: Authority
) -> None:
    server = start_server(*tls_flags(authority.certify("server", "buffer.example")))
    assert not gets_in(server, authority.tls())
    assert gets_in(server, Tls(ca=authority.ca, server_name="buffer.example"))


def test_with_an_authority_for_clients_they_need_its_certificate(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    clients = Authority(tmp_path / "clients")
    server = start_server(*tls_flags(authority.certify("server"), clients.ca))
    mine = clients.certify("client", "me")
    assert gets_in(server, Tls(ca=authority.ca, cert=mine.cert, key=mine.key))
    strange = authority.certify("strange", "me")
    assert not gets_in(server, Tls(ca=authority.ca, cert=strange.cert, key=strange.key))
    assert not gets_in(server, Tls(ca=authority.ca))


def test_tokens_are_asked_for_behind_tls(start_server: StartServer, authority: Authority, tmp_path: Path) -> None:
    tokens = write_usual_tokens(tmp_path / "tokens.toml")
    server = start_server(*tls_flags(authority.certify("server")), "--tokens", str(tokens))
    assert gets_in(server, authority.tls(), ALL)


def certificate_of(server: ServerProcess) -> bytes:
    """The certificate that the server presents."""
    return ssl.get_server_certificate(("127.0.0.1", server.port), timeout=10).encode()


def test_a_new_certificate_is_taken_up_and_open_connections_go_on(
    start_server: StartServer, authority: Authority
) -> None:
    server = start_server(*tls_flags(authority.certify("server")))
    before = certificate_of(server)
    with ReplayClient(server.address, tls=authority.tls()) as client:
        client.tables()
        renewed = authority.certify("server")
        assert certificate_of(server) != before
        assert certificate_of(server) in renewed.cert.read_bytes()
        assert client.tables() == []
    assert gets_in(server, authority.tls())


@pytest.mark.parametrize("first", ["gRPC", "HTTP"])
def test_a_new_certificate_is_taken_up_by_both_ports(
    start_server: StartServer, authority: Authority, first: str
) -> None:
    server = start_server(*tls_flags(authority.certify("server")), "--http-port", "0")
    ports = {"gRPC": server.port, "HTTP": http_port(server)}

    def shown(port: int) -> bytes:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=10).encode()

    before = {shown(port) for port in ports.values()}
    renewed = authority.certify("server").cert.read_bytes()
    for name in sorted(ports, key=lambda name: name != first):
        wait_until(lambda port=ports[name]: shown(port) not in before, f"{name} has the new one")  # type: ignore[misc]
        assert shown(ports[name]) in renewed


def test_an_authority_of_clients_can_be_replaced(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    server = start_server(*tls_flags(authority.certify("server"), first.ca))
    mine = second.certify("client", "me")
    tls = Tls(ca=authority.ca, cert=mine.cert, key=mine.key)
    assert not gets_in(server, tls)
    first.ca.write_bytes(second.ca.read_bytes())
    assert gets_in(server, tls)


def test_a_certificate_that_cannot_be_used_leaves_the_one_before(
    start_server: StartServer, authority: Authority
) -> None:
    certified = authority.certify("server")
    server = start_server(*tls_flags(certified))
    before, key = certificate_of(server), certified.key.read_bytes()
    for content in (b"", b"nonsense", Authority(certified.key.parent / "other").certify("other").key.read_bytes()):
        certified.key.write_bytes(content)
        assert certificate_of(server) == before
    certified.key.unlink()
    assert certificate_of(server) == before
    assert "PRIVATE KEY" not in server.wait_for_log("is invalid, keeping its previous content")
    certified.key.write_bytes(key)
    assert gets_in(server, authority.tls())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_not_resumed_for_long_where_clients_need_certificates(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    """A client that resumes a session presents no certificate, so the server would not notice that it has expired."""
    served, mine = authority.certify("server"), authority.certify("client", "me")
    now = [0.0]
    certificates = ServerCertificates(served.cert, served.key, authority.ca, ticks=lambda: now[0])
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", certificates.credentials())
    server.start()
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(mine.cert, mine.key)
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version

    def connect(session: ssl.SSLSession | None) -> tuple[bool | None, ssl.SSLSession | None]:
        """Whether the session was resumed, and the one to resume next."""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as link,
        ):
            assert link.recv(1), "the server's settings, which come behind the session's ticket"
            return link.session_reused, link.session

    try:
        _, session = connect(None)
        resumed, session = connect(session)
        assert resumed, "nothing is resumed: this test shows nothing"
        now[0] = RENEWAL_S
        assert connect(session)[0] is False
    finally:
        server.stop(None)


def test_who_has_a_certificate_shows_it_again_and_loses_nothing(
    start_server: StartServer, authority: Authority
) -> None:
    tls = authority.tls(authority.certify("client", "me"))
    flags = [*tls_flags(authority.certify("server"), authority.ca), "--max-connection-s", str(SHORT_S)]
    server = start_server(*flags)
    with ReplayClient(server.address, tls=tls, same_host=False) as client, ThreadPoolExecutor(1) as threads:
        table = client.create_table("table", columns={"x": Column("int64")}, capacity=1_000_000)
        table.insert({"x": [0]})
        cut_off = threads.submit(held_open_until_cut_off, server.address, tls)
        written = 1
        with table.writer() as writer, table.sampler(4, beta=0.4) as sampler:
            # Connect with pauses, because the lifetime of connections is tested.
            while wait([cut_off], timeout=PAUSE_S).not_done or written < 1000:
                for _ in range(10):
                    writer.append(x=written)
                    written += 1
                batch = next(sampler)
                sampler.update_priorities(batch, batch["x"] + 1.0)
        for value in range(3):
            table.insert({"x": [written + value]})
        assert cut_off.result() is grpc.StatusCode.UNAVAILABLE
        keys = np.arange(written + 3)
        assert table.describe().inserted == len(keys)
        for part in np.array_split(keys, 1 + len(keys) // 1000):
            np.testing.assert_array_equal(table.read(part)["x"], part)


def held_open_until_cut_off(address: str, tls: Tls) -> grpc.StatusCode | None:
    """Status of the second of two streams on separate connections, which are silent and not closed by the client."""
    code = None
    for _ in range(2):
        requests: queue.SimpleQueue[replay_pb2.LearnRequest | None] = queue.SimpleQueue()
        with Access(tls=tls).open_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            requests.put(replay_pb2.LearnRequest(table="table", draw=replay_pb2.Draw(batch_size=1)))
            answers = replay_pb2_grpc.ReplayServiceStub(channel).Learn(iter(requests.get, None), timeout=60)
            try:
                for _ in answers:
                    pass
            except grpc.RpcError as error:
                code = code_of(error)
            requests.put(None)
    return code


def test_a_key_that_others_can_read_is_warned_of(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    certified = authority.certify("server")
    ServerCertificates(certified.cert, certified.key, None)
    assert caplog.text == ""
    certified.key.chmod(0o644)
    ServerCertificates(certified.cert, certified.key, None)
    assert f"chmod g-w,o= {certified.key}" in caplog.text


def test_whoever_connects_and_says_nothing_is_in_nobodys_way(start_server: StartServer, authority: Authority) -> None:
    server = start_server(*tls_flags(authority.certify("server")))
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(20)]
    assert gets_in(server, authority.tls())
    for connection in idle:
        connection.close()


def test_a_client_names_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    for tls in (Tls(ca=tmp_path / "absent"), Tls(ca=tmp_path)):
        with pytest.raises(InvalidArgumentError, match=r"tls\.ca: expected a PEM file"):
            ReplayClient("localhost:1", tls=tls)
    with pytest.raises(InvalidArgumentError, match="cert and key together"):
        Tls(cert="c.pem")
