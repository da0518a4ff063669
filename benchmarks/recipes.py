"""Compares the time that recipes spend in calls of replay with that of NumPy arrays in the same process.

    python -m benchmarks.recipes

The arrays hold the same rows and return batches of the same shapes, drawn uniformly: no replay buffer in the process
takes less. The server runs in a separate process on the same cores. Recipes whose learners wait for actors are left
out, because their calls take as long as the actors do.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import torch
from replay_client import Batch, Sequences, Table
from replay_client._writing.writer_stream import WriterStream
from replay_client.sync.mixed_sampler import MixedSampler
from replay_client.sync.sampler import Sampler
from replay_client.sync.tensors import MixedTensorSampler, TensorSampler
from replay_client.sync.writer import Writer
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.report import Section
from benchmarks.service import running_server
from examples.recipes import dreamer, her, jax_dqn, muzero, qmix, rlpd, sac

RECIPES: dict[str, Callable[[str], float]] = {
    "her.py --bits 12": lambda address: her.main(address, bits=12, cycles=20),
    "rlpd.py": lambda address: rlpd.main(address, steps=rlpd.LEARNING_STARTS + 500),
    "qmix.py": lambda address: qmix.main(address, episodes=2_000),
    "dreamer.py": lambda address: dreamer.main(address, steps=3_000),
    "sac.py": lambda address: sac.main(address, steps=3_000),
    "jax_dqn.py": lambda address: jax_dqn.main(address, steps=100_000, solved=501.0),
    "muzero.py": lambda address: muzero.main(address, steps=3_000),
}
_SAMPLERS = (Sampler, MixedSampler, TensorSampler, MixedTensorSampler)
_WRITES = ((Writer, "append append_all end_episode end_episodes flush"), (WriterStream, "append end_episode"))
_REPEATS = 200
_MOST_ROWS = 50_000


@dataclass
class Watched:
    """Time that the main thread spent in calls of replay."""

    writing_s: float = 0.0
    learning_s: float = 0.0
    rows: int = 0
    draws: int = 0
    batch: Any = None
    depth: int = field(default=0, repr=False)


def _timed(watched: Watched, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def timed(*args: Any, **options: Any) -> Any:
        if watched.depth or threading.current_thread() is not threading.main_thread():
            return call(*args, **options)
        watched.depth, began_s = 1, time.perf_counter()
        try:
            result = call(*args, **options)
        finally:
            watched.depth = 0
            setattr(watched, kind, getattr(watched, kind) + time.perf_counter() - began_s)
        if call.__name__ == "__next__":
            watched.draws, watched.batch = watched.draws + 1, result
        return result

    return timed


@contextlib.contextmanager
def watched_replay() -> Iterator[Watched]:
    """Measure the calls of writers, samplers and `Table.insert` until the block ends."""
    watched = Watched()
    calls: list[tuple[type[Any], str, str]] = [(Table, "insert", "writing_s")]
    calls += [(kind, name, "writing_s") for kind, names in _WRITES for name in names.split()]
    calls += [(kind, name, "learning_s") for kind in _SAMPLERS for name in ("__next__", "update_priorities", "update")]
    with contextlib.ExitStack() as stack:
        for kind, name, total in calls:
            if name in vars(kind):
                stack.callback(setattr, kind, name, vars(kind)[name])
                setattr(kind, name, _timed(watched, total, vars(kind)[name]))
        yield watched
    watched.rows = watched.batch.inserted


def array_times_us(batch: Batch) -> tuple[float, float]:
    """Return the microseconds to store a row in arrays, and to draw a batch of this shape from them."""
    positions = getattr(batch, "_positions", None)
    length = positions.item.length if positions is not None and isinstance(positions.item, Sequences) else 1
    count = min(max(batch.inserted, 2 * length), _MOST_ROWS)
    values = {name: np.asarray(column) for name, column in batch.items()}
    is_long = {name: length > 1 and column.shape[1:2] == (length,) for name, column in values.items()}
    rings = {n: np.zeros((count, *c.shape[2 if is_long[n] else 1 :]), c.dtype) for n, c in values.items()}
    row = {name: ring[0].copy() for name, ring in rings.items()}
    rng, storing, drawing = np.random.default_rng(0), [], []
    for repeat in range(_REPEATS):
        began_s = time.perf_counter()
        for name, ring in rings.items():
            ring[repeat % count] = row[name]
        storing.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        firsts = rng.integers(count - length + 1, size=batch.batch_size)
        rows = firsts[:, None] + np.arange(length)
        for name, ring in rings.items():
            ring[rows if is_long[name] else firsts]
        drawing.append(time.perf_counter() - began_s)
    return 1e6 * statistics.median(storing), 1e6 * statistics.median(drawing)


def measure() -> Section:
    """Run all recipes."""
    rows = []
    torch.set_num_threads(1)
    for name, run in RECIPES.items():
        with running_server() as (address, _), watched_replay() as watched, contextlib.redirect_stdout(io.StringIO()):
            began_s = time.perf_counter()
            run(address)
            took_s = time.perf_counter() - began_s
        store_us, draw_us = array_times_us(watched.batch)
        service_s = watched.writing_s + watched.learning_s
        arrays_s = 1e-6 * (watched.rows * store_us + watched.draws * draw_us)
        rows.append(
            [
                name,
                f"{1e6 * watched.writing_s / watched.rows:.0f} / {store_us:.0f}",
                f"{1e6 * watched.learning_s / watched.draws:,.0f} / {draw_us:,.0f}",
                f"{100 * service_s / took_s:.1f} / {100 * arrays_s / took_s:.1f}",
                f"{1 + (service_s - arrays_s) / took_s:.3f}",
            ]
        )
    return Section(
        title="Recipes: calls of replay, and NumPy arrays in the same process",
        command="python -m benchmarks.recipes",
        header=["program", "us per row", "us per draw", "% of the run", "run, to one with arrays"],
        rows=rows,
        notes=["The service first, then the arrays. A draw includes the updates of its priorities and rows."],
    )


def main() -> None:
    """Measure, and print the figures."""
    measure().show(Console(width=120))


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.recipes", __doc__, main))
