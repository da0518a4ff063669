"""The tokens file: format, errors, and no leaked tokens."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from pathlib import Path

import pytest
from replay_proto.access.tokens import Right, TokenEntry, Tokens, bearer_token, read_entries
from replay_proto.access.watched import UnusableFileError

from tests.support.access import READ, WRITE, WRONG, token_entry
from tests.support.deadlines import wait_until

SECRET = "a-token-of-24-characters"
GOOD = token_entry("actors", SECRET, ["write"], ["cart*"])


class Clock:
    """A manually advanced clock."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(GOOD)
    return path


def change(path: Path, content: str) -> None:
    """Rewrite a file so that the change is detected, however coarse the file system's clock."""
    new = path.with_suffix(".new")
    new.write_text(content)
    os.replace(new, path)


def entry_of(tokens: Tokens, token: str) -> TokenEntry | None:
    digest = tokens.digest_of(token)
    return None if digest is None else tokens.entry(digest)


def test_a_token_gives_its_rights_on_its_tables(file: Path) -> None:
    entry = entry_of(Tokens(file), SECRET)
    assert entry is not None
    assert (entry.name, entry.rights, entry.tables, entry.expires) == ("actors", Right.WRITE, ("cart*",), None)
    assert entry.allows(Right.WRITE, "cartpole")
    assert entry.allows(Right.READ | Right.WRITE, "cartpole")
    assert entry.allows(Right.WRITE, None)
    assert not entry.allows(Right.READ, "cartpole")
    assert not entry.allows(Right.READ, None)
    assert not entry.allows(Right.WRITE, "acrobot")
    assert not entry.allows(Right.WRITE, "CARTPOLE")
    assert not entry.allows(Right.WRITE, "")


def test_no_right_includes_another() -> None:
    for right in Right:
        entry = TokenEntry("one", b"", right)
        assert [other for other in Right if entry.allows(other, "table")] == [right]


def test_a_token_that_is_not_in_the_file_is_unknown(file: Path) -> None:
    tokens = Tokens(file)
    for other in (WRONG, SECRET[:-1], SECRET + "x", SECRET.upper(), "", "ä", "\udc80", "x" * 100_000):
        assert tokens.digest_of(other) is None


def test_a_file_may_have_hashes_in_place_of_tokens(file: Path) -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    file.write_text(GOOD.replace(f'token = "{SECRET}"', f'token_sha256 = "{digest.upper()}"'))
    entry = entry_of(Tokens(file), SECRET)
    assert entry is not None
    assert entry.name == "actors"


def test_a_token_expires_at_its_moment(file: Path) -> None:
    file.write_text(token_entry("actors", SECRET, ["read"], expires="1970-01-01T02:00:00+01:00"))
    clock = Clock(3599.9)
    tokens = Tokens(file, clock=clock)
    entry = entry_of(tokens, SECRET)
    assert entry is not None
    assert not tokens.has_expired(entry)
    clock.now = 3600.0
    assert tokens.has_expired(entry)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (GOOD, "tokens = 5", "expected only [[tokens]]"),
        (GOOD, "tokens = [5]", "expected a table of keys"),
        (GOOD, GOOD + GOOD, "unique names"),
        (GOOD, GOOD + GOOD.replace("actors", "others"), "unique tokens"),
        ("[[tokens]]", "port = 5\n[[tokens]]", "only [[tokens]]"),
        ('name = "actors"', "", "name: expected a string"),
        ('name = "actors"', 'name = "a\\nb"', "name: expected a string"),
        (SECRET, "short", "at least 16 ASCII characters"),
        (SECRET, "sixteen characters with spaces", "at least 16 ASCII characters"),
        (f'token = "{SECRET}"', "", "either token or token_sha256"),
        ("rights", 'token_sha256 = "00"\nrights', "either token or token_sha256"),
        (f'token = "{SECRET}"', f'token_sha256 = "{SECRET}"', "64 hexadecimal digits"),
        (f'token = "{SECRET}"', f'token_sha256 = "{"0" * 64}  -"', "cut -d' ' -f1"),
        ('["write"]', '["wriet"]', "list of read, write, admin, got ['wriet']"),
        ('["write"]', "[]", "rights: expected a list"),
        ('["write"]', '"write"', "rights: expected a list"),
        ('rights = ["write"]', "", "rights: expected a list"),
        ('["cart*"]', '"cart*"', "tables: expected a list"),
        ('["cart*"]', "[]", "tables: expected a list"),
        ('["cart*"]', '["p[ou]b"]', "wildcards * and ? only"),
        ("name", "expires = 2030-01-01\nname", "with a time zone"),
        ("name", "expires = 2030-01-01T00:00:00\nname", "with a time zone"),
        ("name", "right = 1\nname", "got 'right'"),
        ("name =", "name", "expected valid TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_without_its_tokens(file: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(UnusableFileError) as refusal:
        Tokens(file)
    assert complaint in str(refusal.value)
    assert str(file) in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_a_file_that_is_not_there_or_no_text_is_named(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnusableFileError, match=r"tokens\.toml"):
        Tokens(file)
    file.unlink()
    with pytest.raises(UnusableFileError, match=r"tokens\.toml: expected .*, got: No such file"):
        Tokens(file)


def test_a_token_is_shown_nowhere(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    change(file, GOOD.replace("write", "read"))
    ticks.now = 1.0
    tokens.digest_of(SECRET)
    change(file, GOOD + SECRET)
    ticks.now = 2.0
    tokens.digest_of(SECRET)
    shown = caplog.text + repr(tokens) + repr(read_entries.__doc__) + repr(entry_of(tokens, SECRET))
    assert "read again" in shown
    assert "is invalid" in shown
    assert SECRET not in shown
    assert hashlib.sha256(SECRET.encode()).hexdigest() not in shown
    assert repr(hashlib.sha256(SECRET.encode()).digest()) not in shown


def test_a_changed_file_is_read_again_within_a_second(file: Path) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    change(file, token_entry("actors", READ, ["read"]) + token_entry("others", WRITE, ["write"]))
    assert tokens.digest_of(READ) is None
    ticks.now = 1.0
    assert tokens.digest_of(READ) is not None
    assert tokens.digest_of(WRITE) is not None
    assert tokens.digest_of(SECRET) is None


@pytest.mark.parametrize("content", ["", "# nobody", "tokens = []"])
def test_without_tokens_in_its_file_nobody_may_call(file: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    file.write_text(content)
    ticks.now = 1.0
    assert tokens.digest_of(SECRET) is None
    assert "contains no tokens: all calls are refused" in caplog.text
    assert Tokens(file).digest_of(SECRET) is None


def test_no_token_outlives_its_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    file.unlink()
    ticks.now = 1.0
    assert tokens.digest_of(SECRET) is not None, "it may be about to be written again"
    for ticks.now in (2.0, 3.0):
        assert tokens.digest_of(SECRET) is None
    assert caplog.text.count("is missing, its content no longer applies") == 1
    change(file, GOOD)
    ticks.now = 4.0
    assert tokens.digest_of(SECRET) is not None


def test_a_file_that_is_written_anew_refuses_nobody(file: Path) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    for look in range(1, 20):
        file.unlink()
        ticks.now = 2.0 * look
        assert tokens.digest_of(SECRET) is not None
        file.write_text(GOOD)
        ticks.now = 2.0 * look + 1
        assert tokens.digest_of(SECRET) is not None


def test_a_change_that_could_not_be_read_is_read_later(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    change(file, token_entry("actors", READ, ["read"]))

    def too_many_files(*_: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as without_descriptors:
        without_descriptors.setattr(Path, "read_text", too_many_files)
        for ticks.now in (1.0, 2.0, 3.0):
            assert tokens.digest_of(SECRET) is not None
    assert caplog.text.count("Too many open files") == 1
    ticks.now = 4.0
    assert tokens.digest_of(SECRET) is None
    assert tokens.digest_of(READ) is not None


def test_a_change_is_seen_whatever_its_time_and_size_say(file: Path) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    before = file.stat()
    other = SECRET[::-1]

    def is_later() -> bool:
        """Whether the modification time has advanced; the file system's clock may be coarse."""
        file.write_text(GOOD.replace(SECRET, other))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        return file.stat().st_ctime_ns > before.st_ctime_ns

    wait_until(is_later, "the file was changed at another moment")
    after = file.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    ticks.now = 1.0
    assert tokens.digest_of(SECRET) is None
    assert tokens.digest_of(other) is not None


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o620, 0o666])
def test_a_file_of_tokens_that_others_can_read_is_refused(
    file: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(mode)
    with pytest.raises(UnusableFileError, match=f"chmod g-w,o= {file}, or replace token by token_sha256"):
        Tokens(file)
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    file.write_text(GOOD.replace(f'token = "{SECRET}"', f'token_sha256 = "{digest}"'))
    assert Tokens(file).digest_of(SECRET) is not None
    assert f"chmod g-w,o= {file}" in caplog.text
    caplog.clear()
    file.chmod(0o640)
    file.write_text(GOOD)
    assert Tokens(file).digest_of(SECRET) is not None
    assert caplog.text == ""


def test_a_change_counts_whoever_can_read_it(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    change(file, token_entry("actors", READ, ["read"]))
    file.chmod(0o644)
    ticks.now = 1.0
    assert tokens.digest_of(SECRET) is None
    assert f"chmod g-w,o= {file}" in caplog.text


@pytest.mark.parametrize("content", ["[[tokens]]", "tokens = 5"])
def test_what_a_file_said_last_holds_while_it_cannot_be_used(
    file: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = Clock(0.0)
    tokens = Tokens(file, ticks=ticks)
    change(file, content)
    for ticks.now in (1.0, 2.0, 3.0):
        assert tokens.digest_of(SECRET) is not None
    assert caplog.text.count("is invalid, keeping its previous content") == 1
    change(file, token_entry("actors", READ, ["read"]))
    ticks.now = 4.0
    assert tokens.digest_of(SECRET) is None
    assert tokens.digest_of(READ) is not None


@pytest.mark.parametrize("header", ["Bearer abc", "bearer abc", "BEARER  abc "])
def test_the_token_of_a_header(header: str) -> None:
    assert bearer_token([header]) == "abc"


def test_a_call_without_a_header_has_no_token() -> None:
    assert bearer_token([]) is None


@pytest.mark.parametrize(
    "headers", [["abc"], ["Basic abc"], ["Bearer"], ["Bearer "], [""], ["Bearer abc", "Bearer abc"]]
)
def test_another_form_of_header_is_refused_and_not_shown(headers: list[str]) -> None:
    with pytest.raises(ValueError, match="authorization: Bearer TOKEN") as refusal:
        bearer_token(headers)
    assert "abc" not in str(refusal.value)
