"""Asks a gRPC server whether it serves: exit status 0 if so, for container health checks.

python healthcheck.py HOST:PORT [PREFIX]

Where the server speaks TLS, the variables REPLAY_TLS_CA and so on say how to reach it, see `replay_client.security`; a
PREFIX stands in place of REPLAY_TLS.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replay_client.security import TLS_PREFIX, Access, Tls

TIMEOUT_S = 3.0
# Replies of a server without a health service, such as the learner. UNAUTHENTICATED: it requires a token.
ANSWERS = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED)


def serves(address: str, tls: Tls | None) -> bool:
    """Ask the standard health service at ``address``; a server without this service counts as serving if it answers."""
    with Access(tls=tls).open_channel(address, ()) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return error.code() in ANSWERS
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    prefix = sys.argv[2] if len(sys.argv) > 2 else TLS_PREFIX
    sys.exit(0 if serves(sys.argv[1], Tls.from_environment(prefix)) else 1)
