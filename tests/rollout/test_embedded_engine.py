import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest
import torch
from rollout.tiny_models import byte_tokenizer, fresh_logprobs, request, tiny_model
from transformers import PreTrainedModel

from headrace.errors import ModelError, PartDiedError, StalledError, UserError
from headrace.interfaces import RolloutEngine
from headrace.rollout.embedded_engine import EmbeddedEngine


def engine_of(model: PreTrainedModel | None = None, *, stall_seconds: float = 20.0) -> EmbeddedEngine:
    return EmbeddedEngine(
        model or tiny_model(),
        tokenizer=byte_tokenizer(),
        stop_token_ids=(),
        max_concurrent_sequences=4,
        max_sequence_length=200,
        interruption="recompute",
        threads=nullcontext(lambda: 1),
        stall_seconds=stall_seconds,
    )


def run(test: Callable[[EmbeddedEngine], Awaitable[None]], model: PreTrainedModel | None = None, **how: float) -> None:
    async def main() -> None:
        engine = engine_of(model, **how)
        await asyncio.wait_for(test(engine), timeout=30)
        await engine.close()

    asyncio.run(main())


class Gate:
    """Holds up a model's forward passes, or breaks them, while they run in the engine's thread."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()
        self.error: Exception | None = None
        model.get_input_embeddings().register_forward_pre_hook(self._pass)

    def _pass(self, *_: object) -> None:
        self.reached.set()
        assert self.open.wait(20)
        if self.error:
            raise self.error


def test_concurrent_requests_are_answered_with_their_own_rollouts():
    async def test(engine: RolloutEngine) -> None:
        asked = [request(range(3, 10 + seed), rollouts=2, seed=seed) for seed in range(4)]
        answers = await asyncio.gather(*map(engine.generate, asked))
        for one, rollouts in zip(asked, answers, strict=True):
            for rollout in rollouts:
                torch.testing.assert_close(torch.tensor(rollout.logprobs), fresh_logprobs(tiny_model(), one, rollout), atol=1e-5, rtol=0)
        assert engine.stats().generated_tokens == 4 * 2 * 12
        assert engine.stats().busy_seconds > 0

    run(test)


def test_the_event_loop_goes_on_while_the_engine_computes():
    model = tiny_model()
    gate = Gate(model)

    async def test(engine: EmbeddedEngine) -> None:
        gate.open.clear()
        generating = asyncio.create_task(engine.generate(request((5,))))
        await asyncio.to_thread(gate.reached.wait, 20)
        assert not generating.done()
        gate.open.set()
        assert len(await generating) == 1

    run(test, model)


def test_weights_are_copied_before_the_call_returns():
    async def test(engine: EmbeddedEngine) -> None:
        published = tiny_model(seed=1)
        await engine.load_weights(1, dict(published.named_parameters()))
        with torch.no_grad():
            for parameter in published.parameters():
                parameter.zero_()
        asked = request(range(3, 9))
        (rollout,) = await engine.generate(asked)
        assert set(rollout.versions.tolist()) == {1}
        torch.testing.assert_close(torch.tensor(rollout.logprobs), fresh_logprobs(tiny_model(seed=1), asked, rollout), atol=1e-5, rtol=0)
        assert engine.stats().loading_seconds > 0

    run(test)


def test_wrong_weights_are_refused_and_the_engine_goes_on():
    async def test(engine: EmbeddedEngine) -> None:
        with pytest.raises(ModelError, match=r"unexpected: transformer\.wte\.weight"):
            await engine.load_weights(1, dict(tiny_model("gpt2").named_parameters()))
        (rollout,) = await engine.generate(request((5,)))
        assert set(rollout.versions.tolist()) == {0}

    run(test)


@pytest.mark.parametrize(("prompt", "reason"), [((), "0 tokens"), (range(200), "200 tokens"), ((3, 257), "0 to 256"), ((-1, 3), "-1 to 3")])
def test_prompts_that_cannot_be_continued_are_refused(prompt: range | tuple[int, ...], reason: str):
    async def test(engine: EmbeddedEngine) -> None:
        with pytest.raises(UserError, match=reason):
            await engine.generate(request(prompt))

    run(test)


def test_a_dying_thread_fails_every_call_with_its_reason():
    model = tiny_model()
    gate = Gate(model)

    async def test(engine: EmbeddedEngine) -> None:
        gate.error = ZeroDivisionError("the model broke")
        answers = await asyncio.gather(*(engine.generate(request((5,))) for _ in range(6)), return_exceptions=True)
        with pytest.raises(PartDiedError) as later:
            await engine.generate(request((5,)))
        with pytest.raises(PartDiedError):
            await engine.load_weights(1, dict(tiny_model().named_parameters()))
        for error in [*answers, later.value]:
            assert isinstance(error, PartDiedError)
            assert "the model broke" in str(error)
            assert isinstance(error.__cause__, ZeroDivisionError)

    run(test, model)


def test_closing_fails_the_requests_under_way():
    model = tiny_model()
    gate = Gate(model)

    async def test(engine: EmbeddedEngine) -> None:
        gate.open.clear()
        gate.reached.clear()
        generating = asyncio.create_task(engine.generate(request((5,))))
        await asyncio.to_thread(gate.reached.wait, 20)
        closing = asyncio.create_task(engine.close())
        with pytest.raises(PartDiedError, match="closed"):
            await generating
        gate.open.set()
        await closing
        with pytest.raises(PartDiedError, match="closed"):
            await engine.generate(request((5,)))

    run(test, model)


def test_an_engine_that_makes_no_step_is_reported():
    model = tiny_model()
    gate = Gate(model)

    async def test(engine: EmbeddedEngine) -> None:
        gate.open.clear()
        with pytest.raises(StalledError, match=r"waited 0\.3 s for completions"):
            await engine.generate(request((5,)))
        with pytest.raises(StalledError, match=r"within 0\.3 s"):
            await engine.close()
        gate.open.set()

    run(test, model, stall_seconds=0.3)


def test_a_cancelled_call_withdraws_its_request():
    model = tiny_model()
    gate = Gate(model)

    async def test(engine: EmbeddedEngine) -> None:
        gate.open.clear()
        gate.reached.clear()
        first = asyncio.create_task(engine.generate(request((5,), rollouts=4, length=150)))
        await asyncio.to_thread(gate.reached.wait, 20)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open.set()
        await engine.generate(request((5,)))
        assert engine.stats().generated_tokens < 4 * 5 + 12 + 4

    run(test, model)
