import pytest
import torch
from rollout.tiny_models import tiny_model

from headrace.errors import ModelError
from headrace.rollout.linears import pack_linears
from headrace.rollout.model_weights import ModelWeights

TOKENS = torch.arange(1, 9)[None]


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS, use_cache=False).logits.float()


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gpt2", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loaded_weights_compute_like_the_model_they_came_from(name: str, dtype: torch.dtype):
    model, other = tiny_model(name, dtype=dtype), tiny_model(name, seed=1)
    weights = ModelWeights(model)
    pack_linears(model, weights)
    weights.check(published := dict(other.named_parameters()))
    with torch.no_grad():
        weights.load(published)
    torch.testing.assert_close(logits(model), logits(other.to(dtype)), atol=1e-6 if dtype == torch.float32 else 0.1, rtol=0.02)


def test_tied_weights_may_come_under_either_name():
    published = dict(tiny_model("llama_tied", seed=1).named_parameters(remove_duplicate=False))
    expected = logits(tiny_model("llama_tied", seed=1))
    for left_out in ("lm_head.weight", "model.embed_tokens.weight"):
        model = tiny_model("llama_tied")
        weights = ModelWeights(model)
        given = {name: tensor for name, tensor in published.items() if name != left_out}
        weights.check(given)
        with torch.no_grad():
            weights.load(given)
        torch.testing.assert_close(logits(model), expected)


def test_an_untied_head_may_not_be_missing():
    published = dict(tiny_model("llama").named_parameters())
    del published["lm_head.weight"]
    with pytest.raises(ModelError, match=r"missing: lm_head\.weight"):
        ModelWeights(tiny_model("llama")).check(published)


def test_every_wrong_name_and_shape_is_listed():
    published: dict[str, torch.Tensor] = dict(tiny_model("llama").named_parameters())
    del published["model.norm.weight"]
    published["model.extra"] = torch.zeros(1)
    published["lm_head.weight"] = torch.zeros(3, 32)
    with pytest.raises(ModelError) as caught:
        ModelWeights(tiny_model("llama")).check(published)
    assert "missing: model.norm.weight" in str(caught.value)
    assert "unexpected: model.extra" in str(caught.value)
    assert "lm_head.weight (3, 32) instead of (257, 32)" in str(caught.value)
