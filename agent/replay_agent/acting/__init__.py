"""Acting in an environment: environments, seeds, the policy, greedy evaluation."""
