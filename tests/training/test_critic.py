from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training.policies import batch, gradients, parameters, policy, relative_gap, row, trainer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from headrace.algorithms.normalisers import TokenMean
from headrace.config.algorithm import AlgorithmSection
from headrace.config.training import TrainingSection
from headrace.errors import CheckpointError, ModelError
from headrace.training.backbone import Backbone
from headrace.training.checkpoint import load_checkpoint, save_checkpoint
from headrace.training.critic import Critic
from headrace.training.policy_trainer import PolicyTrainer
from headrace.types import MicroBatch, SharedPromptRow

ROWS = (row(9, (6, 1, 4), seed=1), row(3, (2, 8), seed=2), row(12, (5,), seed=3))


def ppo(**settings: Any) -> AlgorithmSection:
    return AlgorithmSection.model_validate({"name": "ppo", **settings})


def ppo_trainer(
    model: PreTrainedModel | None = None,
    *,
    backbone: PreTrainedModel | None = None,
    autocast_dtype: torch.dtype | None = None,
    training: TrainingSection | None = None,
    **settings: Any,
) -> PolicyTrainer:
    return PolicyTrainer(
        policy() if model is None else model,
        algorithm=ppo(**settings),
        training=training or TrainingSection(learning_rate=1e-2),
        temperature=1.0,
        max_completion_length=8,
        total_steps=6,
        autocast_dtype=autocast_dtype,
        reference=None,
        critic_backbone=backbone,
    )


def body(model: PreTrainedModel) -> PreTrainedModel:
    assert isinstance(model.base_model, PreTrainedModel)
    return model.base_model


def critic_of(made: PolicyTrainer) -> Critic:
    assert made.critic is not None
    return made.critic


def critic_parameters(made: PolicyTrainer) -> dict[str, Tensor]:
    return {name: parameter.clone() for name, parameter in critic_of(made).state()["parameters"].items()}


def set_head(made: PolicyTrainer, *, seed: int = 0, bias: float = 0.3, scale: float = 0.1) -> tuple[Tensor, Tensor]:
    """Give the head other weights than zero."""
    found = critic_of(made).state()["parameters"]
    weight, bias_tensor = found["head.weight"], found["head.bias"]
    generator = torch.Generator().manual_seed(seed)
    weight.copy_(scale * torch.randn(weight.shape, generator=generator))
    bias_tensor.fill_(bias)
    return weight, bias_tensor


def earned_at_the_end(*rows: SharedPromptRow, reward: float | None = None) -> tuple[SharedPromptRow, ...]:
    """The rows with a reward at each sample's last token, and nothing before it."""

    def rewards(length: int, index: int) -> np.ndarray:
        array = np.zeros(length, np.float32)
        array[-1] = index % 2 if reward is None else reward
        return array

    return tuple(
        replace(
            each,
            samples=tuple(
                replace(sample, advantages=rewards(len(sample.completion_ids), index)) for index, sample in enumerate(each.samples)
            ),
        )
        for each in rows
    )


def slow_values(model: PreTrainedModel, rows: tuple[SharedPromptRow, ...], weight: Tensor, bias: Tensor) -> list[Tensor]:
    """By the model's own forward pass, one sequence at a time: [tokens] for each sample of each row."""
    found: list[Tensor] = []
    for each in rows:
        for sample in each.samples:
            ids = torch.tensor([*each.prompt_ids, *sample.completion_ids.tolist()])
            hidden = model.base_model(input_ids=ids[None]).last_hidden_state[0, len(each.prompt_ids) - 1 : -1]
            found.append((hidden @ weight[0] + bias).detach())
    return found


def slow_advantages(rewards: np.ndarray, values: list[float], *, gamma: float, lam: float) -> list[float]:
    """GAE as the double sum that it is."""
    following = [*values[1:], 0.0]
    deltas = [float(reward) + gamma * later - value for reward, value, later in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, len(deltas))) for t in range(len(deltas))]


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2))


@pytest.mark.parametrize("own", [False, True], ids=["head", "backbone"])
@pytest.mark.parametrize("make", [policy, gpt2], ids=["shared-prompt", "padded"])
def test_values_are_those_of_separate_sequences(make: Any, own: bool) -> None:
    backbone = make() if own else None
    made = ppo_trainer(make(), backbone=None if backbone is None else body(backbone))
    weight, bias = set_head(made)
    model = made.model if backbone is None else backbone
    assert made.models == [made.model, *([] if backbone is None else [body(backbone)])]
    expected = slow_values(model, ROWS, weight, bias)
    shared = Backbone(made.model, autocast_dtype=None, token_budget=1024)
    order = expected if shared.shares_prompts else sorted(expected, key=len)
    found = []
    for rows in shared.passes(ROWS):
        values = critic_of(made).values(rows, shared.hidden_states(rows))
        found += [values[rows.sample_index == index].detach() for index in range(rows.num_samples)]
    assert len(found) == len(expected)
    for values in found:
        assert any(len(other) == len(values) and torch.allclose(values, other, rtol=1e-4, atol=1e-5) for other in order)


def test_a_new_critic_values_everything_at_zero() -> None:
    made = ppo_trainer()
    shared = Backbone(made.model, autocast_dtype=None, token_budget=1024)
    (rows,) = shared.passes(ROWS)
    assert not critic_of(made).values(rows, shared.hidden_states(rows)).any()


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.5), (1.0, 0.0)])
def test_advantages_and_returns_are_those_of_the_double_sum(gamma: float, lam: float) -> None:
    made = ppo_trainer(advantage={"gamma": gamma, "lam": lam})
    weight, bias = set_head(made)
    rewarded = earned_at_the_end(*ROWS)
    shared = Backbone(made.model, autocast_dtype=None, token_budget=1024)
    (rows,) = shared.passes(rewarded)
    values = critic_of(made).values(rows, shared.hidden_states(rows))
    estimate = critic_of(made).estimate(rows, values)

    samples = [sample for each in rewarded for sample in each.samples]
    of_samples = slow_values(made.model, rewarded, weight, bias)
    expected = [
        slow_advantages(sample.advantages, of_sample.tolist(), gamma=gamma, lam=lam)
        for sample, of_sample in zip(samples, of_samples, strict=True)
    ]
    torch.testing.assert_close(estimate.advantages, torch.tensor(np.concatenate(expected), dtype=torch.float32), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(estimate.returns, estimate.advantages + torch.cat(of_samples), rtol=1e-4, atol=1e-5)
    if lam == 1:
        torch.testing.assert_close(estimate.returns[:6], torch.full((6,), float(samples[0].advantages[-1])), rtol=1e-4, atol=1e-5)


def test_gae_by_hand_with_a_constant_value() -> None:
    made = ppo_trainer(advantage={"gamma": 0.9, "lam": 0.5})
    set_head(made, bias=0.5, scale=0.0)
    shared = Backbone(made.model, autocast_dtype=None, token_budget=1024)
    (rows,) = shared.passes(earned_at_the_end(row(4, (3,), seed=1), reward=1.0))
    advantages = critic_of(made).learn(rows, shared.hidden_states(rows), start=None)
    # δ = (0.9 · 0.5 - 0.5, the same, 1 - 0.5), and each sum takes 0.45 of the next one.
    assert advantages.tolist() == pytest.approx([-0.05 + 0.45 * 0.175, -0.05 + 0.45 * 0.5, 0.5])


@pytest.mark.parametrize("own", [False, True], ids=["head", "backbone"])
def test_the_policys_gradient_is_that_of_the_advantages_alone(own: bool) -> None:
    """Nothing of the value loss reaches it, and no sample is left out."""
    made = ppo_trainer(backbone=body(policy(seed=5)) if own else None)
    set_head(made)
    rewarded = earned_at_the_end(*ROWS)
    shared = Backbone(made.model, autocast_dtype=None, token_budget=1024)
    (rows,) = shared.passes(rewarded)
    estimate = critic_of(made).estimate(rows, critic_of(made).values(rows, shared.hidden_states(rows)))
    made.accumulate(batch(*rewarded))

    parts = iter([estimate.advantages[rows.sample_index == index].numpy() for index in range(rows.num_samples)])
    given = tuple(replace(each, samples=tuple(replace(sample, advantages=next(parts)) for sample in each.samples)) for each in rewarded)
    plain = trainer(policy(), algorithm=AlgorithmSection(denominator="tokens"))
    plain.accumulate(batch(*given))
    assert relative_gap(gradients(plain.model), gradients(made.model)) < 1e-6


def test_micro_batches_may_be_split_and_ordered_in_any_way() -> None:
    def trained(*batches: tuple[SharedPromptRow, ...]) -> PolicyTrainer:
        made = ppo_trainer(critic={"learning_rate": 1e-2})
        set_head(made)
        for rows in batches:
            made.accumulate(batch(*rows))
        made.step()
        return made

    one, two, three = earned_at_the_end(*ROWS)
    split = replace(one, samples=one.samples[:1]), replace(one, samples=one.samples[1:])
    together, apart = trained((one, two, three)), trained((three,), split[1:], (two,), split[:1])
    assert relative_gap(parameters(together.model), parameters(apart.model)) < 1e-6
    assert relative_gap(critic_parameters(together), critic_parameters(apart)) < 1e-6
    assert relative_gap(critic_parameters(together), critic_parameters(ppo_trainer())) > 0.01


@pytest.mark.parametrize("settings", [{}, {"num_minibatches": 2}], ids=["one update", "two updates"])
@pytest.mark.parametrize("own", [False, True], ids=["head", "backbone"])
def test_it_learns_a_constant(own: bool, settings: dict[str, Any]) -> None:
    made = ppo_trainer(
        backbone=body(policy(seed=5)) if own else None,
        critic={"learning_rate": 1e-2},
        training=TrainingSection(learning_rate=1e-9),
        **settings,
    )
    reports = [step(made, earned_at_the_end(row(5, (3, 4), seed=1), row(3, (2, 5), seed=2), reward=0.7)) for _ in range(40)]
    assert reports[0]["values/mean"] == 0
    assert reports[0]["value_loss"] == pytest.approx(0.5 * 0.7**2, rel=0.2)
    assert reports[-1]["values/mean"] == pytest.approx(0.7, abs=0.02)
    assert reports[-1]["returns/mean"] == pytest.approx(0.7)
    assert reports[-1]["value_loss"] < 1e-2 * reports[0]["value_loss"]
    assert all(report["critic/grad_norm"] > 0 for report in reports)


def step(made: PolicyTrainer, rows: tuple[SharedPromptRow, ...]) -> dict[str, float]:
    """One step of as many minibatches as the algorithm has, a row to each of two."""
    if not made._algorithm.updates_in_step:
        made.accumulate(batch(*rows, version=made.version))
    else:
        for minibatch, each in enumerate(rows):
            made.accumulate(batch(each, version=made.version, minibatch=minibatch))
    return dict(made.step().metrics)


def test_it_explains_rewards_that_follow_from_the_prompt() -> None:
    made = ppo_trainer(critic={"learning_rate": 3e-2}, training=TrainingSection(learning_rate=1e-9))
    rows = (*earned_at_the_end(row(5, (3, 4), seed=1), reward=1.0), *earned_at_the_end(row(6, (4, 3), seed=2), reward=0.0))
    reports = [step(made, rows) for _ in range(60)]
    assert abs(reports[0]["explained_variance"]) < 1e-6
    assert reports[-1]["explained_variance"] > 0.9


def test_old_values_are_those_of_the_steps_start() -> None:
    """The second update sees a critic that has moved, and still goes by the values before the first one."""
    made = ppo_trainer(num_minibatches=2, critic={"learning_rate": 1.0, "value_clip": 1e-3})
    report = step(made, earned_at_the_end(row(5, (3, 4), seed=1), row(5, (3, 4), seed=1), reward=10.0))
    assert report["values/mean"] == 0
    assert report["returns/mean"] == pytest.approx(10.0)
    assert report["value_clip_ratio"] > 0.2


def test_in_a_single_update_nothing_is_clipped() -> None:
    made = ppo_trainer(critic={"learning_rate": 1.0, "value_clip": 1e-3})
    step(made, earned_at_the_end(*ROWS))
    assert step(made, earned_at_the_end(*ROWS))["value_clip_ratio"] == 0


def test_a_critic_trains_a_group_with_equal_rewards_of_zero() -> None:
    made = ppo_trainer(critic={"learning_rate": 1e-2})
    set_head(made)
    before = critic_parameters(made)
    report = step(made, earned_at_the_end(*ROWS, reward=0.0))
    assert report["computed_token_share"] == 1
    assert relative_gap(before, critic_parameters(made)) > 0


def test_its_learning_rate_follows_the_policys_course() -> None:
    training = TrainingSection(learning_rate=1e-9, warmup_steps=4)
    warming, warm = ppo_trainer(training=training), ppo_trainer()
    for made in (warming, warm):
        step(made, earned_at_the_end(*ROWS, reward=1.0))
    moved = [critic_parameters(made)["head.bias"].abs().item() for made in (warming, warm)]
    assert moved[0] == pytest.approx(moved[1] / 4, rel=1e-3)


def test_values_that_are_not_finite_leave_out_the_update_of_both() -> None:
    made = ppo_trainer()
    set_head(made, bias=float("nan"))
    before = parameters(made.model)
    made.accumulate(batch(*earned_at_the_end(*ROWS)))
    report = made.step()
    assert report.skipped_updates == 1
    assert "value_loss" not in report.metrics
    assert relative_gap(before, parameters(made.model)) == 0
    assert torch.equal(critic_parameters(made)["head.weight"], set_head(ppo_trainer())[0])


@pytest.mark.parametrize("spoils", ["policy", "critic"])
def test_a_gradient_that_is_not_finite_leaves_out_the_update_of_both(spoils: str) -> None:
    made = ppo_trainer()
    set_head(made)
    before, critic_before = parameters(made.model), critic_parameters(made)
    made.accumulate(batch(*earned_at_the_end(*ROWS)))
    spoiled = made.model.get_output_embeddings().weight if spoils == "policy" else next(iter(critic_of(made)._head.parameters()))
    spoiled.grad[0] = float("inf")
    assert made.step().skipped_updates == 1
    assert relative_gap(before, parameters(made.model)) == 0
    assert relative_gap(critic_before, critic_parameters(made)) == 0


def test_bfloat16_products_give_nearly_the_same_values() -> None:
    exact, rounded = ppo_trainer(), ppo_trainer(autocast_dtype=torch.bfloat16)
    found = []
    for made in (exact, rounded):
        set_head(made)
        found.append(step(made, earned_at_the_end(*ROWS)))
    assert found[0]["values/mean"] != 0
    assert found[1]["values/mean"] == pytest.approx(found[0]["values/mean"], abs=0.02)
    assert critic_parameters(rounded)["head.weight"].dtype == torch.float32


def test_an_own_backbone_that_recomputes_activations_learns_the_same() -> None:
    kept, recomputed = (
        ppo_trainer(
            backbone=body(policy(seed=5)),
            training=TrainingSection(learning_rate=1e-3, gradient_checkpointing=checkpointing),
            critic={"learning_rate": 1e-3},
        )
        for checkpointing in (False, True)
    )
    for made in (kept, recomputed):
        set_head(made)
        step(made, earned_at_the_end(*ROWS))
    assert relative_gap(critic_parameters(kept), critic_parameters(recomputed)) < 1e-6


def test_without_a_critic_there_are_no_metrics_of_one() -> None:
    made = trainer(policy())
    made.accumulate(batch(*ROWS))
    names = made.step().metrics.keys()
    assert not {name for name in names if "value" in name or "critic" in name or "explained" in name}


def test_a_backbone_that_cannot_take_the_policys_passes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the critic \(gpt2\) and the policy \(llama\) take prompts in different layouts"):
        ppo_trainer(backbone=body(gpt2()))


def batches(version: int) -> list[MicroBatch]:
    rows = earned_at_the_end(row(5, (3, 4), seed=version, version=version), row(2, (6,), seed=100 + version, version=version))
    return [batch(each, version=version) for each in rows]


def run(made: PolicyTrainer, *, steps: int) -> None:
    for _ in range(steps):
        for each in batches(made.version):
            made.accumulate(each)
        made.step()


@pytest.mark.parametrize("own", [False, True], ids=["head", "backbone"])
def test_six_steps_equal_three_a_restart_and_three(own: bool, tmp_path: Path) -> None:
    def start(seed: int) -> PolicyTrainer:
        return ppo_trainer(policy(seed=seed), backbone=body(policy(seed=5 + seed)) if own else None, critic={"learning_rate": 1e-2})

    straight, before, after = start(0), start(0), start(1)
    run(straight, steps=6)
    run(before, steps=3)
    save_checkpoint(before, tmp_path)
    after.accumulate(batches(0)[0])
    load_checkpoint(after, tmp_path)
    run(after, steps=3)
    assert relative_gap(parameters(straight.model), parameters(after.model)) == 0
    assert relative_gap(critic_parameters(straight), critic_parameters(after)) == 0


def test_a_checkpoint_without_a_critic_is_refused_with_the_reason(tmp_path: Path) -> None:
    save_checkpoint(trainer(policy()), tmp_path)
    with pytest.raises(CheckpointError, match="has no critic, but this run has one, whose values would start from nothing"):
        load_checkpoint(ppo_trainer(), tmp_path)


def test_a_checkpoint_with_another_critic_is_refused(tmp_path: Path) -> None:
    save_checkpoint(ppo_trainer(), tmp_path)
    with pytest.raises(CheckpointError, match="has a critic, but this run has none"):
        load_checkpoint(trainer(policy()), tmp_path)
    with pytest.raises(CheckpointError, match="a critic of other sizes"):
        load_checkpoint(ppo_trainer(backbone=body(policy(seed=5))), tmp_path)


def test_a_damaged_critic_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    made = ppo_trainer()
    run(made, steps=1)
    save_checkpoint(made, tmp_path)
    whole = (tmp_path / "critic.pt").read_bytes()
    (tmp_path / "critic.pt").write_bytes(whole[: len(whole) // 2])
    other = ppo_trainer(policy(seed=1))
    before = parameters(other.model)
    with pytest.raises(CheckpointError, match="incomplete or damaged"):
        load_checkpoint(other, tmp_path)
    assert relative_gap(before, parameters(other.model)) == 0
    assert not critic_parameters(other)["head.weight"].any()


def test_weights_are_the_policys_alone() -> None:
    made = ppo_trainer(backbone=body(policy(seed=5)))
    assert made.weights().keys() == trainer(policy()).weights().keys()


def test_token_weights_are_the_normalisers() -> None:
    """With equal weights of tokens, the value loss is the mean over tokens."""
    made = ppo_trainer()
    set_head(made)
    rewarded = earned_at_the_end(*ROWS)
    shared = Backbone(made.model, autocast_dtype=None, token_budget=1024)
    (rows,) = shared.passes(rewarded)
    values = critic_of(made).values(rows, shared.hidden_states(rows)).detach()
    returns = critic_of(made).estimate(rows, values).returns
    assert isinstance(made._normaliser, TokenMean)
    assert step(made, rewarded)["value_loss"] == pytest.approx(float(0.5 * (values - returns).square().mean()), rel=1e-4)
