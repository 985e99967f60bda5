import numpy as np
import pytest
import torch
from training.policies import VOCABULARY, policy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from headrace.errors import ModelError
from headrace.training.frozen_policy import FrozenPolicy
from headrace.types import Floats, Rollout

PROMPT = (5, 9, 3, 11)


def rollout(length: int, *, seed: int) -> Rollout:
    rng = np.random.default_rng(seed)
    return Rollout(
        completion_ids=rng.integers(3, VOCABULARY, length).astype(np.int32),
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        finish_reason="stop",
        text="",
    )


ROLLOUTS = (rollout(3, seed=1), rollout(7, seed=2), rollout(1, seed=3), rollout(5, seed=4))


def gpt2() -> PreTrainedModel:
    """A model that cannot share prompts: one sample a row, padded."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def one_by_one(model: PreTrainedModel, temperature: float) -> list[Floats]:
    """The model's own forward pass over each sequence."""
    found: list[Floats] = []
    for each in ROLLOUTS:
        ids = torch.tensor([*PROMPT, *each.completion_ids.tolist()])
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=ids[None]).logits[0].double() / temperature, dim=-1)
        found.append(table[len(PROMPT) - 1 : -1].gather(1, ids[len(PROMPT) :, None])[:, 0].float().numpy())
    return found


@pytest.mark.parametrize("token_budget", [64, 14, 11], ids=["one pass", "two in a pass", "one in a pass"])
@pytest.mark.parametrize("make_model", [policy, lambda: policy("gemma2"), gpt2], ids=["llama", "gemma2", "gpt2"])
def test_log_probabilities_are_those_of_separate_sequences_in_the_order_given(make_model, token_budget: int) -> None:
    expected = one_by_one(make_model(), 0.7)
    frozen = FrozenPolicy(make_model(), temperature=0.7, autocast_dtype=None, token_budget=token_budget)
    found = frozen.logprobs(PROMPT, ROLLOUTS)
    assert [len(each) for each in found] == [3, 7, 1, 5]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_temperature_changes_them() -> None:
    cold, warm = (
        FrozenPolicy(policy(), temperature=temperature, autocast_dtype=None, token_budget=64).logprobs(PROMPT, ROLLOUTS)
        for temperature in (0.5, 2.0)
    )
    assert abs(cold[1] - warm[1]).max() > 0.1


def test_in_bfloat16_linear_weights_are_kept_once_and_the_numbers_are_near() -> None:
    expected = one_by_one(policy(), 1.0)
    frozen = FrozenPolicy(policy(), temperature=1.0, autocast_dtype=torch.bfloat16, token_budget=64)
    types = {name: weight.dtype for name, weight in frozen.model.named_parameters()}
    assert types["model.layers.0.self_attn.q_proj.weight"] == types["model.layers.1.mlp.down_proj.weight"] == torch.bfloat16
    assert types["model.embed_tokens.weight"] == torch.float32
    for one, other in zip(frozen.logprobs(PROMPT, ROLLOUTS), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=0.2)


@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
def test_copied_weights_are_computed_with(autocast_dtype: torch.dtype | None) -> None:
    settings = {"temperature": 1.0, "autocast_dtype": autocast_dtype, "token_budget": 64}
    frozen, other = FrozenPolicy(policy(), **settings), FrozenPolicy(policy(seed=7), **settings)
    before = frozen.logprobs(PROMPT, ROLLOUTS)
    weights = policy(seed=7).state_dict()
    frozen.copy_weights({name: weights[name] for name, _ in frozen.model.named_parameters()})
    expected, after = other.logprobs(PROMPT, ROLLOUTS), frozen.logprobs(PROMPT, ROLLOUTS)
    assert all((one == same).all() for one, same in zip(after, expected, strict=True))
    assert abs(before[1] - after[1]).max() > 0.1


def test_nothing_of_it_learns() -> None:
    frozen = FrozenPolicy(policy(), temperature=1.0, autocast_dtype=None, token_budget=64)
    assert not any(parameter.requires_grad for parameter in frozen.model.parameters())


def test_a_damaged_model_is_told_instead_of_scored_with() -> None:
    model = policy()
    with torch.no_grad():
        model.get_input_embeddings().weight[int(ROLLOUTS[1].completion_ids[2])] = float("nan")
    frozen = FrozenPolicy(model, temperature=1.0, autocast_dtype=None, token_budget=64)
    with pytest.raises(ModelError, match="gives log-probabilities that are not finite"):
        frozen.logprobs(PROMPT, ROLLOUTS)
