"""Notices a run that cannot learn: no rollout that took part has an advantage, or none takes part."""


class SignalWatch:
    """Counts steps without learning signal, and says so once.

    Args:
        patience: Steps in a row without signal after which it says so.
    """

    def __init__(self, patience: int = 10) -> None:
        self._patience = patience
        self._silent_steps = 0
        self._any_signal = False
        self._last: dict[str, float] = {}
        self._said = False

    def after_step(self, metrics: dict[str, float]) -> str | None:
        """Take a step's metrics in; the warning, when it is time for it."""
        self._last = metrics
        has_signal = metrics.get("advantage_share", 0.0) > 0
        self._any_signal = self._any_signal or has_signal
        self._silent_steps = 0 if has_signal else self._silent_steps + 1
        return self._warning() if self._silent_steps >= self._patience else None

    def at_end(self) -> str | None:
        """The warning, when the run had no step with signal and was too short to say so before."""
        return self._warning() if self._silent_steps and not self._any_signal else None

    def _warning(self) -> str | None:
        if self._said:
            return None
        self._said = True
        return f"no learning signal: in the last {self._silent_steps} steps {self._reason()}"

    def _reason(self) -> str:
        if "reward" not in self._last:
            return "no rollout had a reward, so nothing was trained on; read the saved samples to see why the reward functions gave none"
        if "advantage_share" not in self._last:
            return (
                f"no rollout took part: {self._last['completions/clipped_ratio']:.0%} of the completions were cut off, which "
                "algorithm.mask_truncated_completions leaves out; raise sampling.max_completion_length"
            )
        return (
            f"every advantage was 0, because the rollouts of each group all got the same reward (mean reward {self._last['reward']:.3g}), "
            "so nothing is learned from rewards; read the saved samples to see whether the reward function is right, choose prompts that "
            "the model solves sometimes, or raise algorithm.num_generations or sampling.temperature"
        )
