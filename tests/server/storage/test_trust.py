"""Directories that other users can change, or created, are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from replay_server.checkpoint.store import Checkpoints
from replay_server.files import trust
from replay_server.files.trust import UntrustedError
from replay_server.storage.permissions import keep_private, share_with_group
from replay_server.storage.root import Root

ANOTHER_USER = 54_321
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


def give_away(path: Path) -> None:
    """Change the owner of a path, or of a link itself, to another user."""
    os.chown(path, ANOTHER_USER, ANOTHER_USER, follow_symlinks=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory within another one, both accessible only to the server's user."""
    place = tmp_path / "above" / "place"
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    return place


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703], ids=oct)
def test_a_directory_that_everybody_may_write_to_is_refused(place: Path, mode: int) -> None:
    place.chmod(mode)
    with pytest.raises(UntrustedError, match=re.escape(f"`chmod o-w {place}`")):
        trust.make_folder(place)


def test_one_above_it_is_refused_too_unless_it_is_sticky(place: Path) -> None:
    place.parent.chmod(0o777)
    for path in (place, place / "new"):
        with pytest.raises(UntrustedError, match=re.escape(f"chmod +t {place.parent}")):
            trust.make_folder(path)
    assert list(place.iterdir()) == [], "nothing was made"
    place.parent.chmod(0o1777)
    trust.make_folder(place / "new")
    assert (place / "new").is_dir()


def test_a_directory_in_memory_may_be_sticky(place: Path) -> None:
    place.chmod(0o1777)
    trust.check_folder(place)
    place.chmod(0o777)
    with pytest.raises(UntrustedError, match="is writable by everybody"):
        trust.check_folder(place)


def test_a_private_group_may_write_and_another_may_not(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.chmod(0o770)
    trust.make_folder(place)  # the group of the user who runs the tests
    monkeypatch.setattr(trust, "_is_own_group", lambda number: False)
    with pytest.raises(UntrustedError, match=re.escape(f"chmod g-w {place}")):
        trust.make_folder(place)


@needs_root
@pytest.mark.parametrize("whose", ["place", "above"])
def test_a_directory_of_another_user_is_refused(place: Path, whose: str) -> None:
    path = place if whose == "place" else place.parent
    give_away(path)
    for check in (trust.make_folder, trust.check_folder):
        with pytest.raises(UntrustedError, match=f"{path} is a directory of user {ANOTHER_USER}") as error:
            check(place)
        assert f"`chown 0 {path}`" in str(error.value)


@needs_root
def test_a_link_of_another_user_is_not_followed(place: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("above")
    trust.make_folder(link / "place")
    give_away(link)
    for path in (link / "place", link / "place" / "new"):
        with pytest.raises(UntrustedError, match=f"{link} is a link of user {ANOTHER_USER}"):
            trust.make_folder(path)
    assert list(place.iterdir()) == []


def test_links_of_ones_own_are_followed_wherever_they_lead(place: Path, tmp_path: Path) -> None:
    (tmp_path / "absolute").symlink_to(place)
    (place / "up").symlink_to("../../absolute/../place")
    trust.make_folder(tmp_path / "absolute" / "up" / "new")
    assert (place / "new").is_dir()
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="Too many levels"):
        trust.make_folder(tmp_path / "round")


def data_of_a_server(folder: Path) -> Path:
    """A data directory as a server leaves it."""
    root = Root.durable(folder)
    (root.tables / "table").mkdir(mode=0o700)
    (root.tables / "table" / "header.bin").touch(mode=0o600)
    root.close()
    return folder


ENTRIES = ["lock", "owner.json", "tables", "tables/table", "tables/table/header.bin"]


@pytest.mark.parametrize("name", ENTRIES)
def test_a_link_in_place_of_what_is_the_servers_is_refused(tmp_path: Path, name: str) -> None:
    data = data_of_a_server(tmp_path / "data")
    Root.check_durable(data)
    (data / name).rename(tmp_path / "moved")
    (data / name).symlink_to(tmp_path / "moved")
    with pytest.raises(UntrustedError, match=f"{data / name}: .*found a symbolic link"):
        Root.check_durable(data)


@needs_root
@pytest.mark.parametrize("name", ENTRIES)
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, name: str) -> None:
    data = data_of_a_server(tmp_path / "data")
    give_away(data / name)
    with pytest.raises(UntrustedError, match=f"{data / name} belongs to user {ANOTHER_USER}") as error:
        Root.check_durable(data)
    assert f"`chown -R 0 {data / name}`" in str(error.value)


@pytest.mark.parametrize("name", ["nightly-000001", ".partial-nightly-000002", "lock"])
def test_a_link_in_place_of_a_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").mkdir(mode=0o700)
    (tmp_path / "checkpoints" / "unrelated").symlink_to(tmp_path / "elsewhere")
    Checkpoints.check(tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedError, match=f"{name}: .*found a symbolic link"):
        Checkpoints.check(tmp_path / "checkpoints")


def share(root: Root) -> None:
    share_with_group(root, "root")


@pytest.mark.parametrize("change", [keep_private, pytest.param(share, marks=needs_root)])
def test_modes_are_changed_of_no_link(tmp_path: Path, change: Callable[[Root], None]) -> None:
    """Even if the preceding check was disabled."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o711)
    elsewhere.chmod(0o711)
    root = Root.durable(tmp_path / "data")
    root.tables.rmdir()
    root.tables.symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        change(root)
    assert elsewhere.stat().st_mode & 0o777 == 0o711
    root.close()
