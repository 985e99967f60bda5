import pytest

from headrace.config.data import ReasoningGymSource
from headrace.data.gym_source import load_reasoning_gym
from headrace.errors import DataError


def test_reasoning_gym_rows_carry_the_entry_that_the_scorer_needs():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    source = ReasoningGymSource(task="chain_sum", size=5, seed=3, parameters={"min_terms": 2, "max_terms": 2})
    rows = load_reasoning_gym(source)
    task = reasoning_gym.create_dataset("chain_sum", size=5, seed=3, min_terms=2, max_terms=2)
    assert [row["prompt"] for row in rows] == [entry["question"] for entry in task]
    for row in rows:
        assert task.score_answer(answer=row["answer"], entry=row["reasoning_gym_entry"]) == 1.0


@pytest.mark.parametrize(
    ("task", "parameters", "words"),
    [
        ("chain_summ", {}, "chain_sum"),
        ("chain_sum", {"min_term": 2}, "min_terms"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "max_terms must be >= min_terms"),
        ("chain_sum", {"min_terms": "many"}, "refuses the parameters"),
    ],
)
def test_reasoning_gym_refusals_name_what_there_is(task, parameters, words):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=words):
        load_reasoning_gym(ReasoningGymSource(task=task, parameters=parameters))
