"""Asks a replay server whether it serves: exit status 0 if so, for container health checks.

python healthcheck.py HOST:PORT

Where the server speaks TLS, the variables REPLAY_TLS_CA and so on say how to reach it, see `replay_client.security`.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replay_client.security import Access, Tls

TIMEOUT_S = 3.0


def serves(address: str, tls: Tls | None) -> bool:
    """Ask the standard health service at ``address``."""
    with Access(tls=tls).open_channel(address, ()) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(0 if serves(sys.argv[1], Tls.from_environment()) else 1)
