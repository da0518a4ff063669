"""Uses the client for asyncio like the synchronous one, so that the same tests run over both.

with EventLoop() as loop:
    client = Blocking(aio.ReplayClient(address), loop)
    with client.table("t").sampler(32) as sampler:          # awaits, in the loop's thread
        batch = next(sampler)
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from replay_client import TableNotFoundError, aio
from replay_client.aio.tensors import TensorSampler

_WRAPPED = (
    aio.ReplayClient,
    aio.Table,
    aio.Sampler,
    aio.MixedSampler,
    TensorSampler,
    aio.Writer,
    aio.WriterStream,
    aio.RowReader,
)


class EventLoop:
    """An event loop in another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in the loop's thread, and await its result if that is awaitable."""

        async def called() -> Any:
            result = function()
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result()

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """A client, table, writer, sampler or reader of `replay_client.aio`, with the methods of the synchronous one."""

    def __init__(self, wrapped: Any, loop: EventLoop) -> None:
        vars(self).update(_wrapped=wrapped, _loop=loop)

    def __getattr__(self, name: str) -> Any:
        if name == "size":  # a property of the synchronous table
            return self._run(self._wrapped.size)
        value = self._run(lambda: getattr(self._wrapped, name))
        return self._method(value) if inspect.ismethod(value) else value

    def __setattr__(self, name: str, value: object) -> None:
        self._run(lambda: setattr(self._wrapped, name, value))

    def __enter__(self) -> Blocking:
        self._run(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._run(lambda: self._wrapped.__aexit__(*error))

    def __iter__(self) -> Blocking:
        return self

    def __next__(self) -> Any:
        try:
            return self._run(lambda: anext(self._wrapped))
        except StopAsyncIteration:
            raise StopIteration from None

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self._wrapped, aio.ReplayClient):
            return self.table(index)
        return self._wrap(self._wrapped[index])

    def __contains__(self, name: str) -> bool:
        try:
            return bool(self.table(name))
        except TableNotFoundError:
            return False

    def __len__(self) -> int:
        return int(self.size) if isinstance(self._wrapped, aio.Table) else len(self._wrapped)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self._wrapped)

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: self._wrap(self._run(lambda: method(*args, **options)))

    def _wrap(self, value: Any) -> Any:
        return Blocking(value, self._loop) if isinstance(value, _WRAPPED) else value

    def _run(self, function: Callable[[], Any]) -> Any:
        return self._loop.run(function)
