from headrace.telemetry.learning_signal import SignalWatch

SILENT = {"advantage_share": 0.0, "reward": 0.25}
LIVELY = {"advantage_share": 0.01, "reward": 0.25}


def test_says_so_once_after_ten_silent_steps():
    watch = SignalWatch()
    said = [watch.after_step(SILENT) for _ in range(25)]
    assert [number for number, message in enumerate(said, start=1) if message] == [10]
    assert "no learning signal: in the last 10 steps" in said[9]
    assert "mean reward 0.25" in said[9]
    assert watch.at_end() is None


def test_a_step_with_signal_starts_the_count_again():
    watch = SignalWatch(patience=3)
    steps = [SILENT, SILENT, LIVELY, SILENT, SILENT, LIVELY]
    assert [watch.after_step(step) for step in steps] == [None] * 6
    assert watch.at_end() is None


def test_a_short_run_without_any_signal_says_so_at_its_end():
    watch = SignalWatch()
    watch.after_step({"reward_failures": 4.0})
    assert "no rollout had a reward" in watch.at_end()


def test_a_run_whose_completions_are_all_left_out_is_told_why():
    watch = SignalWatch(patience=1)
    said = watch.after_step({"reward": 0.5, "completions/clipped_ratio": 1.0})
    assert "no rollout took part: 100% of the completions were cut off" in said
    assert "raise sampling.max_completion_length" in said
