import pytest
from small_groups import reward, rollout

from headrace.controller.evaluation import evaluation_metrics


def test_the_means_of_a_greedy_evaluation() -> None:
    metrics = evaluation_metrics(
        [[reward(1.0)], [reward(0.0)], [reward(None, error="f failed")], [reward(1.0)]],
        [[rollout(0)], [rollout(0, 0, 0)], [rollout(0, 0, finish_reason="length")], [rollout(0, 0)]],
    )
    assert metrics == {"eval/reward": 0.5, "eval/mean_length": 2.0, "eval/clipped_ratio": 0.25, "eval/failed": 0.25}


def test_several_rollouts_of_a_prompt_give_pass_at_k_beside_the_mean() -> None:
    metrics = evaluation_metrics([[reward(1.0), reward(0.0)], [reward(0.0), reward(0.0)]], [[rollout(0)] * 2] * 2)
    assert metrics["eval/reward"] == pytest.approx(0.25)
    assert metrics["eval/pass@2"] == pytest.approx(0.5)
