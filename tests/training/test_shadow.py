from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from adapters import adapted
from training.policies import batch, gradients, parameters, policy, row, trainer

from headrace.config.algorithm import AlgorithmSection
from headrace.config.training import TrainingSection
from headrace.training.composition import TokenLossFunction
from headrace.training.policy_trainer import PolicyTrainer
from headrace.training.shadow import Shadows
from headrace.types import Floats, MicroBatch, Sample, SharedPromptRow

VERSION = 2
NAMES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "m2po", "rloo", "areal", "a3po")
TRAINING = TrainingSection(learning_rate=1e-2, token_budget=512)


def algorithm(name: str, **changed: object) -> AlgorithmSection:
    return AlgorithmSection.model_validate({"name": name, "dynamic_sampling": False, **changed})


def comparing(
    applied: AlgorithmSection,
    shadows: Mapping[str, AlgorithmSection],
    *,
    model_type: str = "llama",
    num_layers: int = 1,
    every_steps: int = 1,
    training: TrainingSection = TRAINING,
    autocast_dtype: torch.dtype | None = None,
    pull: TokenLossFunction | None = None,
    **sizes: object,
) -> PolicyTrainer:
    """A trainer at `VERSION` that compares; `pull` is the surrogate of type 'python', whoever has it."""
    settings = Shadows(algorithms=shadows, token_losses=dict.fromkeys(shadows, pull), num_layers=num_layers, every_steps=every_steps)
    made = trainer(
        policy(model_type, **sizes),
        algorithm=applied,
        training=training,
        autocast_dtype=autocast_dtype,
        total_steps=20,
        token_losses=pull,
        shadows=settings,
    )
    made.resume_at(VERSION)
    return made


def with_versions(sample: Sample, rng: np.random.Generator, shadows: Sequence[str]) -> Sample:
    """Tokens of versions 0 to 2, log-probabilities near the policy's, advantages of its own for every shadow."""
    length = len(sample.completion_ids)
    return replace(
        sample,
        versions=np.sort(rng.integers(0, VERSION + 1, length)).astype(np.int32),
        logprobs=(-4 + 0.8 * rng.normal(size=length)).astype(np.float32),
        shadow_advantages={name: np.full(length, rng.normal(), np.float32) for name in shadows},
    )


def rows(shadows: Sequence[str] = NAMES, *, num_rows: int = 4) -> list[SharedPromptRow]:
    rng = np.random.default_rng(7)
    made = [row(4 + index, (6, 3, 5), seed=index) for index in range(num_rows)]
    return [replace(each, samples=tuple(with_versions(sample, rng, shadows) for sample in each.samples)) for each in made]


def metrics_of(made: PolicyTrainer, *micro_batches: MicroBatch) -> dict[str, float]:
    for micro_batch in micro_batches:
        made.accumulate(micro_batch)
    return {name: value for name, value in made.step().metrics.items() if name.startswith("shadow/")}


def last_layer(made: PolicyTrainer) -> torch.Tensor:
    """Its gradients so far, as one vector."""
    layers = made.model.config.num_hidden_layers
    return torch.cat([grad.flatten() for name, grad in gradients(made.model).items() if f".{layers - 1}." in name]).double()


def own_gradient(
    section: AlgorithmSection,
    samples_of: Sequence[SharedPromptRow],
    *,
    model_type: str = "llama",
    autocast_dtype: torch.dtype | None = None,
    pull: TokenLossFunction | None = None,
    **sizes: object,
) -> torch.Tensor:
    """What a trainer with this algorithm alone adds up in the last layer."""
    made = trainer(policy(model_type, **sizes), algorithm=section, training=TRAINING, autocast_dtype=autocast_dtype, token_losses=pull)
    made.resume_at(VERSION)
    seen: list[torch.Tensor] = []
    made.optimizer.update = lambda **_: seen.append(last_layer(made))  # type: ignore[method-assign]
    made.accumulate(batch(*samples_of, version=VERSION))
    made.step()
    return seen[0]


def as_shadow(samples_of: Sequence[SharedPromptRow], label: str) -> list[SharedPromptRow]:
    """The rows as a trainer of the shadow would get them."""
    return [
        replace(
            each,
            samples=tuple(
                replace(s, advantages=s.shadow_advantages[label]) for s in each.samples if s.shadow_advantages[label] is not None
            ),
        )
        for each in samples_of
    ]


def cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(first @ second / first.norm() / second.norm())


@pytest.mark.parametrize("applied", ["grpo", "areal"])
def test_every_gradient_points_where_a_trainer_of_its_own_would_go(applied):
    made, its_rows = comparing(algorithm(applied), {name: algorithm(name) for name in NAMES}), rows()
    found = metrics_of(made, batch(*its_rows[:2], version=VERSION), batch(*its_rows[2:], version=VERSION))
    own = own_gradient(algorithm(applied), its_rows)
    for name in NAMES:
        expected = cosine(own_gradient(algorithm(name), as_shadow(its_rows, name)), own)
        assert found[f"shadow/{name}/gradient_cosine"] == pytest.approx(expected, abs=1e-5), name
        assert abs(expected) < 0.9
    assert found["shadow/applied/gradient_cosine"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        ("gemma2", {"final_logit_softcapping": 5.0, "query_pre_attn_scalar": 8, "sliding_window": 4}),
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    ],
)
def test_any_architecture_is_compared(model_type, sizes):
    applied, shadow, its_rows = algorithm("grpo"), algorithm("cispo"), rows(["cispo"])
    made = comparing(applied, {"cispo": shadow}, model_type=model_type, **sizes)
    found = metrics_of(made, batch(*its_rows, version=VERSION))
    own = own_gradient(applied, its_rows, model_type=model_type, **sizes)
    other = own_gradient(shadow, as_shadow(its_rows, "cispo"), model_type=model_type, **sizes)
    assert found["shadow/cispo/gradient_cosine"] == pytest.approx(cosine(other, own), abs=1e-5)


def test_parts_by_staleness_are_those_of_trainers_that_see_only_these_tokens():
    """With samples that are each of one version, so that a trainer can be given one staleness alone."""
    its_rows = [
        replace(each, samples=tuple(replace(s, versions=np.full(len(s.versions), k, np.int32)) for k, s in enumerate(each.samples)))
        for each in rows(["areal"])
    ]
    found = metrics_of(comparing(algorithm("grpo"), {"areal": algorithm("areal")}), batch(*its_rows, version=VERSION))
    for version in range(3):
        part = [replace(each, samples=(each.samples[version],)) for each in its_rows]
        expected = cosine(own_gradient(algorithm("areal"), as_shadow(part, "areal")), own_gradient(algorithm("grpo"), part))
        assert found[f"shadow/areal/gradient_cosine/staleness_{VERSION - version}"] == pytest.approx(expected, abs=1e-5)
        assert f"shadow/areal/kept/staleness_{VERSION - version}" in found
    assert found["shadow/applied/gradient_cosine/staleness_1"] == pytest.approx(1, abs=1e-6)


def test_one_staleness_has_no_parts():
    fresh = [row(4, (3, 4), seed=1, version=VERSION)]
    found = metrics_of(comparing(algorithm("grpo"), {}), batch(*fresh, version=VERSION))
    assert found.keys() == {f"shadow/applied/{name}" for name in ("kept", "ess", "clip_ratio", "gradient_cosine")}


def test_the_split_into_micro_batches_does_not_matter():
    shadows, its_rows = {name: algorithm(name) for name in NAMES}, rows()
    together = metrics_of(comparing(algorithm("areal"), shadows), batch(*its_rows, version=VERSION))
    apart = metrics_of(comparing(algorithm("areal"), shadows), *(batch(each, version=VERSION) for each in its_rows))
    assert together == pytest.approx(apart, abs=2e-5)
    assert {name.split("/")[1] for name in together} == {"applied", *NAMES}


def with_rest(its_rows: Sequence[SharedPromptRow]) -> tuple[list[SharedPromptRow], list[SharedPromptRow], list[SharedPromptRow]]:
    """All rows; those that the applied algorithm trains on, some of them without an advantage; those that it leaves out."""

    def changed(each: SharedPromptRow, index: int, advantages: float) -> SharedPromptRow:
        samples = list(each.samples)
        samples[index] = replace(samples[index], advantages=np.full_like(samples[index].advantages, advantages))
        return replace(each, samples=tuple(samples))

    flat = [changed(each, 1, 0.0) for each in its_rows]
    trained = [replace(each, samples=each.samples[:2]) for each in flat]
    left_out = [replace(changed(each, 2, 0.0), samples=(changed(each, 2, 0.0).samples[2],)) for each in flat]
    return [changed(each, 2, 0.0) for each in flat], trained, left_out


@pytest.mark.parametrize("name", ["areal", "m2po"])
def test_a_shadow_also_learns_from_what_the_applied_algorithm_leaves_out(name):
    every, trained, left_out = with_rest(rows([name]))
    made = comparing(algorithm("grpo"), {name: algorithm(name)})
    found = metrics_of(
        made, batch(*trained, version=VERSION), MicroBatch(version=VERSION, minibatch=0, rows=(), shadow_rows=tuple(left_out))
    )
    expected = cosine(own_gradient(algorithm(name), as_shadow(every, name)), own_gradient(algorithm("grpo"), trained))
    assert found[f"shadow/{name}/gradient_cosine"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("applied", ["pull", "grpo"])
def test_a_surrogate_of_the_user_learns_from_samples_without_advantage(applied):
    """As a shadow and as what is applied: it may pull at them, too."""

    def pull(ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        return -logprobs * advantages + ratio.log().square()

    sections = {"pull": algorithm("grpo", surrogate={"type": "python", "function": "a.py:pull"}), "grpo": algorithm("grpo")}
    [shadow] = sections.keys() - {applied}
    every, _, _ = with_rest(rows([]))
    its_rows = [
        replace(each, samples=tuple(replace(sample, shadow_advantages={shadow: sample.advantages}) for sample in each.samples))
        for each in every
    ]
    made = comparing(sections[applied], {shadow: sections[shadow]}, pull=pull)
    found = metrics_of(made, batch(*its_rows, version=VERSION))
    expected = cosine(own_gradient(sections["pull"], its_rows, pull=pull), own_gradient(sections["grpo"], its_rows))
    assert found[f"shadow/{shadow}/gradient_cosine"] == pytest.approx(expected, abs=1e-5)


def test_a_shadow_leaves_out_what_it_gives_no_advantage():
    def without_last(sample: Sample, index: int) -> Sample:
        return replace(sample, shadow_advantages={"areal": None if index == 2 else sample.shadow_advantages["areal"]})

    its_rows = [replace(each, samples=tuple(map(without_last, each.samples, range(3)))) for each in rows(["areal"])]
    found = metrics_of(comparing(algorithm("grpo"), {"areal": algorithm("areal")}), batch(*its_rows, version=VERSION))
    expected = cosine(own_gradient(algorithm("areal"), as_shadow(its_rows, "areal")), own_gradient(algorithm("grpo"), its_rows))
    assert found["shadow/areal/gradient_cosine"] == pytest.approx(expected, abs=1e-5)


def test_shares_by_hand():
    """One sample on policy but for three tokens: their ratios are 1.5, 0.5 and 6."""
    made = comparing(
        algorithm("grpo", denominator="tokens"),
        {
            "areal": algorithm("areal"),
            "cispo": algorithm("cispo"),
            "rloo": algorithm("rloo"),
        },
    )
    [plain] = [row(4, (5,), seed=3)]
    logprobs = made._policy.score(made._policy.passes([plain])[0]).logprobs.detach().numpy()
    ratios = np.array([1, 1, 1.5, 0.5, 6], np.float32)
    ones: Floats = np.ones(5, np.float32)
    sample = replace(
        plain.samples[0],
        logprobs=logprobs - np.log(ratios),
        advantages=ones,
        versions=np.full(5, VERSION, np.int32),
        shadow_advantages={"areal": ones, "cispo": ones, "rloo": ones},
    )
    found = metrics_of(made, batch(replace(plain, samples=(sample,)), version=VERSION))

    def ess(*weights: float) -> float:
        return sum(weights) ** 2 / (5 * sum(weight**2 for weight in weights))

    expected = {
        # The clip takes what is above 1.2 out, not what is below 0.8, as the advantage is positive.
        "applied": (1.0, ess(1, 1, 0.5), 0.4),
        # Recomputed, the ratio is 1, and the weight 6 is above the bound of 5.
        "areal": (0.8, ess(1, 1, 1.5, 0.5), 0.0),
        "cispo": (1.0, ess(1, 1, 1.5, 0.5, 5), 0.2),
        "rloo": (1.0, 1.0, 0.0),
    }
    for label, values in expected.items():
        measured = [found[f"shadow/{label}/{name}"] for name in ("kept", "ess", "clip_ratio")]
        assert measured == pytest.approx(values, abs=1e-5), label


@pytest.mark.parametrize(
    ("applied", "changed"),
    [
        ("grpo", {}),
        ("areal", {"num_minibatches": 2}),
        ("m2po", {}),
        ("ppo", {}),
        ("grpo", {"entropy_coefficient": 0.01}),
    ],
)
@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
def test_training_is_the_same_to_the_bit(applied, changed, autocast_dtype):
    section = algorithm(applied, **changed)
    _, trained, left_out = with_rest(rows(["m2po", "areal"]))
    micro_batches = [
        batch(*trained[:2], version=VERSION, minibatch=0),
        MicroBatch(version=VERSION, minibatch=0, rows=(), shadow_rows=tuple(left_out)),
        batch(*trained[2:], version=VERSION, minibatch=section.num_minibatches - 1),
    ]
    alone = trainer(policy(), algorithm=section, training=TRAINING, autocast_dtype=autocast_dtype, total_steps=20)
    alone.resume_at(VERSION)
    made = comparing(section, {"m2po": algorithm("m2po"), "areal": algorithm("areal")}, autocast_dtype=autocast_dtype)
    for micro_batch in micro_batches:
        if micro_batch.rows:
            alone.accumulate(micro_batch)
        made.accumulate(micro_batch)
    expected, report = alone.step(), made.step()
    assert {name: value for name, value in report.metrics.items() if not name.startswith("shadow/")} == expected.metrics
    assert "shadow/areal/gradient_cosine" in report.metrics
    for name, parameter in parameters(alone.model).items():
        assert torch.equal(parameter, parameters(made.model)[name]), name


def test_recomputed_activations_are_compared_too():
    training = TRAINING.model_copy(update={"gradient_checkpointing": True})
    shadows, micro_batch = {"areal": algorithm("areal")}, batch(*rows(["areal"]), version=VERSION)
    found = metrics_of(comparing(algorithm("grpo"), shadows, training=training), micro_batch)
    assert found == pytest.approx(metrics_of(comparing(algorithm("grpo"), shadows), micro_batch), abs=1e-5)


@pytest.mark.parametrize("name", ["grpo", "cispo", "areal"])
def test_bfloat16_layers_are_compared_by_their_own_gradients(name):
    its_rows = rows([name])
    found = metrics_of(
        comparing(algorithm("grpo"), {name: algorithm(name)}, autocast_dtype=torch.bfloat16), batch(*its_rows, version=VERSION)
    )
    own = own_gradient(algorithm("grpo"), its_rows, autocast_dtype=torch.bfloat16)
    other = own_gradient(algorithm(name), as_shadow(its_rows, name), autocast_dtype=torch.bfloat16)
    assert found[f"shadow/{name}/gradient_cosine"] == pytest.approx(cosine(other, own), abs=5e-3)


def adapter_trainer(section: AlgorithmSection, autocast_dtype: torch.dtype | None, shadows: Shadows | None = None) -> PolicyTrainer:
    made = trainer(adapted(policy()), algorithm=section, training=TRAINING, autocast_dtype=autocast_dtype, total_steps=20, shadows=shadows)
    made.resume_at(VERSION)
    return made


@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
def test_of_an_adapter_what_learns_is_compared(autocast_dtype):
    its_rows, gradients_of = rows(["areal"]), {}
    for name, own_rows in (("grpo", its_rows), ("areal", as_shadow(its_rows, "areal"))):
        alone = adapter_trainer(algorithm(name), autocast_dtype)
        alone.accumulate(batch(*own_rows, version=VERSION))
        gradients_of[name] = last_layer(alone)
    shadows = Shadows(algorithms={"areal": algorithm("areal")}, token_losses={}, num_layers=1, every_steps=1)
    made = adapter_trainer(algorithm("grpo"), autocast_dtype, shadows)
    made.accumulate(batch(*its_rows, version=VERSION))
    assert torch.equal(last_layer(made), gradients_of["grpo"])
    found = made.step().metrics["shadow/areal/gradient_cosine"]
    assert found == pytest.approx(cosine(gradients_of["areal"], gradients_of["grpo"]), abs=1e-5 if autocast_dtype is None else 1e-2)


def test_only_steps_that_are_due_are_compared():
    made = comparing(algorithm("grpo"), {}, every_steps=2)
    its_rows = [row(4, (3, 4), seed=1, version=VERSION)]
    found = []
    for version in range(VERSION, VERSION + 3):
        found.append(bool(metrics_of(made, batch(*its_rows, version=version))))
    assert found == [True, False, True]


def test_later_updates_of_a_step_are_not_compared():
    section, its_rows = algorithm("areal", num_minibatches=2), rows(["grpo"])
    micro_batches = [batch(*its_rows[:2], version=VERSION, minibatch=0), batch(*its_rows[2:], version=VERSION, minibatch=1)]
    found = metrics_of(comparing(section, {"grpo": algorithm("grpo")}), *micro_batches)
    first = metrics_of(comparing(section, {"grpo": algorithm("grpo")}), micro_batches[0])
    assert found == first


def test_more_layers_are_other_gradients():
    shadows, micro_batch = {"areal": algorithm("areal")}, batch(*rows(["areal"]), version=VERSION)
    one = metrics_of(comparing(algorithm("grpo"), shadows), micro_batch)["shadow/areal/gradient_cosine"]
    both = metrics_of(comparing(algorithm("grpo"), shadows, num_layers=2), micro_batch)["shadow/areal/gradient_cosine"]
    every = metrics_of(comparing(algorithm("grpo"), shadows, num_layers=9), micro_batch)["shadow/areal/gradient_cosine"]
    assert both == every
    assert both != pytest.approx(one, abs=1e-4)
