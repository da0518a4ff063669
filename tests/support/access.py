"""Tokens and certificates for servers and callers of tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import trustme
from replay_client import Tls

READ, WRITE, ADMIN, ALL, OTHER, EXPIRED, EVERYWHERE = (
    f"{name}-{'x' * 20}" for name in ("rd", "wr", "adm", "all", "oth", "exp", "every")
)
"""Tokens in the file that `write_usual_tokens` writes."""
WRONG = "wrong-" + "x" * 20
"""A token that is in no file."""
MINE = "mine-"
"""Prefix of the tables on which those tokens have rights, except `OTHER` and `EVERYWHERE`."""


def token_entry(name: str, token: str, rights: Sequence[str], tables: Sequence[str] = ("*",), expires: str = "") -> str:
    """A token's entry in the file."""
    lines = [
        "[[tokens]]",
        f"name = {json.dumps(name)}",
        f"token = {json.dumps(token)}",
        f"rights = {json.dumps(list(rights))}",
        f"tables = {json.dumps(list(tables))}",
    ]
    return "\n".join([*lines, *([f"expires = {expires}"] if expires else []), ""])


def write_usual_tokens(path: Path) -> Path:
    """Write a file with the tokens above."""
    every = ("read", "write", "admin")
    path.write_text(
        token_entry("reader", READ, ["read"], [f"{MINE}*"])
        + token_entry("writer", WRITE, ["write"], [f"{MINE}*"])
        + token_entry("administrator", ADMIN, ["admin"], [f"{MINE}*"])
        + token_entry("all rights", ALL, every, [f"{MINE}*"])
        + token_entry("elsewhere", OTHER, every, ["other-*"])
        + token_entry("everywhere", EVERYWHERE, ["admin"])
        + token_entry("long ago", EXPIRED, every, expires="2020-01-01T00:00:00Z")
    )
    return path


@dataclass(frozen=True)
class Certified:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority in a separate folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def certify(self, name: str, *hosts: str, until: datetime | None = None) -> Certified:
        """Write a certificate for these hosts, replacing earlier files with this name."""
        made = self._ca.issue_cert(*(hosts or ("localhost", "127.0.0.1")), not_after=until)
        found = Certified(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        found.cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(found.key))
        return found

    def tls(self, client: Certified | None = None) -> Tls:
        """CA certificate for clients."""
        return Tls(ca=self.ca) if client is None else Tls(ca=self.ca, cert=client.cert, key=client.key)


def tls_flags(server: Certified, client_ca: Path | None = None) -> list[str]:
    """Flags of a server with TLS."""
    flags = ["--tls-cert", str(server.cert), "--tls-key", str(server.key)]
    return flags if client_ca is None else [*flags, "--tls-client-ca", str(client_ca)]


def tls_variables(tls: Tls, prefix: str = "REPLAY_TLS") -> Mapping[str, str]:
    """The equivalent environment variables."""
    fields = {"CA": tls.ca, "CERT": tls.cert, "KEY": tls.key}
    return {f"{prefix}_{name}": str(path) for name, path in fields.items() if path is not None}
