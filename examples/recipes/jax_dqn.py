"""Double DQN in JAX: environments run inside `lax.scan`, and so do several gradient steps with one draw.

    replay-server                                   # in another terminal
    python examples/recipes/jax_dqn.py

Each scan of the environments returns `STEPS` steps of `ENVS` of them, which are inserted at once. Each draw has the
rows of `UPDATES` minibatches; their TD errors come back from the scan and become priorities.
"""

from __future__ import annotations

from typing import Any

import cyclopts
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from replay_client import Column, ReplayClient

ENVS, STEPS, UPDATES, BATCH_SIZE, GAMMA, LIMIT = 16, 16, 32, 128, 0.99, 500
COLUMNS = {"obs": Column("float32", 4), "action": Column("int32"), "reward": Column("float32")}
COLUMNS |= {"next_obs": Column("float32", 4), "discount": Column("float32")}


def new_params(key: jax.Array) -> Any:
    """Return the weights of a network with two hidden layers."""
    layers = zip(jax.random.split(key, 3), (4, 64, 64), (64, 64, 2), strict=True)
    return [(jax.random.normal(own, (a, b)) * jnp.sqrt(2 / a), jnp.zeros(b)) for own, a, b in layers]


def q_values(params: Any, obs: jax.Array) -> jax.Array:
    """Return action values, float32[..., 2]."""
    for weights, bias in params[:-1]:
        obs = jax.nn.relu(obs @ weights + bias)
    return obs @ params[-1][0] + params[-1][1]


def step_env(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the next state of CartPole, and whether the pole or the cart is too far out (Barto et al. 1983)."""
    _, x_dot, theta, theta_dot = state
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cos / 1.1
    state = state + 0.02 * jnp.stack([x_dot, x_acc, theta_dot, theta_acc])
    return state, (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * 2 * jnp.pi / 360)


@jax.jit  # type: ignore[untyped-decorator]
def play(params: Any, envs: tuple[jax.Array, jax.Array], key: jax.Array, epsilon: float) -> Any:
    """Play `STEPS` steps. Return the environments, and rows and lengths of episodes, ``[STEPS, ENVS, ...]``."""

    def step(carry: Any, key: jax.Array) -> Any:
        obs, length = carry
        explores, chooses, resets = jax.random.split(key, 3)
        greedy, random = q_values(params, obs).argmax(-1), jax.random.randint(chooses, (ENVS,), 0, 2)
        action = jnp.where(jax.random.uniform(explores, (ENVS,)) < epsilon, random, greedy)
        next_obs, terminated = jax.vmap(step_env)(obs, action)
        is_over = terminated | (length + 1 >= LIMIT)
        row = {"obs": obs, "action": action, "reward": jnp.ones(ENVS), "next_obs": next_obs}
        row["discount"] = GAMMA * (1.0 - terminated)
        first = jax.random.uniform(resets, (ENVS, 4), minval=-0.05, maxval=0.05)
        carry = jnp.where(is_over[:, None], first, next_obs), jnp.where(is_over, 0, length + 1)
        return carry, (row, jnp.where(is_over, length + 1, 0))

    return lax.scan(step, envs, jax.random.split(key, STEPS))


@jax.jit  # type: ignore[untyped-decorator]
def learn(learner: Any, target: Any, batch: dict[str, jax.Array]) -> Any:
    """Make `UPDATES` steps of Adam. Return the learner, and the absolute TD errors, float32[UPDATES, BATCH_SIZE]."""

    def loss_of(params: Any, part: dict[str, jax.Array]) -> Any:
        best = q_values(params, part["next_obs"]).argmax(-1)[:, None]
        following = jnp.take_along_axis(q_values(target, part["next_obs"]), best, 1)[:, 0]
        chosen = jnp.take_along_axis(q_values(params, part["obs"]), part["action"][:, None], 1)[:, 0]
        errors = lax.stop_gradient(part["reward"] + part["discount"] * following) - chosen
        return (part["weights"] * jnp.where(abs(errors) < 1, 0.5 * errors**2, abs(errors) - 0.5)).mean(), abs(errors)

    def update(learner: Any, part: dict[str, jax.Array]) -> Any:
        params, first, second, count = learner
        (_, errors), gradient = jax.value_and_grad(loss_of, has_aux=True)(params, part)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
        rate = 5e-4 * jnp.sqrt(1 - 0.999 ** (count + 1)) / (1 - 0.9 ** (count + 1))
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
        return (params, first, second, count + 1), errors

    return lax.scan(update, learner, batch)


def main(address: str = "localhost:50051", *, steps: int = 400_000, solved: float = 450.0) -> float:
    """Train until episodes last long enough, and return the mean length of those that ended in the newest scans."""
    key, zeros = jax.random.key(0), jax.tree.map(jnp.zeros_like, new_params(jax.random.key(0)))
    target = new_params(key)
    learner, envs, found = (target, zeros, zeros, 0), (jnp.zeros((ENVS, 4)), jnp.zeros(ENVS, int)), [0.0]
    table = ReplayClient(address).create_table("jax-dqn", columns=COLUMNS, capacity=50_000, if_exists="reset")
    with table.sampler(UPDATES * BATCH_SIZE) as sampler:
        for scan in range(1, steps // (ENVS * STEPS) + 1):
            key, mine = jax.random.split(key)
            envs, (rows, ended) = play(learner[0], envs, mine, max(0.05, 1 - scan / 60))
            table.insert({name: np.asarray(each).reshape(-1, *each.shape[2:]) for name, each in rows.items()})
            found = [*found, *np.asarray(ended)[np.asarray(ended) > 0].tolist()][-50:]
            batch = next(sampler)
            parts = {**batch, "weights": batch.weights}
            parts = {name: each.reshape(UPDATES, BATCH_SIZE, *each.shape[1:]) for name, each in parts.items()}
            learner, errors = learn(learner, target, parts)
            sampler.update_priorities(batch, np.asarray(errors).ravel())
            target = learner[0] if scan % 10 == 0 else target
            if scan % 50 == 0:
                print(f"{scan * ENVS * STEPS:,} steps: mean length of episodes {np.mean(found):.0f}")
                if np.mean(found) >= solved:
                    break
    return float(np.mean(found))


if __name__ == "__main__":
    cyclopts.run(main)
