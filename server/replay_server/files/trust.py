"""Checks that other users of this machine cannot change the contents of a directory.

A user who can write to a directory can place links and files in it. A user who can write to one of its parents can
replace the whole directory. So every directory on the path, and every link followed, must belong to the server's user
or root. The entries that the server opens must belong to the server's user. No one else may have write access, with one
exception: others may write to a parent directory or a shared directory if it is sticky, like `/tmp`. In a sticky
directory, only the owner of an entry can remove or rename it.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_ROOT = 0
_MOST_LINKS = 40
_ALL_USERS = ["0", "0", "4294967295"]


class UntrustedError(Exception):
    """Another user can change a path, or may have created it; the message says how to fix that."""


def make_folder(path: Path) -> None:
    """Check a directory that only the server uses, and its parents; create missing ones.

    Raises:
        UntrustedError: another user can change one of these directories, or can write to ``path`` itself, even if that
            is sticky.
        OSError: a directory cannot be created.
    """
    _walk(path, make=True, shared=False)


def check_folder(path: Path, *, make: bool = False) -> None:
    """Check a directory that others may use as well, such as `/tmp`, and its parents.

    With ``make``, create missing directories, accessible only to the server's user.

    Raises:
        UntrustedError: another user can change the server's entries in the directory.
        OSError: the directory is missing, cannot be created, or is not a directory.
    """
    _walk(path, make=make, shared=True)


def check_entries(entries: Iterable[Path], *, owners: Collection[int] = ()) -> None:
    """Check entries of a directory that has been checked; skip missing ones.

    Raises:
        UntrustedError: an entry is a link or special file, belongs neither to the server's user nor to one of
            ``owners``, or is a directory that others may write to.
    """
    trusted = {os.geteuid(), *owners}
    for path in entries:
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            raise UntrustedError(
                f"{path}: expected a file or directory of {_user(os.geteuid())}, found a symbolic link; replace it "
                f"with its target (`cp -a --remove-destination`), or remove it with `rm {_quoted(path)}`"
            )
        if found.st_uid not in trusted:
            raise UntrustedError(
                f"{path} belongs to {_user(found.st_uid)}: expected {_user(os.geteuid())}, who runs this server; run "
                f"it as that user, or `chown -R {os.geteuid()} {_quoted(path)}`"
            )
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or stat.S_ISSOCK(found.st_mode)):
            raise UntrustedError(f"{path}: expected a file or directory; remove it with `rm {_quoted(path)}`")
        if stat.S_ISDIR(found.st_mode):
            _check_writers(path, found, may_be_sticky=False)


def check_tree(folder: Path) -> None:
    """Apply `check_entries` to everything below a directory; the directory itself must have been checked."""
    pending = [folder]
    while pending:
        entries = list(pending.pop().iterdir())
        check_entries(entries)
        pending.extend(path for path in entries if path.is_dir())


def _walk(path: Path, *, make: bool, shared: bool) -> None:
    """Resolve a path step by step from the root of the file system, checking each step before the next.

    Others may write to a parent directory if it is sticky. They may write to the last directory only if it is sticky
    and ``shared`` is set.
    """
    owners = {_ROOT, os.geteuid(), *_unmapped()}
    here = Path("/")
    pending = deque(path.absolute().parts[1:])
    links = 0
    while pending:
        part = pending.popleft()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        found = _stat(step, make=make)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            _check_owner(step, found, owners, "link")
            target = Path(os.readlink(step))
            here = Path("/") if target.is_absolute() else here
            pending.extendleft(reversed([each for each in target.parts if each != "/"]))
        elif stat.S_ISDIR(found.st_mode):
            _check_owner(step, found, owners, "directory")
            _check_writers(step, found, may_be_sticky=shared or bool(pending))
            here = step
        else:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(step))


def _stat(path: Path, *, make: bool) -> os.stat_result:
    try:
        return path.lstat()
    except FileNotFoundError:
        if not make:
            raise
        path.mkdir(mode=0o700, exist_ok=True)
        return path.lstat()


def _check_owner(path: Path, found: os.stat_result, owners: Collection[int], kind: str) -> None:
    if found.st_uid not in owners:
        flag = " -h" if kind == "link" else ""
        raise UntrustedError(
            f"{path} is a {kind} of {_user(found.st_uid)}, who can change its target and contents: expected one owned "
            f"by {_own_user()}; run the server as that user, `chown{flag} {os.geteuid()} {_quoted(path)}`, or choose "
            "another directory"
        )


def _check_writers(path: Path, found: os.stat_result, *, may_be_sticky: bool) -> None:
    if may_be_sticky and found.st_mode & stat.S_ISVTX:
        return
    sticky = f" or `chmod +t {_quoted(path)}`, which leaves entries to their owners," if may_be_sticky else ""
    if found.st_mode & stat.S_IWOTH:
        who, repair = "everybody", "o-w"
    elif found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        who, repair = f"the group {_group(found.st_gid)}", "g-w"
    else:
        return
    raise UntrustedError(
        f"{path} is writable by {who}: expected only {_own_user()}; "
        f"`chmod {repair} {_quoted(path)}`{sticky} or choose another directory"
    )


def _unmapped() -> Iterator[int]:
    """In a user namespace, yield the id that stands for all unmapped users, including the machine's root."""
    try:
        if Path("/proc/self/uid_map").read_text("ascii").split() != _ALL_USERS:
            yield int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
    except OSError:  # no user namespaces outside Linux
        return


def _is_own_group(number: int) -> bool:
    """Whether only the server's user and root are known members of a group.

    Many systems give each user a private group with write access. Container volumes may belong to a group without a
    name; such a group counts as private, too.
    """
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return True
    try:
        own = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        own = ""
    return (number == _ROOT or group.gr_name == own) and not set(group.gr_mem) - {own, "root"}


def _own_user() -> str:
    return "root" if os.geteuid() == _ROOT else f"{_user(os.geteuid())} or root"


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name!r}"
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    try:
        return repr(grp.getgrgid(number).gr_name)
    except KeyError:
        return str(number)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
