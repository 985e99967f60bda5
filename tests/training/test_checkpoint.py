import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from training.policies import batch, parameters, policy, relative_gap, row, trainer
from transformers import AutoModelForCausalLM

from headrace.config.training import TrainingSection
from headrace.errors import CheckpointError
from headrace.training.checkpoint import load_checkpoint, save_checkpoint
from headrace.training.policy_trainer import PolicyTrainer

TRAINING = TrainingSection(learning_rate=1e-2, lr_scheduler="cosine", warmup_steps=2, weight_decay=0.1)


def run(made: PolicyTrainer, *, steps: int) -> None:
    for _ in range(steps):
        made.accumulate(batch(row(5, (3, 4), seed=made.version, version=made.version), version=made.version))
        made.accumulate(batch(row(2, (6,), seed=100 + made.version, version=made.version), version=made.version))
        made.step()


@pytest.mark.parametrize("tied", [False, True])
def test_six_steps_equal_three_a_restart_and_three(tied: bool, tmp_path: Path) -> None:
    straight = trainer(policy(tie_word_embeddings=tied), training=TRAINING)
    run(straight, steps=6)
    before = trainer(policy(tie_word_embeddings=tied), training=TRAINING)
    run(before, steps=3)
    save_checkpoint(before, tmp_path)

    after = trainer(policy(seed=1, tie_word_embeddings=tied), training=TRAINING)
    load_checkpoint(after, tmp_path)
    assert after.version == 3
    run(after, steps=3)

    assert after.version == 6
    assert relative_gap(parameters(straight.model), parameters(after.model)) == 0


def test_the_policy_is_a_hugging_face_folder(tmp_path: Path) -> None:
    made = trainer(policy("qwen3"))
    run(made, steps=1)
    save_checkpoint(made, tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float32
    assert relative_gap(parameters(made.model), parameters(loaded)) == 0


def test_random_states_are_restored(tmp_path: Path) -> None:
    made = trainer(policy())
    save_checkpoint(made, tmp_path)
    expected = (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random())
    load_checkpoint(made, tmp_path)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()) == expected


def test_a_checkpoint_of_another_model_is_refused_with_both_names(tmp_path: Path) -> None:
    save_checkpoint(trainer(policy("qwen3")), tmp_path)
    other = trainer(policy("llama"))
    before = parameters(other.model)
    with pytest.raises(CheckpointError, match=r"belongs to .*\(qwen3, [\d,]+ parameters\), not to .*\(llama, [\d,]+ parameters\)"):
        load_checkpoint(other, tmp_path)
    assert relative_gap(before, parameters(other.model)) == 0


def test_a_checkpoint_of_another_width_names_the_parameter(tmp_path: Path) -> None:
    save_checkpoint(trainer(policy(intermediate_size=40)), tmp_path)
    with pytest.raises(CheckpointError, match=r"'model.layers.0.mlp.down_proj.weight' has shape \[32, 40\] there and \[32, 48\] here"):
        load_checkpoint(trainer(policy()), tmp_path)


@pytest.mark.parametrize("missing", ["trainer_state.json", "model.safetensors", "optimizer.pt", "rng.pt"])
def test_an_incomplete_checkpoint_is_refused(missing: str, tmp_path: Path) -> None:
    save_checkpoint(trainer(policy()), tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointError, match="incomplete or damaged"):
        load_checkpoint(trainer(policy()), tmp_path)


@pytest.mark.parametrize("damaged", ["trainer_state.json", "model.safetensors", "optimizer.pt", "rng.pt"])
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(damaged: str, tmp_path: Path) -> None:
    made = trainer(policy())
    run(made, steps=1)
    save_checkpoint(made, tmp_path)
    whole = (tmp_path / damaged).read_bytes()
    (tmp_path / damaged).write_bytes(whole[: len(whole) // 2])
    other = trainer(policy(seed=1))
    before = parameters(other.model)
    with pytest.raises(CheckpointError, match="incomplete or damaged"):
        load_checkpoint(other, tmp_path)
    assert relative_gap(before, parameters(other.model)) == 0
    assert other.version == 0


def test_a_moved_checkpoint_still_loads(tmp_path: Path) -> None:
    made = trainer(policy())
    (tmp_path / "writing").mkdir()
    save_checkpoint(made, tmp_path / "writing")
    shutil.move(tmp_path / "writing", tmp_path / "done")
    other = trainer(policy(seed=1))
    load_checkpoint(other, tmp_path / "done")
    assert relative_gap(parameters(made.model), parameters(other.model)) == 0
