import json
from pathlib import Path

import pytest


def test_trains_with_the_command(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import end_to_end

    end_to_end.main(
        [
            "--model",
            str(model_folder),
            "--schedules",
            "sync",
            "--steps",
            "3",
            "--few-shot",
            "2",
            "--seed",
            "4",
            "--evaluation-rollouts",
            "2",
            "--json",
        ]
    )
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    sync = result["sides"]["sync"]
    assert len(sync["curves"][0]) == 3
    assert sync["completions_per_second"] == pytest.approx(64 / sync["seconds_per_step"], rel=1e-2)
    assert sync["seconds_to_goal"] is None
    assert [(entry["side"], entry["seed"]) for entry in result["order"]] == [("sync", 4)]
    assert sync["accuracies"] == [sync["accuracy"]]
    assert 0 <= sync["accuracy"] <= 1


def test_numbers_of_a_run_by_hand() -> None:
    from end_to_end import summary_of
    from training_runs import TrainedStep, TrainingRun

    # Warm-up ends at 10 s; three steps of 8 completions of 5 tokens follow in 6 s.
    rewards, times = (0.5, 0.8, 1.0, 1.0, 1.0), (6.0, 10.0, 12.0, 15.0, 16.0)
    steps = [TrainedStep(time=time, seconds=0, reward=reward, mean_length=5) for time, reward in zip(times, rewards, strict=True)]
    late = [*steps, TrainedStep(time=18.0, seconds=0, reward=0.9, mean_length=5)]
    found = summary_of([TrainingRun(steps=steps, accuracy=accuracy) for accuracy in (0.5, 0.9, 0.7)], 8, steps=len(steps))
    assert (found["accuracy"], found["accuracies"]) == (0.7, [0.5, 0.9, 0.7])
    assert (found["seconds_per_step"], found["completions_per_second"], found["completion_tokens_per_second"]) == (2.0, 4.0, 20.0)
    assert (found["reward_first_steps"], found["reward_last_steps"], found["seconds_to_goal"]) == (0.86, 0.86, None)
    assert summary_of([TrainingRun(steps=late)], 8, steps=len(late))["seconds_to_goal"] == 18.0


def test_both_sides_train_on_the_same_rows() -> None:
    from addition import ONE_DIGIT, additions

    rows = additions(ONE_DIGIT, few_shot=3, seed=0)
    assert rows == additions(ONE_DIGIT, few_shot=3, seed=0)
    assert len({row["prompt"][0]["content"].splitlines()[-1] for row in rows}) == len(rows) == 81
    for row in rows:
        *examples, question = row["prompt"][0]["content"].splitlines()
        for a, b, total in ([int(word.strip("?.")) for word in line.split() if word.strip("?.").isdigit()] for line in examples):
            assert total == a + b
        assert len(examples) == 3
        assert sum(int(word.strip("?")) for word in question.split() if word.strip("?").isdigit()) == int(row["answer"])


def test_too_few_steps_are_refused(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import end_to_end

    with pytest.raises(SystemExit):
        end_to_end.main(["--model", str(model_folder), "--steps", "2"])
    assert "no step would be left" in capsys.readouterr().err
