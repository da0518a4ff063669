"""Lets commands print to terminals and files of any encoding, such as ASCII or Latin-1."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata
from typing import Final

_HANDLER: Final = "replay-plain"
_COMPLETE: Final = "utf"
"""Begins the names of the encodings that have all characters."""
_SAME_WIDTH: Final = str.maketrans("▁▂▃▄▅▆▇█▏▎▍▌▋▊▉▲▼─━│┃…•·±\u00d7≤≥βε", "_.:-=+*#...####^v--||~**~x<>be")
"""Plain characters for those that the commands draw with. Each replaces one, so that columns stay in line."""
_BOX_DRAWING: Final = range(0x2500, 0x2580)
_BRAILLE: Final = range(0x2800, 0x2900)


def use_any_terminal() -> None:
    """Print plain characters in place of those that standard output and standard error cannot encode."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith(_COMPLETE):
            stream.reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain_character, error.object[error.start : error.end])), error.end


def _plain_character(character: str) -> str:
    plain = character.translate(_SAME_WIDTH)
    if not plain.isascii():
        plain = unicodedata.normalize("NFKD", character)[:1]  # a letter without its accents
    if plain.isascii():
        return plain
    if ord(character) in _BOX_DRAWING:
        return "+"
    return "*" if ord(character) in _BRAILLE else "?"
