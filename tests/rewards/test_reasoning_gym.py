import json

import pytest
import reasoning_gym

from headrace.rewards.reasoning_gym import ReasoningGymReward, score

COUNTDOWN = {
    "question": "Make 10 from 2, 3, 4.",
    "answer": "2*3 + 4",
    "metadata": {"source_dataset": "countdown", "numbers": [2, 3, 4], "target": 10, "expression": "2*3 + 4"},
}


def test_countdown_takes_only_the_given_numbers():
    assert score("2*3 + 4", COUNTDOWN) == 1.0
    assert score("(3 * 2) + 4", COUNTDOWN) == 1.0
    assert score("5 + 5", COUNTDOWN) < 1.0
    assert score("10", COUNTDOWN) < 1.0


@pytest.mark.parametrize("task", ["chain_sum", "boxnet", "countdown", "graph_color", "sudoku", "rubiks_cube"])
@pytest.mark.parametrize("answer", ["", None, "{not json", '[{"Agent[0.5, 0.5]": "move(box, nowhere)"}]', "x" * 10_000, "1/0", "\x00"])
def test_scorers_are_total(task, answer):
    entry = reasoning_gym.create_dataset(task, size=1, seed=0)[0]
    assert 0.0 <= score(answer, entry) < 1.0


def test_right_answers_score_one_after_a_trip_through_json():
    """Data sources may keep the entry as JSON."""
    for task in ("chain_sum", "countdown", "basic_arithmetic"):
        entry = json.loads(json.dumps(reasoning_gym.create_dataset(task, size=1, seed=3)[0]))
        assert score(entry["answer"], entry) == 1.0


def test_answer_tags_and_surrounding_space():
    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=0)[0]
    right = entry["answer"]
    assert score(f"so 1 + 1 … <answer> {right} </answer>", entry) == 1.0
    assert score(f"<answer>{right}</answer> no, <answer>0.5</answer>", entry) < 1.0
    assert score(f" {right}\n", entry) == 1.0


def test_completions_of_a_conversation():
    completion = [{"role": "assistant", "content": "2*3+4"}]
    assert ReasoningGymReward()([completion], reasoning_gym_entry=[COUNTDOWN], other=[1]) == [1.0]


def test_unknown_task_is_an_error():
    with pytest.raises(ValueError, match="no_such_task"):
        score("1", {"metadata": {"source_dataset": "no_such_task"}})
