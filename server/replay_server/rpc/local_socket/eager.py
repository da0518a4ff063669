"""Starts coroutines eagerly: most requests never wait, so they need no task.

Python 3.12 has this as `asyncio.eager_task_factory`; Python 3.11 does not.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def start(work: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
    """Run a coroutine until it first waits.

    Before it first waits, the coroutine must not use `asyncio.timeout` or `asyncio.current_task`, because it is not yet
    in a task.

    Returns:
        The coroutine's result or, if it has to wait, a task that runs the rest.

    Raises:
        Exception: whatever the coroutine raises.
    """
    try:
        awaited = work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    return asyncio.get_running_loop().create_task(_rest(work, awaited))


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    try:
        yield awaited
    except BaseException as error:  # the awaited operation failed, or the task was canceled
        try:
            awaited = work.throw(error)
        except StopIteration as finished:
            result: T = finished.value
            return result
        return (yield from _rest(work, awaited))
    return (yield from work.__await__())
