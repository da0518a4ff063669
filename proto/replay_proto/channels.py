"""Addresses, and gRPC channels to them: every client of this project opens them here, with the same options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc

Options = Sequence[tuple[str, object]]

_OPTIONS: Final[Options] = (
    # Ignore web proxies in the environment: servers are local, and a proxy could read tokens sent without TLS.
    ("grpc.enable_http_proxy", 0),
    # A server's name gets a new address, such as that of a new pod: look it up again soon. The default is 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # A restarted server is back within seconds: retry at that rate.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # duration of one attempt
    ("grpc.max_reconnect_backoff_ms", 500),
)


def open_channel(address: str, credentials: grpc.ChannelCredentials | None, options: Options = ()) -> grpc.Channel:
    """Open a channel, with TLS if there are ``credentials``; ``options`` add to those of all channels."""
    all_options = (*_OPTIONS, *options)
    if credentials is None:
        return grpc.insecure_channel(address, options=all_options)
    return grpc.secure_channel(address, credentials, options=all_options)


def open_loop_channel(
    address: str, credentials: grpc.ChannelCredentials | None, options: Options = ()
) -> grpc.aio.Channel:
    """Open a channel for the running event loop; see `open_channel`."""
    all_options = (*_OPTIONS, *options)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=all_options)
    return grpc.aio.secure_channel(address, credentials, options=all_options)


def host_and_port(host: str, port: int) -> str:
    """Join a host and a port; an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
