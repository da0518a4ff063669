"""Writes random streams to tables of steps, and compares all that can be drawn with what docs/concepts/steps.md says.

    python -m tools.faults.step_streams --streams 10000

Tables have random columns, items, backends and capacities. Their streams have episodes of all ends, and are written by
several writers, over evictions, resets and restarts of the server, on one server and on three. The oracle says which
steps can be drawn, how likely, and what each item contains. All of it is compared on the same host, over gRPC, with
asyncio, and in a copy of the table from a Parquet file.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from replay_client import ReplayClient

from tests.client.steps.checks import Check, Difference
from tests.client.steps.stories import Story
from tests.support.server_process import ServerProcess

MOST_TABLES: Final = 60
"""Tables that are written before and after one restart."""


class Run:
    """Servers, and the stories of tables on them."""

    def __init__(self, folder: Path, servers: int, seed: int) -> None:
        """Start the servers."""
        self.rng = np.random.default_rng([seed, servers])
        self.folder = folder
        self.counted: Counter[str] = Counter()
        self.differences: list[str] = []
        self._names = itertools.count()
        self._stack = ExitStack()
        self.servers = [self._start(folder / f"{number + 1}-of-{servers}") for number in range(servers)]
        self.address = ",".join(server.address for server in self.servers)
        self.client = self._stack.enter_context(ReplayClient(self.address))
        self.over_grpc = self._stack.enter_context(ReplayClient(self.address, same_host=False))

    def _start(self, folder: Path) -> ServerProcess:
        folder.mkdir()
        flags = ("--data-dir", str(folder / "data"), "--memory-dir", str(folder))
        server = ServerProcess(folder / "log", *flags, forked=True)
        self._stack.callback(server.terminate)
        return server

    def close(self) -> None:
        """Stop the servers."""
        self._stack.close()

    def run(self, streams: int) -> None:
        """Play stories until they have so many streams."""
        while self.counted["streams"] < streams:
            stories = [self._new_story() for _ in range(min(MOST_TABLES, 1 + streams // 4))]
            for story in stories:
                self._play(story)
            self._restart(stories)
            for story in stories:
                self._check(story)
                self._play(story)
                self._check(story)
                self._check_copy(story)
                story.end()
                story.table.drop()
                self.counted.update(story.counted)
                self.counted["tables"] += 1

    def _new_story(self) -> Story:
        seed = int(self.rng.integers(2**60))
        name = f"t{next(self._names)}-{seed}"
        return Story(self.client, name, np.random.default_rng(seed), is_sharded=len(self.servers) > 1)

    def _play(self, story: Story) -> None:
        story.play(int(story.rng.integers(1, 25 * story.streams)))

    def _check(self, story: Story) -> None:
        for client in (self.client, self.over_grpc):
            self._compare(story, Check(story, client[story.table.name], self.address))

    def _check_copy(self, story: Story) -> None:
        if story.oracle.live:
            story.table.to_parquet(self.folder / "table.parquet")
            copy = self.client.load_parquet(self.folder / "table.parquet", name=f"{story.table.name}-copy")
            self._compare(story, Check(story, copy, self.address, is_copy=True))
            copy.drop()

    def _compare(self, story: Story, check: Check) -> None:
        try:
            check.run()
        except Difference as error:
            self.differences.append(f"{check.table.name} {story.backend} {story.item} {story.columns}: {error}")
        self.counted.update(rows=check.rows, items=check.items)

    def _restart(self, stories: list[Story]) -> None:
        """Restart all servers. Writers go on; with several servers, they may abandon episodes, so new ones begin."""
        if len(self.servers) > 1:
            for story in stories:
                story.end()
        for server in self.servers:
            if self.rng.random() < 0.5:
                server.terminate()
            else:
                server.kill()
            server.restart()
            self.counted["restarts"] += 1


def run(folder: Path, streams: int, seed: int = 0) -> str:
    """Write streams to one server and to three, and compare; return a line about it.

    Raises:
        AssertionError: something differs.
    """
    counted: Counter[str] = Counter()
    differences = []
    for servers, part in ((1, 3 * streams // 4), (3, streams // 4)):
        made = Run(folder, servers, seed)
        try:
            made.run(part)
        finally:
            made.close()
        counted += made.counted
        differences += made.differences
    said = ", ".join(f"{number:,} {what}" for what, number in counted.items()) + f"; {len(differences)} differences"
    assert not differences, "\n".join([*differences, said])
    return said


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(run(Path(folder), arguments.streams, arguments.seed))


if __name__ == "__main__":
    main()
