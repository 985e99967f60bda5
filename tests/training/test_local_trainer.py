import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from training.policies import batch, parameters, policy, relative_gap, row, trainer
from transformers import PreTrainedModel

from headrace.config.algorithm import AlgorithmSection
from headrace.errors import CheckpointError
from headrace.interfaces import Trainer
from headrace.training.local_trainer import LocalTrainer
from headrace.training.policy_trainer import PolicyTrainer

ROWS = (row(5, (3, 1), seed=1), row(2, (6, 2), seed=2))


def local_trainer(made: PolicyTrainer | None = None, *, threads: Callable[[], int] = lambda: 1) -> LocalTrainer:
    return LocalTrainer(made or trainer(policy()), threads=nullcontext(threads))


def test_it_does_what_the_plain_trainer_does() -> None:
    plain = trainer(policy())
    for each in ROWS:
        plain.accumulate(batch(each))
    expected = plain.step()

    async def scenario() -> None:
        made: Trainer = local_trainer()
        for each in ROWS:
            await made.accumulate(batch(each))
        report = await made.step()
        assert (report, made.version) == (expected, 1)
        assert relative_gap(parameters(plain.model), dict(made.weights())) == 0
        await made.close()

    asyncio.run(scenario())


def test_the_event_loop_goes_on_while_it_computes() -> None:
    async def scenario() -> None:
        made = local_trainer()
        computing = asyncio.create_task(made.accumulate(batch(*ROWS)))
        turns = 0
        while not computing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 2
        await made.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("trainer")]

    asyncio.run(scenario())


def test_threads_are_set_where_it_computes() -> None:
    async def scenario() -> None:
        made = local_trainer(threads=lambda: 2)
        assert await made._thread.compute(torch.get_num_threads) == 2
        await made.close()

    before = torch.get_num_threads()
    asyncio.run(scenario())
    torch.set_num_threads(before)


def test_saving_and_loading(tmp_path: Path) -> None:
    async def scenario() -> None:
        made, other = local_trainer(), local_trainer()
        await made.accumulate(batch(*ROWS))
        await made.step()
        await made.save(tmp_path)
        await other.load(tmp_path)
        assert other.version == 1
        assert relative_gap(dict(made.weights()), dict(other.weights())) == 0
        with pytest.raises(CheckpointError):
            await other.load(tmp_path / "absent")
        await made.close()
        await other.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("reference", [None, policy(seed=1)], ids=["policy", "policy and reference"])
def test_threads_are_asked_for_again_while_a_micro_batch_is_computed(reference: PreTrainedModel | None) -> None:
    asked: list[int] = []
    algorithm = AlgorithmSection.model_validate({"beta": 0.0 if reference is None else 0.1})

    def number() -> int:
        asked.append(1)
        return 1

    async def scenario() -> None:
        made = local_trainer(trainer(policy(), algorithm=algorithm, reference=reference), threads=number)
        await made.accumulate(batch(*ROWS))
        await made.close()

    before = torch.get_num_threads()
    asyncio.run(scenario())
    torch.set_num_threads(before)
    passes = 2 if reference is None else 3
    assert len(asked) == 1 + passes * policy().config.num_hidden_layers, "at the start, and before each layer, forward and backward"
