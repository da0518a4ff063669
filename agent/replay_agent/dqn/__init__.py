"""Double DQN: networks, n-step transitions, losses, gradient steps."""
