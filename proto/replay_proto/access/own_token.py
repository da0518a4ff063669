"""A random token with all rights, for a server that one program starts for itself."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

TOKEN_BYTES: Final = 32


def new_token() -> str:
    """Create a random token."""
    return secrets.token_hex(TOKEN_BYTES)


def token_entry(token: str) -> str:
    """Return the content of a token file that grants this token all rights. It contains only the token's hash."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[tokens]]\nname = "own"\ntoken_sha256 = "{digest}"\nrights = ["read", "write", "admin"]\n'
