"""Notices a run that cannot learn: rewards that never differ between the rollouts of one prompt."""

from headrace.telemetry.metrics import has_signal


class SignalWatch:
    """Counts steps without learning signal, and says so once.

    Args:
        patience: Steps in a row without signal after which it says so.
    """

    def __init__(self, patience: int = 10) -> None:
        self._patience = patience
        self._silent_steps = 0
        self._any_signal = False
        self._last_reward: float | None = None
        self._said = False

    def after_step(self, metrics: dict[str, float]) -> str | None:
        """Take a step's metrics in; the warning, when it is time for it."""
        self._last_reward = metrics.get("reward")
        self._any_signal = self._any_signal or has_signal(metrics)
        self._silent_steps = 0 if has_signal(metrics) else self._silent_steps + 1
        return self._warning() if self._silent_steps >= self._patience else None

    def at_end(self) -> str | None:
        """The warning, when the run had no step with signal and was too short to say so before."""
        return self._warning() if self._silent_steps and not self._any_signal else None

    def _warning(self) -> str | None:
        if self._said:
            return None
        self._said = True
        reward = "no rollout had a reward" if self._last_reward is None else f"mean reward {self._last_reward:.3g}"
        return (
            f"no learning signal: in the last {self._silent_steps} steps the rollouts of each group all got the same reward ({reward}), "
            "so every advantage is 0 and the weights do not learn; read the saved samples to see whether the reward function is right, "
            "choose prompts that the model solves sometimes, or raise algorithm.num_generations or sampling.temperature"
        )
