"""Replay buffers and prioritized algorithms for Stable-Baselines3; needs the extra ``sb3``.

    SAC("MlpPolicy", env, replay_buffer_class=ServiceReplayBuffer,
        replay_buffer_kwargs={"address": "localhost:50051", "table": "pendulum"})
    SAC("MultiInputPolicy", env, replay_buffer_class=ServiceHerReplayBuffer,
        replay_buffer_kwargs={"address": "localhost:50051", "table": "reach", "n_sampled_goal": 4})
    PrioritizedDQN("MlpPolicy", env, replay_buffer_kwargs={"address": "localhost:50051", "table": "cartpole"})

The buffers use tables of steps, which store each observation once. The client computes next observations, n-step
returns and goals in hindsight when it draws a batch. A pickled buffer contains no rows, only a reference to its table
on the server.
"""

from replay_client.sb3.buffer import ServiceReplayBuffer, ServiceSamples
from replay_client.sb3.her import ServiceHerReplayBuffer
from replay_client.sb3.prioritized import PrioritizedDQN, PrioritizedReplay

__all__ = ["PrioritizedDQN", "PrioritizedReplay", "ServiceHerReplayBuffer", "ServiceReplayBuffer", "ServiceSamples"]
