"""Where the value of each setting comes from: environment variables, and the words for all sources in messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from cyclopts import App, ArgumentCollection, Token
from cyclopts.config import Env

from replay_proto.errors import without_effect

_SERVICE_LINK: Final = re.compile(r"_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
"""Ends the names of variables that Kubernetes sets for each Service; see its docs on service environment variables."""
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://\S+")
"""The value of a variable NAME_PORT that Kubernetes sets for a Service."""
_FLAGS: Final = ("", "cli")
_VARIABLE: Final = "env"


class Variables:
    """Reads settings from environment variables: ``max_tables`` from PREFIX_MAX_TABLES. An empty variable is unset."""

    def __init__(self, prefix: str, names: Iterable[str]) -> None:
        """Find out which variables with this prefix are of no use, because no setting has such a name."""
        self.remarks: list[str] = []
        """Warnings about variables that have no effect."""
        known = [f"{prefix}{name.upper()}" for name in names]
        self._ignored: set[str] = set()
        for name, value in sorted(os.environ.items()):
            if not name.startswith(prefix):
                continue
            if not value.strip():
                self._ignored.add(name)
            elif name.endswith("_PORT") and _SERVICE_URL.fullmatch(value):
                self._ignored.add(name)
                if name in known:
                    self.remarks.append(_collision(name, value))
            elif name not in known and _SERVICE_LINK.search(name.removeprefix(prefix[:-1])) is None:
                self.remarks.append(without_effect(name, known))
        self._read = Env(prefix, command=False, show=False)

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Give values to the settings that have none yet."""
        self._read(app, commands, arguments)
        for argument in arguments:
            argument.tokens[:] = [token for token in argument.tokens if token.keyword not in self._ignored]


class Sources:
    """The variables and files that settings were read from. Flags need no words: messages name them anyway."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Remember the sources of all settings; to be called after they were read."""
        for argument in arguments:
            for token in argument.tokens[:1]:
                self._words[argument.name.lstrip("-").replace("-", "_")] = _words_of(token)

    def of(self, name: str) -> str:
        """Return words to add to a message about a setting; empty if it was given by a flag, or not at all."""
        words = self._words.get(name)
        return f" (from {words})" if words else ""

    def add_to(self, message: str, values: Mapping[str, Any]) -> str:
        """Add the sources of all settings that a message names, or whose file or folder it names."""
        mentioned = {*re.findall(r"[a-z]\w*", message.replace("-", "_"))}
        named = [
            f"{name} from {words}"
            for name, words in self._words.items()
            if words and (name in mentioned or (isinstance(values.get(name), Path) and str(values[name]) in message))
        ]
        return f"{message} ({', '.join(named)})" if named else message


def _words_of(token: Token) -> str:
    if token.source in _FLAGS or not token.keyword:
        return ""
    if token.source == _VARIABLE:
        return f"the variable {token.keyword}"
    return f"{token.keyword.strip('[]')} in {token.source}"


def _collision(name: str, value: str) -> str:
    service = name.removesuffix("_PORT").lower().replace("_", "-")
    return (
        f"the variable {name}={value} has no effect: Kubernetes sets it in each pod for a Service called {service}; "
        "to be rid of it, set enableServiceLinks: false in the pod's spec, and use a flag for the port"
    )
