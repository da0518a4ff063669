"""What gRPC logs by itself."""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    """Have gRPC log errors only, unless the variable GRPC_VERBOSITY says otherwise. To be called before it is loaded.

    It would log each handshake that fails, and strangers could fill a disk with them.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
