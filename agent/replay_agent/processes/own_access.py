"""A random token that keeps other users of the machine out of servers started by a run."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from replay_client.security import TLS_PREFIX, TOKEN_VARIABLE
from replay_proto.access.own_token import new_token, token_entry

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_TOKEN, _TOKENS = "token", "tokens.toml"


@dataclass(frozen=True)
class OwnAccess:
    """A token with all rights, in files that only their owner can read.

    Attributes:
        token: the token that clients send. It never appears in a command line or log.
        token_file: contains the token, for commands such as `replay stats`.
        tokens_file: contains a hash of the token, for servers.
    """

    token: str = field(repr=False)
    token_file: Path
    tokens_file: Path

    def command(self, address: str) -> str:
        """Return a shell command that shows the statistics of a server that requires this token."""
        return f"{TOKEN_VARIABLE}=$(cat {shlex.quote(str(self.token_file))}) replay stats --server {address}"


@contextmanager
def own_access(folder: Path) -> Iterator[OwnAccess]:
    """Create a token that is valid inside the block; see `create_access`."""
    access = create_access(folder)
    try:
        yield access
    finally:
        remove_access(folder)


def create_access(folder: Path) -> OwnAccess:
    """Create a token, which replaces any earlier one in the folder.

    Args:
        folder: directory for the token's files; created if missing.

    Raises:
        PermissionError: other users could access the folder.
        OSError: the files cannot be written.
    """
    _make_private(folder)
    access = OwnAccess(new_token(), folder / _TOKEN, folder / _TOKENS)
    try:
        _write_private(access.token_file, f"{access.token}\n")
        _write_private(access.tokens_file, token_entry(access.token))
    except BaseException:
        remove_access(folder)
        raise
    return access


def find_access(folder: Path) -> OwnAccess:
    """Read the token that `create_access` has stored, for example on another machine that shares the folder.

    Raises:
        OSError: the token cannot be read.
    """
    return OwnAccess((folder / _TOKEN).read_text("utf-8").strip(), folder / _TOKEN, folder / _TOKENS)


def remove_access(folder: Path) -> None:
    """Remove the token's files, if any."""
    for name in (_TOKEN, _TOKENS):
        (folder / name).unlink(missing_ok=True)


def actor_environment(own: OwnAccess | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for actors started by the trainer.

    Args:
        own: the token of the server that the run has started; None: the variables have what the server requires.
        variables: environment variables of this process.
    """
    if own is None:
        return dict(variables)
    plain = {name: value for name, value in variables.items() if not name.startswith(TLS_PREFIX)}
    return {**plain, TOKEN_VARIABLE: own.token}


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder}: expected a directory of the user who runs this, for a token; remove it")
    folder.chmod(_PRIVATE_FOLDER)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # an earlier start may have been killed
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
