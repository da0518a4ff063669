"""Who may read what over HTTP: the same tokens and TLS as for gRPC."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import grpc
import pytest
from replay_server.http.serving import CHALLENGES

from tests.support.access import (
    ALL,
    EVERYWHERE,
    EXPIRED,
    OTHER,
    READ,
    WRITE,
    WRONG,
    Authority,
    tls_flags,
    write_usual_tokens,
)
from tests.support.caller import Caller
from tests.support.http_port import FLAGS, get, scrape
from tests.support.server_process import ServerProcess, run_to_its_end

StartServer = Callable[..., ServerProcess]


def test_probes_need_no_token_and_metrics_show_what_the_token_may_read(
    start_server: StartServer, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    server = start_server(
        *FLAGS, *tls_flags(authority.certify("server")), "--tokens", str(write_usual_tokens(tmp_path / "tokens.toml"))
    )
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    tls = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    for token, name in ((ALL, "mine-table"), (OTHER, "other-table")):
        credentials = grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token))
        with Caller(f"localhost:{server.port}", credentials=credentials) as caller:
            caller.create(name)

    for path in ("/healthz", "/readyz"):
        assert get(server, path, context=trusting).status == 200
    for token in ("", WRONG, EXPIRED):
        refused = get(server, "/metrics", token, trusting)
        assert (refused.status, refused.headers.get_all("www-authenticate")) == (401, list(CHALLENGES))
        assert "table" not in refused.text
    for token in (WRITE, EVERYWHERE):
        assert get(server, "/metrics", token, trusting).status == 403
    assert scrape(server, READ, trusting).labelled("table") == {"mine-table"}
    assert scrape(server, OTHER, trusting).labelled("table") == {"other-table"}
    with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        get(server, "/healthz", context=ssl.create_default_context())


def test_with_a_client_ca_readers_show_a_certificate_and_renewed_files_apply(
    start_server: StartServer, tmp_path: Path
) -> None:
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other")
    server = start_server(*FLAGS, *tls_flags(authority.certify("server"), authority.ca))
    mine = authority.certify("mine", "mine")

    def context(ca: Path) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(ca))
        made.load_cert_chain(mine.cert, mine.key)
        return made

    assert get(server, "/readyz", context=context(authority.ca)).status == 200
    with pytest.raises((URLError, OSError)):
        get(server, "/readyz", context=ssl.create_default_context(cafile=str(authority.ca)))
    renewed = other.certify("server")
    for new, old in ((renewed.key, "server.key"), (renewed.cert, "server.pem")):
        os.replace(new, tmp_path / "authority" / old)
    assert get(server, "/readyz", context=context(other.ca)).status == 200


def test_other_machines_are_kept_out_without_tokens(tmp_path: Path) -> None:
    ended = run_to_its_end(*FLAGS, "--http-host", "0.0.0.0", "--memory-dir", str(tmp_path))
    assert ended.returncode == 2
    assert "--http-host 0.0.0.0 is reachable from other machines" in ended.stderr
    assert "anyone could read the names and figures of all tables" in ended.stderr
