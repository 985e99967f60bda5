import pytest
import torch
from training.policies import gradients, policy, relative_gap, row
from transformers import PreTrainedModel

from headrace.training.policy_model import PolicyModel
from headrace.training.rotary import use_rotary_layers

ROWS = (row(9, (6, 1, 4), seed=1), row(3, (2, 8), seed=2))


def num_replaced(model: PreTrainedModel) -> int:
    return sum("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("model_type", "settings", "layers"),
    [
        ("llama", {}, 2),
        ("qwen2", {}, 2),
        ("qwen3", {}, 2),
        ("granite", {"attention_multiplier": 0.3}, 2),
        ("smollm3", {"no_rope_layers": [1, 0]}, 1),
        ("olmo2", {}, 0),
        ("phi3", {}, 0),
        ("mistral", {"sliding_window": 5}, 0),
        ("gemma2", {}, 0),
        ("gpt2", {}, 0),
    ],
)
def test_layers_that_rotate_as_usual_give_the_same_scores_and_gradients(model_type: str, settings: dict[str, object], layers: int) -> None:
    model = policy(model_type, **settings)
    scored = PolicyModel(model, temperature=1.0, autocast_dtype=None, token_budget=64)
    (rows, *_) = scored.passes(ROWS)
    expected = scored.score(rows).logprobs
    upstream = torch.randn(len(expected))
    (expected * upstream).sum().backward()
    wanted = gradients(model)
    model.zero_grad()

    use_rotary_layers(model)
    found = scored.score(rows).logprobs
    (found * upstream).sum().backward()

    assert num_replaced(model) == layers
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert relative_gap(wanted, gradients(model)) < 1e-5
