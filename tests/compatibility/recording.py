"""Records the messages between a client and a server, and sends a recorded client's messages to another server.

To record a version's client, start its server and this proxy, and run a program against the proxy:

    python -m tests.compatibility.recording localhost:50051 client.jsonl
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import grpc

THREADS = 16
_ENDING = {signal.SIGINT, signal.SIGTERM}
ANSWER_TIMEOUT_S = 60.0
_RAW: dict[str, Any] = {"request_serializer": None, "response_deserializer": None}


@dataclass(frozen=True)
class Event:
    """One message of a call, or its end."""

    call: int
    """Number of the call."""
    method: str
    """Full name of the RPC."""
    kind: Literal["request", "requests end", "answer", "call ends"]
    message: str = ""
    """The message in Base64."""

    @property
    def body(self) -> bytes:
        """The serialized message."""
        return base64.b64decode(self.message)


class Recorder(grpc.GenericRpcHandler):
    """Forwards every call to a server, and keeps its messages in the order in which they passed."""

    def __init__(self, address: str) -> None:
        self.events: list[Event] = []
        self._channel = grpc.insecure_channel(address)
        self._numbers = itertools.count()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return a handler that forwards a call as a stream, which has the same messages as a unary call."""
        method, call = handler_call_details.method, next(self._numbers)

        def forward(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            answers = self._channel.stream_stream(method, **_RAW)(self._noted(call, method, requests))
            for answer in answers:
                self._note(call, method, "answer", answer)
                yield answer
            self._note(call, method, "call ends")

        return grpc.stream_stream_rpc_method_handler(forward)

    def _noted(self, call: int, method: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            self._note(call, method, "request", request)
            yield request
        self._note(call, method, "requests end")

    def _note(self, call: int, method: str, kind: Any, message: bytes = b"") -> None:
        self.events.append(Event(call, method, kind, base64.b64encode(message).decode("ascii")))


class ReplayedCall:
    """A call of a recorded client, repeated against another server."""

    def __init__(self, channel: grpc.Channel, method: str) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers = channel.stream_stream(method, **_RAW)(
            iter(self._requests.get, None), timeout=ANSWER_TIMEOUT_S, wait_for_ready=True
        )

    def send(self, request: bytes) -> None:
        """Send a message."""
        self._requests.put(request)

    def end_requests(self) -> None:
        """Say that no message follows."""
        self._requests.put(None)

    def answer(self) -> bytes:
        """Wait for the next answer.

        Raises:
            grpc.RpcError: the server refused the call.
        """
        answer: bytes = next(self._answers)
        return answer


def read(file: Path) -> list[Event]:
    """Read a recording."""
    return [Event(**json.loads(line)) for line in file.read_text("ascii").splitlines()]


def main() -> None:
    """Record until SIGINT or SIGTERM; the first line of the output is the proxy's address."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # before other threads start, which inherit it
    address, file = sys.argv[1:]
    recorder = Recorder(address)
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[recorder])
    print(f"localhost:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    signal.sigwait(_ENDING)
    server.stop(grace=None).wait()
    Path(file).write_text("".join(f"{json.dumps(asdict(event))}\n" for event in recorder.events), "ascii")


if __name__ == "__main__":
    main()
