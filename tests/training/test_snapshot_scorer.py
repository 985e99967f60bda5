import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from training.policies import policy
from training.test_frozen_policy import PROMPT, ROLLOUTS
from transformers import PreTrainedModel

from headrace.errors import CheckpointError
from headrace.training.frozen_policy import FrozenPolicy
from headrace.training.snapshot_scorer import SNAPSHOT_FILE, SnapshotScorer
from headrace.types import RolloutLogprobs


def scorer(model: PreTrainedModel, autocast_dtype: torch.dtype | None = None) -> SnapshotScorer:
    frozen = FrozenPolicy(model, temperature=1.0, autocast_dtype=autocast_dtype, token_budget=64)
    return SnapshotScorer(frozen, threads=nullcontext(lambda: 1))


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def equal(one: RolloutLogprobs, other: RolloutLogprobs) -> bool:
    return all(bool((left == right).all()) for left, right in zip(one.of_rollouts, other.of_rollouts, strict=True))


def test_it_scores_with_its_last_snapshot_and_says_which_version_that_is() -> None:
    async def scenario() -> None:
        made, target = scorer(policy()), scorer(policy(seed=7))
        first = await made.score(PROMPT, ROLLOUTS)
        learned = policy(seed=7)
        await made.take_snapshot(4, weights_of(learned))
        with torch.no_grad():
            for parameter in learned.parameters():
                parameter.zero_()  # The trainer goes on; the snapshot is a copy.
        second = await made.score(PROMPT, ROLLOUTS)
        assert (first.version, second.version) == (0, 4)
        assert not equal(first, second)
        assert equal(second, await target.score(PROMPT, ROLLOUTS))
        await made.close()
        await target.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
def test_a_snapshot_survives_a_checkpoint(tmp_path: Path, autocast_dtype: torch.dtype | None) -> None:
    async def scenario() -> None:
        made, fresh = scorer(policy(), autocast_dtype), scorer(policy(seed=1), autocast_dtype)
        await made.take_snapshot(6, weights_of(policy(seed=7)))
        made.save(tmp_path)
        await fresh.load(tmp_path)
        before, after = await made.score(PROMPT, ROLLOUTS), await fresh.score(PROMPT, ROLLOUTS)
        assert after.version == 6
        assert equal(before, after)
        await made.close()
        await fresh.close()

    asyncio.run(scenario())


def test_only_weights_that_change_are_saved(tmp_path: Path) -> None:
    """Those that the trainer gives: of an adapted policy the adapter's."""

    async def scenario() -> None:
        made = scorer(policy())
        await made.take_snapshot(1, {"model.norm.weight": torch.full((32,), 0.5)})
        made.save(tmp_path)
        await made.close()

    asyncio.run(scenario())
    with safe_open(tmp_path / SNAPSHOT_FILE, framework="pt") as saved:
        assert list(saved.keys()) == ["model.norm.weight"]
        assert bool((saved.get_tensor("model.norm.weight") == 0.5).all())


def test_no_loader_takes_the_snapshot_for_weights_of_the_model_beside_it(tmp_path: Path) -> None:
    """Some take every file of an ending, also in folders below."""

    async def scenario() -> None:
        made = scorer(policy())
        await made.take_snapshot(1, weights_of(policy()))
        made.save(tmp_path)
        await made.close()

    asyncio.run(scenario())
    assert not {file.suffix for file in tmp_path.rglob("*")} & {".safetensors", ".bin", ".pt", ".pth", ".gguf"}


@pytest.mark.parametrize("damage", ["missing", "cut off", "another model's"])
def test_a_checkpoint_without_a_readable_snapshot_is_refused(tmp_path: Path, damage: str) -> None:
    async def scenario() -> None:
        made = scorer(policy())
        await made.take_snapshot(2, weights_of(policy()))
        made.save(tmp_path)
        file = tmp_path / SNAPSHOT_FILE
        if damage == "missing":
            file.unlink()
        elif damage == "cut off":
            file.write_bytes(file.read_bytes()[:-8])
        loading = made if damage != "another model's" else scorer(policy(hidden_size=16))
        with pytest.raises(CheckpointError, match="snapshot"):
            await loading.load(tmp_path)
        await made.close()
        await loading.close()

    asyncio.run(scenario())
