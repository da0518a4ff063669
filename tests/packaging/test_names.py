"""Words that have one meaning in the names of the code, as docs/concepts/glossary.md lists them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.packaging.project import PACKAGES, ROOT

_ROWS = re.compile(r"^\| (\w+) \| [^|]+ \| ([^|]*`[^|]*) \|$", re.MULTILINE)
_PLACES = re.compile(r"`([\w/.]+)`")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
RULES = {
    word: tuple(_PLACES.findall(places))
    for word, places in _ROWS.findall((ROOT / "docs" / "concepts" / "glossary.md").read_text("utf-8"))
}
"""The places of each word: folders, with a slash at the end, and files."""


def defined(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives to something."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def words(name: str) -> set[str]:
    """The words of a name, each also without the endings of a plural and of the past."""
    found = {word.lower() for word in _WORDS.findall(name)}
    return found | {re.sub(r"(s|d|ed)$", "", word) for word in found}


def test_there_are_rules() -> None:
    assert {"link", "session", "grant"} <= RULES.keys()


@pytest.mark.parametrize("package", ["replay_proto", "replay_server", "replay_client", "replay_agent"])
def test_words_are_used_for_what_the_glossary_says(package: str) -> None:
    strays = []
    for path in PACKAGES[package].rglob("*.py"):
        place = f"{package}/{path.relative_to(PACKAGES[package])}"
        if "_pb2" in path.name:
            continue
        for name in {path.stem, *defined(ast.parse(path.read_text("utf-8")))}:
            strays += [(word, name, place) for word in words(name) & RULES.keys() if not place.startswith(RULES[word])]
    assert not strays
