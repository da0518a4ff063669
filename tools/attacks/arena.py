"""A real server with TLS and tokens, and a table from which a bystander draws."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np

from tests.support.access import ADMIN, ALL, EVERYWHERE, MINE, READ, WRITE, Authority, tls_flags, token_entry
from tests.support.caller import CalledTable, Caller
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess
from tests.support.small_disk import with_small_disk
from tools.attacks.attack import Setup, Target
from tools.attacks.bystander import OFTEN_S, SLOWLY_S, Bystander, Listing, Routine, Sampling

OWNER = "owner-" + "x" * 20
"""Token with all rights on all tables; attackers do not have it."""
THEIRS = "theirs"
"""Table of the bystander, on which attackers have no rights."""
_ROWS = 20_000


class Arena:
    """A server with a running bystander."""

    def __init__(self, setup: Setup, *, is_brief: bool = False) -> None:
        """Start server and bystander.

        Args:
            setup: how the server is started.
            is_brief: whether nothing is measured. The server is then forked if possible, and the bystander calls less
                often.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="attacks-"))
        self.authority = Authority(self.folder / "authority")
        mine = self.authority.certify("client", "client") if setup.needs_certificates else None
        self._shown = None if mine is None else (mine.key.read_bytes(), mine.cert.read_bytes())
        self.tokens = self.folder / "tokens.toml"
        self.write_tokens()
        self._disk_holder: subprocess.Popen[bytes] | None = None
        place, within = self._place(setup)
        self.server = ServerProcess(
            self.folder / "log",
            *tls_flags(self.authority.certify("server"), self.authority.ca if setup.needs_certificates else None),
            *("--tokens", str(self.tokens)),
            *place,
            *setup.flags,
            within=within,
            forked=is_brief,
        )
        self.owner = self.caller(OWNER)
        if setup.has_tables:
            self.owner.create(THEIRS, capacity=_ROWS).insert(np.arange(_ROWS), 1.0 + np.arange(_ROWS))
        routine: Routine = Sampling(THEIRS, OWNER) if setup.has_tables else Listing(OWNER)
        self.bystander = Bystander(self.target(), routine, SLOWLY_S if is_brief else OFTEN_S)

    def target(self) -> Target:
        """The attackers' view of the server."""
        return Target(self.server.port, self.authority.ca.read_bytes(), self._shown)

    def caller(self, token: str) -> Caller:
        """A caller with a token."""
        tls = grpc.ssl_channel_credentials(self.authority.ca.read_bytes(), *(self._shown or (None, None)))
        shown = grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token))
        return Caller(f"localhost:{self.server.port}", credentials=shown)

    def mine(self, name: str, **config: object) -> CalledTable:
        """Recreate a table that restricted tokens may use."""
        name = MINE + name
        if name in self.owner.table_names():
            self.owner.table(name).drop()
        return self.owner.create(name, **config)

    def write_tokens(self, *without: str) -> None:
        """Write the token file, omitting some tokens."""
        tables = [f"{MINE}*"]
        every = {
            OWNER: token_entry("owner", OWNER, ["read", "write", "admin"]),
            READ: token_entry("reader", READ, ["read"], tables),
            WRITE: token_entry("writer", WRITE, ["write"], tables),
            ADMIN: token_entry("administrator", ADMIN, ["admin"], tables),
            ALL: token_entry("all rights", ALL, ["read", "write", "admin"], tables),
            EVERYWHERE: token_entry("everywhere", EVERYWHERE, ["admin"]),
        }
        new = self.tokens.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text("".join(entry for token, entry in every.items() if token not in without))
        new.replace(self.tokens)

    def close(self) -> None:
        """Stop server and bystander.

        Raises:
            AssertionError: the server stopped responding, or logged an internal error.
        """
        try:
            self.bystander.close()
            self.owner.close()
            assert self.server.process.poll() is None, f"the server has ended: {self.server.log()[-2000:]}"
            assert "Traceback" not in self.server.log(), self.server.log()[-4000:]
        finally:
            self.server.kill()
            if self._disk_holder is not None:
                self._disk_holder.kill()
                self._disk_holder.wait()
            remove(self.folder)

    def _place(self, setup: Setup) -> tuple[Sequence[str], Sequence[str]]:
        """Flags for the location of the tables, and the command that wraps the server."""
        limits = [] if setup.descriptors is None else ["prlimit", f"--nofile={setup.descriptors}"]
        disk = self.folder / "disk"
        if setup.disk_mb is None:
            disk.mkdir()
            return ("--memory-dir", str(disk), "--checkpoint-dir", str(disk / "checkpoints")), limits
        # The disk must outlive the server, which restarts on it.
        self._disk_holder = subprocess.Popen([*with_small_disk(disk, setup.disk_mb), "sleep", "infinity"])
        holder = self._disk_holder.pid
        wait_until(lambda: Path(f"/proc/{holder}/comm").read_text() == "sleep\n", "the disk is mounted")
        namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--preserve-credentials"]
        within = ["nsenter", "--target", str(holder), *namespaces, *limits]
        return ("--data-dir", str(disk / "data"), "--checkpoint-dir", str(disk / "checkpoints")), within


def remove(folder: Path) -> None:
    """Remove a folder of any depth; `shutil.rmtree` fails on very deep ones."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)
