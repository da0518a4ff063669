"""Simulates power losses: each page on disk has old or new content."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.support.owner_records import change_record

PAGE_BYTES = 4096


def copy_of(folder: Path) -> dict[str, bytes]:
    """Content of all files of a table's directory, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mixture(random_pages: random.Random, versions: list[bytes], newest_share: float) -> bytes:
    """A file whose pages are each from one of these versions (oldest first), with this fraction from the newest."""
    newest = versions[-1]
    pages = []
    for start in range(0, len(newest), PAGE_BYTES):
        version = newest if random_pages.random() < newest_share else random_pages.choice(versions)
        pages.append(version[start : start + PAGE_BYTES])
    return b"".join(pages)


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write a directory with these files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def pretend_another_boot(data: Path) -> None:
    """Mark a server's data directory as written in an earlier boot."""
    change_record(data, boot_id="0" * 36, is_running=False)


def damage_pages(path: Path, random_pages: random.Random, pages: int) -> None:
    """Change some pages of a file."""
    for _ in range(pages):
        damage_page(path, random_pages, random_pages.randrange(path.stat().st_size))


def damage_page(path: Path, random_pages: random.Random, offset: int) -> None:
    """Overwrite the page with this byte with zeros or another page's content, or with ones: the byte changes."""
    content = path.read_bytes()
    start = offset // PAGE_BYTES * PAGE_BYTES
    page = content[start : start + PAGE_BYTES]
    other = random_pages.randrange(len(content) - len(page) + 1) // PAGE_BYTES * PAGE_BYTES
    fillings = [bytes(len(page)), content[other : other + len(page)]]
    random_pages.shuffle(fillings)
    byte = offset - start
    filling = next(each for each in (*fillings, b"\xff" * len(page)) if each[byte] != page[byte])
    path.write_bytes(content[:start] + filling + content[start + len(page) :])
