"""DQN on frames of 84x84 pixels. Each frame is stored once; batches contain stacks of four and 3-step returns.

    replay-server                       # in another terminal
    python examples/atari_dqn.py        # Catch, a small game in this file
    python examples/atari_dqn.py --game ALE/Pong-v5 --steps 10_000_000 --capacity 1_000_000

Atari games need the extra ``atari``. Targets are those of n-step Double DQN (van Hasselt et al. 2016). This process
acts and learns. Actors in other processes can open ``client["atari-dqn"]`` and write to it in the same way.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, ClipReward, FrameStackObservation, RecordEpisodeStatistics
from numpy.typing import NDArray
from replay_client import Column, Discount, ReplayClient, Return, Stack, Transitions, WriterStream
from replay_client.gymnasium import RecordSteps
from torch import nn

FRAME, STACK = (84, 84), 4
ENVS, LEARNING_STARTS = 8, 500
CELLS, CELL_PIXELS = 12, 7


class Catch(gymnasium.Env[NDArray[np.uint8], Any]):
    """A ball falls, and bounces off the walls. The reward is 1 if the paddle catches it at the bottom, otherwise -1."""

    observation_space = gymnasium.spaces.Box(0, 255, FRAME, np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Drop a new ball."""
        super().reset(seed=seed)
        self._row, self._column, self._paddle = 0, int(self.np_random.integers(CELLS)), CELLS // 2
        self._drift = int(self.np_random.choice([-1, 1]))  # visible in a stack, but not in a single frame
        return self._frame(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move the paddle to the left (0), keep it (1), or move it to the right (2)."""
        self._paddle = min(max(self._paddle + int(action) - 1, 1), CELLS - 2)
        if not 0 <= self._column + self._drift < CELLS:
            self._drift = -self._drift
        self._row, self._column = self._row + 1, self._column + self._drift
        is_over = self._row == CELLS - 1
        reward = (1.0 if abs(self._column - self._paddle) <= 1 else -1.0) if is_over else 0.0
        return self._frame(), reward, is_over, False, {}

    def _frame(self) -> NDArray[np.uint8]:
        cells = np.zeros((CELLS, CELLS), np.uint8)
        cells[-1, self._paddle - 1 : self._paddle + 2] = 128
        cells[self._row, self._column] = 255
        return cells.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)


def make_env(game: str | None, stream: WriterStream) -> gymnasium.Env[Any, Any]:
    """Make an environment that shows stacks of frames to the agent but stores each frame once."""
    env: gymnasium.Env[Any, Any] = Catch()
    if game is not None:
        import ale_py  # type: ignore[import-not-found,unused-ignore]

        gymnasium.register_envs(ale_py)
        env = AtariPreprocessing(gymnasium.make(game, frameskip=1))
    env = ClipReward(RecordEpisodeStatistics(env), -1, 1)
    return FrameStackObservation(RecordSteps(env, stream, obs="frame"), STACK)


def make_network(actions: int) -> nn.Module:
    """Create the network of Mnih et al. 2015, from float32[b, 4, 84, 84] between 0 and 1 to float32[b, actions]."""
    convolutions = (nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3))
    head = (nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, actions))
    return nn.Sequential(*convolutions, nn.ReLU(), *head)


def td_errors(network: nn.Module, target: nn.Module, batch: Any) -> torch.Tensor:
    """Return the TD errors of n-step Double DQN, float32[b]. Discounts are gamma**k, or 0 after a terminal state."""
    next_obs = batch["next_obs"] / 255.0
    with torch.no_grad():
        best = network(next_obs).argmax(1, keepdim=True)
        returns = batch["n_return"] + batch["discount"] * target(next_obs).gather(1, best)[:, 0]
    errors: torch.Tensor = returns - network(batch["obs"] / 255.0).gather(1, batch["action"][:, None])[:, 0]
    return errors


def main(
    address: str = "localhost:50051",
    *,
    game: str | None = None,
    steps: int = 40_000,
    capacity: int = 100_000,
    seed: int = 0,
) -> float:
    """Train, and return the mean return of the last episodes. An existing table is emptied first."""
    torch.manual_seed(seed)
    rng, device = np.random.default_rng(seed), "cuda" if torch.cuda.is_available() else "cpu"
    replay = ReplayClient(address).create_table(
        "atari-dqn",
        columns={
            "frame": Column("uint8", FRAME, sampled=False),
            "action": Column("int64"),
            "reward": Column("float32", sampled=False),
            "obs": Stack("frame", STACK),
            "next_obs": Stack("frame", STACK, ahead=True),
            "n_return": Return("reward"),
            "discount": Discount(),
        },
        capacity=capacity,
        steps=Transitions(n_step=3, gamma=0.99),
        if_exists="reset",
    )
    sampling = replay.sampler(32, beta=0.4, prefetch=2, timeout_s=None, device=device)
    with replay.writer(streams=ENVS) as writer, sampling as sampler:
        vector: Any = gymnasium.vector.SyncVectorEnv([partial(make_env, game, writer[i]) for i in range(ENVS)])
        obs, _ = vector.reset(seed=seed)
        actions = int(vector.single_action_space.n)
        network, target = make_network(actions).to(device), make_network(actions).to(device)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
        returns: deque[float] = deque(maxlen=100)
        for step in range(0, steps, ENVS):
            with torch.no_grad():
                greedy = network(torch.as_tensor(obs, device=device) / 255.0).argmax(1).cpu().numpy()
            epsilon = max(0.02, 1.0 - step / (0.3 * steps))
            chosen = np.where(rng.random(ENVS) < epsilon, rng.integers(actions, size=ENVS), greedy)
            obs, _, _, _, infos = vector.step(chosen)
            if "episode" in infos:
                returns.extend(infos["episode"]["r"][infos["_episode"]].tolist())
            for _ in range(ENVS // 4 if step >= LEARNING_STARTS else 0):  # one update per four steps
                batch = next(sampler)
                errors = td_errors(network, target, batch)
                optimizer.zero_grad()
                huber = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
                (batch.weights * huber).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                sampler.update_priorities(batch, errors.detach().abs())
            if step % 2_000 == 0:
                target.load_state_dict(network.state_dict())
                print(f"{step} steps, mean return {np.mean(returns or [0]):.2f}")
    return float(np.mean(returns or [0]))


if __name__ == "__main__":
    cyclopts.run(main)
