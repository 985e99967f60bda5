"""The reward service (processes, time limits) and the reward functions."""
