import copy
import dataclasses
import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from training.policies import batch, gradients, parameters, policy, relative_gap, row, trainer

from headrace.config.algorithm import AlgorithmSection, MaskedCorrection
from headrace.config.training import TrainingSection
from headrace.training import policy_trainer
from headrace.training.policy_trainer import PolicyTrainer
from headrace.types import Floats, SharedPromptRow

ROWS = (row(5, (3, 1), seed=1), row(2, (6, 2, 4), seed=2), row(7, (2,), seed=3))
PLAIN_DESCENT: dict[str, Any] = {"learning_rate": 1e-2, "max_grad_norm": 1e9}


def sampled_by(made: PolicyTrainer, rows: tuple[SharedPromptRow, ...], *, off_by: float = 0.0) -> tuple[SharedPromptRow, ...]:
    """The rows with the log-probabilities that the trainer's own model gives their tokens, plus an offset."""
    (collated,) = made._policy.passes(rows)
    logprobs = made._policy.score(collated).logprobs.detach()
    by_sample = iter(
        (logprobs[collated.sample_index == index] + off_by).numpy().astype(np.float32) for index in range(collated.num_samples)
    )
    return tuple(
        dataclasses.replace(each, samples=tuple(dataclasses.replace(sample, logprobs=next(by_sample)) for sample in each.samples))
        for each in rows
    )


def with_logprobs(each: SharedPromptRow, logprobs: Floats) -> SharedPromptRow:
    first, *others = each.samples
    return dataclasses.replace(each, samples=(dataclasses.replace(first, logprobs=logprobs), *others))


def policy_gradient(made: PolicyTrainer, rows: tuple[SharedPromptRow, ...], weigh: Any) -> dict[str, Tensor]:
    """Gradient of −Σ_samples Σ_tokens weigh(sample) · A · log π, one sequence at a time: what PPO gives on-policy."""
    made.model.zero_grad()
    for each in rows:
        for sample in each.samples:
            ids = torch.tensor([*each.prompt_ids, *sample.completion_ids.tolist()])
            table = torch.log_softmax(made.model(input_ids=ids[None]).logits[0], dim=-1)
            logprobs = table[len(each.prompt_ids) - 1 : -1].gather(1, ids[len(each.prompt_ids) :, None])
            (-weigh(sample) * (torch.from_numpy(sample.advantages)[:, None] * logprobs).sum()).backward()
    found = gradients(made.model)
    made.model.zero_grad()
    return found


@pytest.mark.parametrize(
    ("denominator", "weigh"),
    [
        ("tokens", lambda sample: 1 / 18),
        ("sequences", lambda sample: 1 / len(sample.completion_ids) / 6),
        ("constant", lambda sample: 1 / (6 * 8)),
    ],
)
def test_the_gradient_is_divided_once_by_the_batchs_denominator(denominator: Any, weigh: Any) -> None:
    made = trainer(policy(), algorithm=AlgorithmSection(denominator=denominator))
    rows = sampled_by(made, ROWS)
    expected = policy_gradient(made, rows, weigh)
    for each in rows:
        made.accumulate(batch(each))
    summed = gradients(made.model)
    report = made.step()
    scale = {"tokens": 18, "sequences": 6, "constant": 48}[denominator]
    assert relative_gap(expected, {name: gradient / scale for name, gradient in summed.items()}) < 1e-4
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in expected.values()))
    assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_the_order_of_micro_batches_does_not_matter() -> None:
    reports, results = [], []
    for order in permutations(ROWS):
        made = trainer(policy("qwen3"), training=TrainingSection(learning_rate=1e-3))
        for each in order:
            made.accumulate(batch(each))
        accumulated = gradients(made.model)
        reports.append(made.step().metrics)
        results.append((accumulated, parameters(made.model)))
    for accumulated, final in results[1:]:
        assert relative_gap(results[0][0], accumulated) < 1e-6
        assert relative_gap(results[0][1], final) < 1e-6
    for report in reports[1:]:
        assert report == pytest.approx(reports[0], rel=1e-5)


@given(cut=st.lists(st.booleans(), min_size=2, max_size=2))
@settings(max_examples=4, deadline=None)
def test_the_split_into_micro_batches_does_not_matter(cut: list[bool]) -> None:
    whole, split = trainer(policy()), trainer(policy())
    whole.accumulate(batch(*ROWS))
    part: list[SharedPromptRow] = []
    for each, ends in zip(ROWS, [*cut, True], strict=True):
        part.append(each)
        if ends:
            split.accumulate(batch(*part))
            part = []
    assert relative_gap(gradients(whole.model), gradients(split.model)) < 1e-5
    one, other = whole.step(), split.step()
    assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-5)
    assert one.num_loss_tokens == other.num_loss_tokens == 18


def test_a_step_raises_the_version_and_counts() -> None:
    made = trainer(policy())
    made.accumulate(batch(*ROWS))
    report = made.step()
    assert (report.version, made.version) == (1, 1)
    assert (report.num_samples, report.num_loss_tokens, report.skipped_updates) == (6, 18, 0)
    assert report.metrics["micro_batches"] == 1
    assert report.metrics["fill"] == 0.5  # 32 tokens, filled up to 64.
    assert report.metrics["learning_rate"] == 1e-2
    assert all(parameter.grad is None for parameter in made.model.parameters())


def constant(each: SharedPromptRow) -> SharedPromptRow:
    samples = tuple(dataclasses.replace(sample, advantages=np.zeros_like(sample.advantages)) for sample in each.samples)
    return dataclasses.replace(each, samples=samples)


ALGORITHMS = (
    AlgorithmSection(),
    AlgorithmSection(name="a3po", denominator="sequences"),
    AlgorithmSection(name="areal", num_minibatches=2),
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_samples_without_advantage_are_counted_but_not_computed(algorithm: AlgorithmSection, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> tuple[PolicyTrainer, Any]:
        made = trainer(policy(), algorithm=algorithm, training=TrainingSection(learning_rate=1e-2, weight_decay=0.1))
        for version in range(2):
            made.accumulate(batch(ROWS[0], constant(ROWS[1]), version=version))
            made.accumulate(batch(ROWS[2], constant(ROWS[2]), version=version, minibatch=algorithm.num_minibatches - 1))
            report = made.step()
        return made, report

    made, report = trained()
    monkeypatch.setattr(policy_trainer, "_with_advantage", lambda rows: rows)
    complete, of_all = trained()

    assert relative_gap(parameters(complete.model), parameters(made.model)) < 1e-6
    assert (report.num_samples, report.num_loss_tokens) == (of_all.num_samples, of_all.num_loss_tokens) == (7, 20)
    assert report.metrics["loss"] == pytest.approx(of_all.metrics["loss"], rel=1e-5)
    assert report.metrics["computed_token_share"] == pytest.approx(6 / 20)
    assert of_all.metrics["computed_token_share"] == 1


def test_after_an_update_without_computation_nothing_compares_with_the_engine() -> None:
    made = trainer(policy(), algorithm=AlgorithmSection(num_minibatches=2))
    made.accumulate(batch(constant(ROWS[0]), minibatch=0))
    made.accumulate(batch(ROWS[1], minibatch=1))
    metrics = made.step().metrics
    assert metrics["computed_token_share"] == pytest.approx(12 / 16)
    assert "entropy" in metrics
    assert not any(name.startswith(("sampling/", "mismatch_kl", "ess")) for name in metrics)


def test_a_step_without_any_advantage_is_momentum_and_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> tuple[PolicyTrainer, Any]:
        made = trainer(policy(), training=TrainingSection(learning_rate=1e-2, weight_decay=0.1))
        made.accumulate(batch(*ROWS))
        made.step()
        made.accumulate(batch(constant(ROWS[0]), version=1))
        return made, made.step()

    made, report = trained()
    monkeypatch.setattr(policy_trainer, "_with_advantage", lambda rows: rows)
    complete, _ = trained()

    assert relative_gap(parameters(complete.model), parameters(made.model)) < 1e-6
    assert (report.num_samples, report.num_loss_tokens) == (2, 4)
    assert (report.metrics["loss"], report.metrics["computed_token_share"], report.metrics["grad_norm"]) == (0, 0, 0)
    assert "entropy" not in report.metrics


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "settings_",
    [{"name": name} for name in ("grpo", "areal", "a3po", "gspo", "cispo", "sapo")] + [{"name": "m2po", "surrogate": {"threshold": 9.0}}],
)
def test_a_spoiled_log_probability_never_reaches_the_weights(spoiled: float, settings_: dict[str, Any]) -> None:
    made = trainer(policy(), algorithm=AlgorithmSection.model_validate(settings_))
    made.accumulate(batch(ROWS[0]))
    made.step()
    before, moments = parameters(made.model), made.optimizer.state()["state"][0]["exp_avg"].clone()

    made.accumulate(batch(ROWS[1], version=1))
    made.accumulate(batch(with_logprobs(ROWS[0], np.array([-1, spoiled, -1], np.float32)), version=1))
    report = made.step()

    assert report.version == 2
    assert all(bool(tensor.isfinite().all()) for tensor in parameters(made.model).values())
    assert all(math.isfinite(value) for value in report.metrics.values())
    if report.skipped_updates:
        assert relative_gap(before, parameters(made.model)) == 0
        assert torch.equal(moments, made.optimizer.state()["state"][0]["exp_avg"])
    assert report.skipped_updates == 1 or not math.isnan(spoiled)

    made.accumulate(batch(ROWS[2], version=2))
    assert made.step().skipped_updates == 0
    assert relative_gap(before, parameters(made.model)) > 0


@pytest.mark.parametrize("settings_", [{}, {"beta": 0.1, "entropy_coefficient": 0.1}])
def test_an_advantage_that_is_not_a_number_is_no_mask(settings_: dict[str, Any]) -> None:
    """It says that something is broken, so it must be reported, not pass for a token that does not count."""
    model = policy()
    made = trainer(model, algorithm=AlgorithmSection.model_validate(settings_), reference=copy.deepcopy(model))
    before = parameters(made.model)
    spoiled = [dataclasses.replace(each, advantages=np.full_like(each.advantages, np.nan)) for each in ROWS[0].samples]
    made.accumulate(batch(dataclasses.replace(ROWS[0], samples=tuple(spoiled)), *ROWS[1:]))
    assert made.step().skipped_updates == 1
    assert relative_gap(before, parameters(made.model)) == 0


@pytest.mark.parametrize("micro_batches", [[], [batch(version=1)]])
def test_a_batch_without_loss_tokens_changes_nothing(micro_batches: list[Any]) -> None:
    made = trainer(policy(), training=TrainingSection(learning_rate=1e-2, weight_decay=0.1))
    made.accumulate(batch(*ROWS))
    made.step()
    before = parameters(made.model)
    for micro_batch in micro_batches:
        made.accumulate(micro_batch)
    report = made.step()
    assert (report.version, report.skipped_updates, report.num_loss_tokens) == (2, 0, 0)
    assert relative_gap(before, parameters(made.model)) == 0
    assert all(math.isfinite(value) for value in report.metrics.values())


def test_on_policy_log_probabilities_show_no_mismatch() -> None:
    made = trainer(policy("gemma2", final_logit_softcapping=5.0), temperature=0.7)
    made.accumulate(batch(*sampled_by(made, ROWS)))
    metrics = made.step().metrics
    assert metrics["mismatch_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["ess"] == pytest.approx(1)
    assert metrics["clip_ratio/region_mean"] == 0
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(0, abs=1e-5)
    assert "kl" not in metrics
    assert "behaviour_weight/mean" not in metrics


def test_mismatch_is_of_the_own_versions_tokens_alone() -> None:
    made = trainer(policy())
    made.resume_at(4)
    own = sampled_by(made, (row(5, (3, 2), seed=1, version=4),), off_by=-0.5)
    old = sampled_by(made, (row(5, (9,), seed=2, version=3),), off_by=-3.0)
    made.accumulate(batch(*own, *old, version=4))
    metrics = made.step().metrics
    assert metrics["mismatch_kl"] == pytest.approx(math.exp(0.5) - 0.5 - 1, rel=1e-4)
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx((5 * 0.5 + 9 * 3) / 14, rel=1e-4)
    assert metrics["sampling/importance_sampling_ratio/min"] == pytest.approx(math.exp(0.5), rel=1e-4)
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(math.exp(3), rel=1e-4)
    made.accumulate(batch(*old, version=5))
    assert "mismatch_kl" not in made.step().metrics


def test_recompute_with_one_minibatch_weighs_by_the_current_policy_and_never_clips() -> None:
    """π_θ = π_prox: the gradient is Σ w · A · ∇log π with w = π_θ / π_behave = e^0.5, which plain PPO would clip away."""
    made = trainer(policy(), algorithm=AlgorithmSection(name="areal"))
    rows = sampled_by(made, ROWS, off_by=-0.5)
    expected = policy_gradient(made, rows, lambda sample: math.exp(0.5))
    made.accumulate(batch(*rows))
    assert relative_gap(expected, gradients(made.model)) < 1e-4
    metrics = made.step().metrics
    assert metrics["behaviour_weight/mean"] == pytest.approx(math.exp(0.5), rel=1e-4)
    assert metrics["clip_ratio/region_mean"] == 0


def test_recompute_leaves_out_tokens_beyond_the_cap() -> None:
    made = trainer(policy(), algorithm=AlgorithmSection(name="areal", correction=MaskedCorrection(high=1.5)))
    made.accumulate(batch(*sampled_by(made, ROWS, off_by=-0.5)))
    assert all(float(gradient.abs().max()) == 0 for gradient in gradients(made.model).values())
    assert made.step().metrics["behaviour_weight/beyond_cap"] == 1


def test_loglinear_at_staleness_2_goes_half_way() -> None:
    """log π_prox is half way between the sampler and π_θ, each 0.25 away: weight e^0.25, ratio e^0.25, above 1 + 0.2 only when A > 0."""
    made = trainer(policy(), algorithm=AlgorithmSection(name="a3po"))
    made.resume_at(2)
    rows = sampled_by(made, ROWS, off_by=-0.5)
    made.accumulate(batch(*rows, version=2))
    metrics = made.step().metrics
    positive = sum(len(sample.completion_ids) for each in rows for sample in each.samples if sample.advantages[0] > 0)
    assert metrics["behaviour_weight/mean"] == pytest.approx(math.exp(0.25), rel=1e-4)
    assert metrics["clip_ratio/high_mean"] == pytest.approx(positive / 18)
    assert metrics["clip_ratio/low_mean"] == 0


def test_minibatches_update_one_after_the_other_whatever_the_order_of_arrival() -> None:
    algorithm = AlgorithmSection(num_minibatches=2)
    training = TrainingSection(**PLAIN_DESCENT)
    whole = trainer(policy(), algorithm=algorithm, training=training)
    for each, minibatch in ((ROWS[2], 1), (ROWS[0], 0), (ROWS[1], 1)):
        whole.accumulate(batch(each, minibatch=minibatch))
    assert gradients(whole.model) == {}
    report = whole.step()

    parts = trainer(policy(), training=training, total_steps=12)
    parts.accumulate(batch(ROWS[0]))
    first = parts.step()
    parts.accumulate(batch(ROWS[2], version=1))
    parts.accumulate(batch(ROWS[1], version=1))
    second = parts.step()

    assert relative_gap(parameters(whole.model), parameters(parts.model)) < 1e-6
    assert report.version == 1
    assert (report.num_samples, report.num_loss_tokens) == (6, 18)
    norms = (first.metrics["grad_norm"], second.metrics["grad_norm"])
    assert report.metrics["grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    assert report.metrics["mismatch_kl"] == pytest.approx(first.metrics["mismatch_kl"], rel=1e-5)
    losses = (first.metrics["loss"], second.metrics["loss"])
    assert report.metrics["loss"] == pytest.approx((2 * losses[0] + 4 * losses[1]) / 6, rel=1e-4)


def test_the_proximal_policy_of_all_minibatches_is_the_one_at_the_start_of_the_step() -> None:
    """The second minibatch's behaviour weights are exactly 1, because they are taken before the first update."""
    made = trainer(
        policy(),
        algorithm=AlgorithmSection(name="areal", num_minibatches=2),
        training=TrainingSection(learning_rate=5e-2),
    )
    rows = sampled_by(made, ROWS)
    made.accumulate(batch(rows[0], minibatch=0))
    made.accumulate(batch(*rows[1:], minibatch=1))
    metrics = made.step().metrics
    assert metrics["behaviour_weight/mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip_ratio/region_mean"] > 0


def test_a_spoiled_minibatch_spoils_no_other() -> None:
    made = trainer(policy(), algorithm=AlgorithmSection(num_minibatches=2))
    before = parameters(made.model)
    made.accumulate(batch(with_logprobs(ROWS[0], np.array([-1, math.nan, -1], np.float32)), minibatch=0))
    made.accumulate(batch(ROWS[1], minibatch=1))
    assert made.step().skipped_updates == 1
    assert relative_gap(before, parameters(made.model)) > 0


def test_kl_to_the_reference_is_0_at_first_and_pulls_back_later() -> None:
    reference = policy()
    checksum = parameters(reference)
    made = trainer(policy(), algorithm=AlgorithmSection(beta=0.5), reference=reference)
    made.accumulate(batch(*ROWS))
    assert made.step().metrics["kl"] == pytest.approx(0, abs=1e-6)
    made.accumulate(batch(*ROWS, version=1))
    assert made.step().metrics["kl"] > 1e-4
    assert relative_gap(checksum, parameters(reference)) == 0
    assert gradients(reference) == {}


def test_kl_adds_beta_times_its_own_gradient() -> None:
    """With advantages of 0 the loss is the KL term alone, so twice the beta is twice the gradient."""
    rows = tuple(constant(each) for each in ROWS)
    found = []
    for beta in (0.5, 1.0):
        made = trainer(policy(), algorithm=AlgorithmSection(beta=beta), reference=policy(seed=1))
        made.accumulate(batch(*rows))
        found.append(gradients(made.model))
    assert relative_gap(found[1], {name: 2 * gradient for name, gradient in found[0].items()}) < 1e-5


def test_an_entropy_bonus_raises_entropy() -> None:
    rows = tuple(constant(each) for each in ROWS)
    made = trainer(policy(), algorithm=AlgorithmSection(entropy_coefficient=0.1))
    entropies = []
    for version in range(4):
        made.accumulate(batch(*rows, version=version))
        entropies.append(made.step().metrics["entropy"])
    assert entropies == sorted(entropies)
    assert entropies[-1] > entropies[0] + 0.05


def test_the_learning_rate_counts_optimizer_updates_also_after_a_resume() -> None:
    training = TrainingSection(learning_rate=0.8, warmup_steps=1, lr_scheduler="linear", max_grad_norm=1e-9)
    made = trainer(policy(), algorithm=AlgorithmSection(num_minibatches=2), training=training, total_steps=5)
    rates = []
    for version in (0, 1, 4):
        made.resume_at(version)
        made.accumulate(batch(ROWS[0], version=version, minibatch=0))
        made.accumulate(batch(ROWS[1], version=version, minibatch=1))
        rates.append(made.step().metrics["learning_rate"])
    # Updates 1, 3 and 9 of 10, the first two of them warm-up: 0.8 · (2/2, 7/8, 1/8).
    assert rates == pytest.approx([0.8, 0.7, 0.1])


@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
def test_gradient_checkpointing_gives_the_same_gradients(autocast_dtype: torch.dtype | None) -> None:
    plain = trainer(policy(), autocast_dtype=autocast_dtype)
    checkpointed = trainer(policy(), training=TrainingSection(gradient_checkpointing=True), autocast_dtype=autocast_dtype)
    for made in (plain, checkpointed):
        made.accumulate(batch(*ROWS))
    assert relative_gap(gradients(plain.model), gradients(checkpointed.model)) < 1e-6


def test_weights_name_a_tied_parameter_once_and_share_memory() -> None:
    made = trainer(policy("llama", tie_word_embeddings=True))
    weights = made.weights()
    assert "model.embed_tokens.weight" in weights
    assert "lm_head.weight" not in weights
    assert not any("inv_freq" in name for name in weights)
    before = weights["model.norm.weight"].clone()
    made.accumulate(batch(*ROWS))
    made.step()
    assert not torch.equal(before, weights["model.norm.weight"])


def test_a_rewarded_token_becomes_likelier() -> None:
    made = trainer(policy(), training=TrainingSection(learning_rate=3e-3), total_steps=8)
    rng = np.random.default_rng(0)
    prompt = row(4, (1,), seed=0)
    rewarded, chances = 7, []
    for version in range(8):
        made.model.eval()
        with torch.no_grad():
            table = torch.log_softmax(made.model(input_ids=torch.tensor([prompt.prompt_ids])).logits[0, -1], dim=-1)
        chances.append(float(table[rewarded].exp()))
        drawn = np.append(rng.choice(len(table), size=7, p=table.exp().double().numpy() / float(table.exp().double().sum())), rewarded)
        samples = tuple(
            dataclasses.replace(
                prompt.samples[0],
                completion_ids=np.array([token], np.int32),
                logprobs=table[[token]].numpy(),
                versions=np.array([version], np.int32),
                advantages=np.array([1.0 if token == rewarded else -1 / 7], np.float32),
            )
            for token in drawn
        )
        made.accumulate(batch(dataclasses.replace(prompt, samples=samples), version=version))
        made.step()
    assert chances[-1] > 3 * chances[0]
