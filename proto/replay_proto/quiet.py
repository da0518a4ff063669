"""What gRPC logs by itself."""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    """Have gRPC log nothing, unless the variable GRPC_VERBOSITY says otherwise. To be called before it is loaded.

    It would log handshakes that fail and calls that it refuses, and strangers could fill a disk with them. What matters
    to us it raises as an error.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
