"""Silences gRPC's own logging."""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    """Turn off gRPC's logging, unless GRPC_VERBOSITY is set. Call it before importing gRPC.

    gRPC logs failed handshakes and refused calls, so unauthenticated clients could fill a disk. It raises important
    errors as exceptions anyway.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
