"""Ctrl-C at any moment of a writer's calls: the writer goes on, doubles nothing, and says what it has lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Final

import numpy as np
import pytest
from replay_client import Column, Next, ReplayClient, Transitions

from tests.support.deadlines import PATIENCE_S
from tests.support.server_process import ServerProcess

INTERRUPTS: Final = 1_000
PROGRAM = f"""
import json, logging, random, signal, sys
from replay_client import ReplayClient

logging.basicConfig(format="%(message)s")
table = ReplayClient(sys.argv[1]).table(sys.argv[2])
signal.signal(signal.SIGALRM, signal.default_int_handler)
random.seed(0)
returned, number, interrupts, is_of_steps = [], 0, 0, table.describe().steps is not None
writer = table.writer(block_rows=4)
while interrupts < {INTERRUPTS}:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 3e-4))
        while True:
            number += 1
            writer.append(number=number)
            returned.append(number)
            if number % 7 == 0:
                writer.end_episode(**({{"number": number}} if is_of_steps else {{}}))
    except KeyboardInterrupt:
        interrupts += 1
writer.close()
print(json.dumps(returned))
"""


@pytest.mark.parametrize("steps", [None, Transitions(n_step=2)])
def test_a_writer_that_is_interrupted_at_any_moment_goes_on(server: ServerProcess, steps: Transitions | None) -> None:
    columns = {"number": Column("int64")} | ({} if steps is None else {"next": Next("number")})
    with ReplayClient(server.address) as client:
        table = client.create_table("interrupted", columns=columns, capacity=1_000_000, steps=steps)
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.address, table.name],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        rows = table.read(np.arange(table.describe().inserted))
        table.drop()
    returned = set(json.loads(ended.stdout))
    is_step = np.ones(len(rows["number"]), bool) if rows.ends is None else rows.ends == 0
    numbers = rows["number"][is_step]
    assert (np.diff(numbers) > 0).all(), "each row at most once, in order"
    lost = sum(map(int, re.findall(r"^(\d+) rows of table 'interrupted' are lost: Ctrl-C", ended.stderr, re.M)))
    assert len(returned - set(numbers.tolist())) <= lost
    assert lost < len(numbers) / 4
    if rows.steps is not None and rows.ends is not None:
        _, episodes = np.unique(rows.episodes, return_inverse=True)
        for episode in range(episodes.max() + 1):
            mine = episodes == episode
            assert (np.diff(rows.steps[mine]) == 1).all(), "no step of an episode is missing"
            assert not rows.ends[mine][:-1].any(), "only the last row closes an episode"
