"""Serves the status of a run to Prometheus."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector
from replay_proto.channels import host_and_port

from replay_agent.reporting.progress import ProgressView, Status

_READER_S: Final = 5.0
"""Time limit for each read from a client's socket and each write to it."""
_END_S: Final = 0.2
"""Interval at which the server's thread checks whether the run has ended."""
_GAUGES: Final = (
    ("replay_train_recent_return", "Mean return of recent training episodes.", "recent_return"),
    ("replay_train_best_return", "Mean return of the best network in validations.", "best_mean"),
    ("replay_train_loss", "Smoothed weighted loss.", "loss"),
    ("replay_train_gradient_norm", "Smoothed norm of the gradient before clipping.", "grad_norm"),
    ("replay_train_mean_value", "Smoothed mean value of the actions in batches.", "mean_value"),
    ("replay_train_epsilon", "Probability of a random action.", "epsilon"),
    ("replay_train_beta", "Importance-sampling exponent.", "beta"),
)
_COUNTERS: Final = (
    ("replay_train_env_steps", "Environment steps of all actors.", "env_steps"),
    ("replay_train_updates", "Gradient steps.", "updates"),
    ("replay_train_batch_wait_seconds", "Time that the learner waited for batches.", "batch_wait_s"),
)


class MetricsPort(ProgressView, Collector):
    """A view of a run that serves its status to Prometheus."""

    def __init__(self, shown: ProgressView, host: str, port: int) -> None:
        """Bind the port. The view ``shown`` also receives each status.

        Raises:
            ValueError: the port cannot be bound.
        """
        self._shown = shown
        self._status: Status | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = make_server(host, port, make_wsgi_app(registry), _Server, _Handler)
        except OSError as error:
            raise ValueError(
                f"expected an http_host and http_port to listen on, got {host_and_port(host, port)}: {error}"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=[_END_S], name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_port

    def show(self, status: Status) -> None:
        """Store the status for the next request, and pass it on to the other view."""
        self._status = status
        self._shown.show(status)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics. A metric whose value is unknown has no sample."""
        for kind, specified in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, meaning, field in specified:
                yield kind(name, meaning, value=getattr(self._status, field, None))

    def __enter__(self) -> MetricsPort:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving. Requests of slow clients continue in their threads, until the time limit."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingWSGIServer):
    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback, because it would disturb the progress bar. A client was too slow, or hung up."""


class _Handler(WSGIRequestHandler):
    timeout = _READER_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because Prometheus sends a request every few seconds."""
