"""What the recorded client of version 0.2.0 did: each kind of table, and each call that an actor and a learner make."""

import sys
from typing import Any

import numpy as np
from replay_client import Column, Discount, Next, ReplayClient, Return, Transitions

client = ReplayClient(sys.argv[1], same_host=False)
columns = {"obs": Column("float32", 4), "action": Column("int64"), "reward": Column("float32")}
numbers = np.arange(40)
rows = {"obs": np.repeat(numbers[:, None], 4, axis=1), "action": numbers, "reward": numbers}

for backend in ("sum_tree", "rank", "uniform"):
    table = client.create_table(backend, columns=columns, capacity=100, backend=backend, seed=7)
    keys = table.insert(rows)
    table.update_priorities(keys[:10], np.arange(1, 11))
    table.sample(8, beta=0.4)
    with table.writer() as writer:
        for number in range(20):
            writer.append(obs=np.full(4, 40 + number), action=40 + number, reward=1.0)
    with table.sampler(8, beta=0.4, prefetch=1) as sampler:
        for _, batch in zip(range(3), sampler, strict=False):
            sampler.update_priorities(batch, batch["reward"] + 1)
    table.stats()

queue = client.create_table("queue", columns=columns, capacity=100, backend="fifo")
queue.insert(rows)
queue.sample(10)

derived: dict[str, Any] = {**columns, "next_obs": Next("obs"), "n_return": Return("reward"), "discount": Discount()}
steps = client.create_table(
    "steps",
    columns=derived,
    capacity=100,
    steps=Transitions(n_step=2, gamma=0.9),
    seed=7,
    samples_per_insert=8.0,
    error_buffer=100.0,
)
with steps.writer() as writer:
    for number in range(12):
        writer.append(obs=np.full(4, number), action=number, reward=1.0)
    writer.end_episode(obs=np.full(4, 12.0), terminated=True)
steps.sample(6, beta=0.4)
list(steps.rows())
sorted(client)
client.drop_table("uniform")
