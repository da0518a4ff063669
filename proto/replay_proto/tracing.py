"""Records OpenTelemetry spans, and passes the context that connects the spans of a client with those of its server.

Does nothing unless the program has configured OpenTelemetry's SDK, for example by running under
``opentelemetry-instrument``. If the program has not imported the SDK, this module imports nothing of OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

Metadata = tuple[tuple[str, str], ...]
_SDK: Final = "opentelemetry.sdk.trace"
_NOTHING: Final = nullcontext()


def is_tracing() -> bool:
    """Whether the program has configured the SDK."""
    return _SDK in sys.modules


def span(name: str, metadata: Iterable[tuple[str, str | bytes]] | None = None) -> AbstractContextManager[object]:
    """Return a context manager that records its block as a span, including the error if the block raises one.

    ``metadata`` of the call that the span handles may contain the client's span as the parent. None: the parent is the
    current span, if any.
    """
    if not is_tracing():
        return _NOTHING
    from opentelemetry import propagate, trace

    parent, kind = None, trace.SpanKind.INTERNAL
    if metadata is not None:
        parent = propagate.extract({key: value for key, value in metadata if isinstance(value, str)})
        kind = trace.SpanKind.SERVER
    made: AbstractContextManager[object] = trace.get_tracer("replay").start_as_current_span(name, parent, kind)
    return made


def context_metadata() -> Metadata:
    """Return metadata that passes the current span to the server with a call."""
    if not is_tracing():
        return ()
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple(carrier.items())
