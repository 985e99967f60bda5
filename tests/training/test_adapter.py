"""Training of an adapter: what learns, what stays, and that the fast layers compute what peft's own do."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from adapters import LORA, adapted
from training.policies import batch, gradients, parameters, policy, relative_gap, row, trainer

from headrace.config.algorithm import AlgorithmSection
from headrace.config.lora import LoraSection
from headrace.config.training import TrainingSection
from headrace.errors import CheckpointError
from headrace.training.adapter import adapter_off, has_adapter, learning_parameters, read_adapter
from headrace.training.checkpoint import load_checkpoint, save_checkpoint
from headrace.training.policy_model import PolicyModel
from headrace.training.policy_trainer import PolicyTrainer

ROWS = (row(5, (3, 4), seed=1), row(2, (6,), seed=2))
ATTENTION_ONLY = LoraSection(rank=2, alpha=4, target_modules=["q_proj", "v_proj"])
GATE_ONLY = LoraSection(rank=2, alpha=4, target_modules=["gate_proj"])


def frozen(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if not parameter.requires_grad}


def steps(made: PolicyTrainer, number: int) -> None:
    for _ in range(number):
        rows = (row(5, (3, 4), seed=made.version, version=made.version), row(2, (6,), seed=9 + made.version, version=made.version))
        made.accumulate(batch(*rows, version=made.version))
        made.step()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_only_the_adapter_learns(tied: bool, dtype: torch.dtype | None) -> None:
    model = adapted(policy(tie_word_embeddings=tied))
    made = trainer(model, autocast_dtype=dtype)
    base, adapter = frozen(model), dict(made.weights())
    adapter = {name: tensor.clone() for name, tensor in adapter.items()}
    steps(made, 2)
    assert base.keys() & adapter.keys() == set()
    assert all(torch.equal(base[name], now) for name, now in frozen(model).items())
    assert all(not torch.equal(adapter[name], now) for name, now in made.weights().items())


def test_frozen_weights_get_no_gradient() -> None:
    model = adapted(policy("qwen2", tie_word_embeddings=True))
    trainer(model, autocast_dtype=torch.bfloat16).accumulate(batch(*ROWS))
    assert gradients(model).keys() == learning_parameters(model).keys()


@pytest.mark.parametrize("lora", [LORA, ATTENTION_ONLY, GATE_ONLY], ids=["all", "attention", "gate"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma", "phi3"])
def test_bfloat16_gradients_are_pefts_within_tolerance(model_type: str, lora: LoraSection) -> None:
    if model_type == "phi3" and lora is not LORA:
        pytest.skip("phi3 joins these layers")
    plain = adapted(policy(model_type, initializer_range=0.1), lora)
    fast = copy.deepcopy(plain)
    for model, dtype in ((plain, None), (fast, torch.bfloat16)):
        scorer = PolicyModel(model, temperature=1.0, autocast_dtype=dtype, token_budget=64)
        for rows in scorer.passes(ROWS):
            scorer.score(rows).logprobs.sum().backward()
    wanted, found = gradients(plain), gradients(fast)
    assert wanted.keys() == found.keys() == learning_parameters(plain).keys()
    assert 0 < relative_gap(wanted, found) < 0.05


def test_float32_gradients_are_pefts_own() -> None:
    """Against transformers' attention and peft's layers, sequence by sequence."""
    model, other = adapted(policy()), adapted(policy())
    made = trainer(model, algorithm=AlgorithmSection(denominator="tokens"))
    made.accumulate(batch(*ROWS))
    other.eval()
    for each in ROWS:
        for sample in each.samples:
            ids = torch.tensor([[*each.prompt_ids, *sample.completion_ids.tolist()]])
            logprobs = other(input_ids=ids).logits[0, len(each.prompt_ids) - 1 : -1].log_softmax(-1)
            now = logprobs.gather(1, ids[0, len(each.prompt_ids) :, None])[:, 0]
            ratio = (now - torch.from_numpy(sample.logprobs)).exp()
            advantages = torch.from_numpy(sample.advantages)
            gains = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            (-gains.sum()).backward()
    assert relative_gap(gradients(other), gradients(model)) < 1e-5


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_reference_is_the_base(dtype: torch.dtype | None) -> None:
    model, base = adapted(policy()), policy()
    algorithm = AlgorithmSection(beta=0.1)
    with_copy = trainer(copy.deepcopy(model), algorithm=algorithm, reference=base, autocast_dtype=dtype)
    without = trainer(model, algorithm=algorithm, autocast_dtype=dtype)
    for made in (with_copy, without):
        made.accumulate(batch(*ROWS))
    assert relative_gap(gradients(with_copy.model), gradients(model)) < (1e-6 if dtype is None else 1e-2)
    assert with_copy.step().metrics["kl"] == pytest.approx(without.step().metrics["kl"], rel=1e-5 if dtype is None else 2e-2)


def test_the_adapter_is_on_again_afterwards() -> None:
    model = adapted(policy())
    ids = torch.tensor([[5, 3, 9]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        with adapter_off(model):
            torch.testing.assert_close(model(input_ids=ids).logits, policy()(input_ids=ids).logits)
        torch.testing.assert_close(model(input_ids=ids).logits, before, rtol=0, atol=0)
    assert learning_parameters(model)


def test_frozen_weights_exist_in_the_type_of_the_products_only() -> None:
    model = adapted(policy())
    PolicyModel(model, temperature=1.0, autocast_dtype=torch.bfloat16, token_budget=64)
    linear = {name: tensor.dtype for name, tensor in frozen(model).items() if "proj" in name}
    assert set(linear.values()) == {torch.bfloat16}
    assert {parameter.dtype for parameter in learning_parameters(model).values()} == {torch.float32}
    assert model.lm_head.weight.dtype == torch.float32


def test_checkpointed_activations_give_the_same_gradients() -> None:
    model, other = adapted(policy()), adapted(policy())
    trainer(model).accumulate(batch(*ROWS))
    trainer(other, training=TrainingSection(gradient_checkpointing=True)).accumulate(batch(*ROWS))
    assert relative_gap(gradients(model), gradients(other)) < 1e-6


def test_six_steps_equal_three_a_restart_and_three(tmp_path: Path) -> None:
    straight = trainer(adapted(policy()))
    steps(straight, 6)
    before = trainer(adapted(policy()))
    steps(before, 3)
    save_checkpoint(before, tmp_path)
    assert {file.name for file in tmp_path.glob("*.safetensors")} == {"adapter_model.safetensors"}

    after = trainer(adapted(policy(), seed=5))
    load_checkpoint(after, tmp_path)
    steps(after, 3)

    assert after.version == 6
    assert relative_gap(parameters(straight.model), parameters(after.model)) == 0


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_a_checkpoint_loads_with_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    model = adapted(policy())
    save_checkpoint(trainer(model), tmp_path)
    loaded = PeftModel.from_pretrained(policy(), tmp_path)
    ids = torch.tensor([[5, 3, 9]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert relative_gap(dict(trainer(model).weights()), read_adapter(tmp_path)) == 0


def test_a_checkpoint_of_another_rank_is_refused(tmp_path: Path) -> None:
    save_checkpoint(trainer(adapted(policy())), tmp_path)
    other = trainer(adapted(policy(), LoraSection(rank=2)))
    with pytest.raises(CheckpointError, match=r"lora_A.default.weight' has shape \[3, 48\] there and \[2, 48\] here"):
        load_checkpoint(other, tmp_path)


def test_a_checkpoint_of_all_weights_is_refused(tmp_path: Path) -> None:
    save_checkpoint(trainer(policy()), tmp_path)
    with pytest.raises(CheckpointError, match="belongs to"):
        load_checkpoint(trainer(adapted(policy())), tmp_path)


def test_a_plain_model_has_no_adapter() -> None:
    model = policy()
    assert not has_adapter(model)
    assert learning_parameters(model).keys() == parameters(model).keys()
    assert np.all([parameter.requires_grad for parameter in model.parameters()])
