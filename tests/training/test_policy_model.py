import numpy as np
import pytest
import torch
from torch import Tensor
from training.policies import gradients, policy, relative_gap, row
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from headrace.errors import ModelError
from headrace.training.attention import SHARED_PROMPT_MODEL_TYPES
from headrace.training.policy_model import PolicyModel
from headrace.types import SharedPromptRow

ROWS = (row(9, (6, 1, 4), seed=1), row(3, (2, 8), seed=2), row(12, (5,), seed=3))
WINDOWED = {"sliding_window": 5}
SETTINGS: dict[str, list[dict[str, object]]] = {
    "gemma": [{}],
    "gemma2": [WINDOWED | {"final_logit_softcapping": 3.0}],
    "gemma3_text": [WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]}],
    "granite": [{"logits_scaling": 2.0, "tie_word_embeddings": False}],
    "llama": [{"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {"attn_implementation": "eager"}],
    "mistral": [WINDOWED],
    "olmo2": [{}],
    "olmo3": [WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]}],
    "phi3": [WINDOWED],
    "qwen2": [{}, WINDOWED | {"use_sliding_window": True, "max_window_layers": 1}],
    "qwen3": [{}, WINDOWED | {"use_sliding_window": True, "max_window_layers": 0}],
    "smollm3": [{}],
}


def policy_model(model: PreTrainedModel, *, temperature: float = 1.0, autocast_dtype: torch.dtype | None = None) -> PolicyModel:
    return PolicyModel(model, temperature=temperature, autocast_dtype=autocast_dtype, token_budget=64)


def separate_logprobs(model: PreTrainedModel, rows: tuple[SharedPromptRow, ...], temperature: float = 1.0) -> list[Tensor]:
    """By the model's own forward pass, one sequence at a time: [tokens] for each sample of each row."""
    found: list[Tensor] = []
    for each in rows:
        for sample in each.samples:
            ids = torch.tensor([*each.prompt_ids, *sample.completion_ids.tolist()])
            table = torch.log_softmax(model(input_ids=ids[None]).logits[0] / temperature, dim=-1)
            found.append(table[len(each.prompt_ids) - 1 : -1].gather(1, ids[len(each.prompt_ids) :, None])[:, 0])
    return found


def scored_by_sample(scored: PolicyModel, rows: tuple[SharedPromptRow, ...]) -> list[Tensor]:
    """The same from the shared-prompt layout."""
    (collated,) = scored.passes(rows)
    logprobs = scored.score(collated).logprobs
    return [logprobs[collated.sample_index == index] for index in range(collated.num_samples)]


@pytest.mark.parametrize(
    ("model_type", "settings"), [(model_type, settings) for model_type in sorted(SETTINGS) for settings in SETTINGS[model_type]]
)
def test_a_row_of_completions_equals_separate_sequences(model_type: str, settings: dict[str, object]) -> None:
    model = policy(model_type, **settings)
    upstream = torch.randn(sum(each.num_loss_tokens for each in ROWS))
    alone = torch.cat(separate_logprobs(model, ROWS))
    (alone * upstream).sum().backward()
    expected = gradients(model)
    model.zero_grad()

    together = torch.cat(scored_by_sample(policy_model(model), ROWS))
    (together * upstream).sum().backward()

    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert relative_gap(expected, gradients(model)) < 1e-5


def test_every_architecture_that_shares_prompts_is_tested() -> None:
    assert set(SETTINGS) == SHARED_PROMPT_MODEL_TYPES


def test_a_window_hides_what_is_behind_it() -> None:
    """Otherwise the comparison above would say nothing about windows."""
    with_window, without = policy("mistral", **WINDOWED), policy("mistral", sliding_window=None)
    gap = torch.cat(scored_by_sample(policy_model(with_window), ROWS)) - torch.cat(scored_by_sample(policy_model(without), ROWS))
    assert float(gap.detach().abs().max()) > 1e-2


def test_temperature_divides_the_logits() -> None:
    model = policy()
    together = torch.cat(scored_by_sample(policy_model(model, temperature=0.5), ROWS))
    torch.testing.assert_close(together, torch.cat(separate_logprobs(model, ROWS, temperature=0.5)), rtol=1e-5, atol=1e-5)


def test_a_model_of_unknown_layout_gets_one_sample_a_row() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3))
    scored = policy_model(model)
    assert model.transformer.drop.p == 0.0

    passes = scored.passes(ROWS)
    assert len(passes) > 1
    assert all(rows.num_padded_tokens <= 64 and rows.layouts is None for rows in passes)
    found = {
        (tuple(rows.token_ids[rows.sample_index == index].tolist()), index): scored.score(rows).logprobs[rows.sample_index == index]
        for rows in passes
        for index in range(rows.num_samples)
    }
    expected = separate_logprobs(model, ROWS)
    assert len(found) == len(expected)
    torch.testing.assert_close(
        torch.sort(torch.cat(list(found.values()))).values, torch.sort(torch.cat(expected)).values, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("settings", [{}, WINDOWED | {"use_sliding_window": True, "max_window_layers": 1}])
def test_bfloat16_autocast_stays_near_float32(settings: dict[str, object]) -> None:
    model = policy("qwen2", initializer_range=0.1, **settings)
    expected = torch.cat(separate_logprobs(model, ROWS))
    expected.sum().backward()
    wanted = gradients(model)
    model.zero_grad()

    found = torch.cat(scored_by_sample(policy_model(model, autocast_dtype=torch.bfloat16), ROWS))
    found.sum().backward()

    assert found.dtype == torch.float32
    assert 0 < float((found - expected).detach().abs().max()) < 0.1
    assert 0 < relative_gap(wanted, gradients(model)) < 0.05


def test_dropout_is_off() -> None:
    model = policy("llama", attention_dropout=0.5)
    scored = policy_model(model)
    model.train()
    np.testing.assert_array_equal(torch.cat(scored_by_sample(scored, ROWS)).detach(), torch.cat(scored_by_sample(scored, ROWS)).detach())


def test_logits_that_are_changed_in_an_unknown_way_are_refused() -> None:
    model = policy()
    model.lm_head.register_forward_hook(lambda module, inputs, output: 3 * output)
    with pytest.raises(ModelError, match=r"llama computed from its hidden states are .* off"):
        policy_model(model)


def test_rows_without_samples_need_no_pass() -> None:
    assert policy_model(policy()).passes((row(3, (), seed=0),)) == []
