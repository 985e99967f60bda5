"""The batch is driven step by step in the test's own thread, so that weights arrive between two chosen steps."""

import copy
import inspect
from concurrent.futures import Future

import pytest
import torch
from rollout.tiny_models import CONFIGS, byte_tokenizer, fresh_logprobs, request, tiny_model
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from headrace.rollout.decoder import Decoder
from headrace.rollout.running_batch import Interruption, RunningBatch
from headrace.types import GenerationRequest, Rollout

TOKENIZER = byte_tokenizer()
NO_STOP: frozenset[int] = frozenset()


def batch_of(
    model: PreTrainedModel,
    *,
    places: int = 4,
    stop_token_ids: frozenset[int] = NO_STOP,
    limit: int = 400,
    interruption: Interruption = "recompute",
) -> RunningBatch:
    return RunningBatch(
        Decoder(model, num_places=places),
        tokenizer=TOKENIZER,
        stop_token_ids=stop_token_ids,
        max_concurrent_sequences=places,
        max_sequence_length=limit,
        interruption=interruption,
        version=0,
    )


def add(batch: RunningBatch, asked: GenerationRequest) -> "Future[list[Rollout]]":
    future: Future[list[Rollout]] = Future()
    batch.add(asked, future)
    return future


@torch.inference_mode()
def steps(batch: RunningBatch, count: int = 10_000) -> None:
    """At most `count` steps; all work is done long before 10 000."""
    for _ in range(count):
        if not batch.has_work:
            return
        batch.step()
    assert count < 10_000


def complete(model: PreTrainedModel, *asked: GenerationRequest, **how: object) -> list[list[Rollout]]:
    batch = batch_of(model, **how)
    futures = [add(batch, one) for one in asked]
    steps(batch)
    return [future.result(timeout=0) for future in futures]


def take_weights(batch: RunningBatch, version: int, model: PreTrainedModel) -> None:
    with torch.inference_mode():
        batch.take_weights(version, dict(model.named_parameters()))


@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_are_those_of_a_fresh_forward_pass(name: str):
    asked = [request(range(3, 15), rollouts=5, temperature=0.8), request((7,), rollouts=2, seed=5), request(range(40, 47), seed=9)]
    for one, rollouts in zip(asked, complete(tiny_model(name), *asked), strict=True):
        assert len(rollouts) == one.num_rollouts
        for rollout in rollouts:
            torch.testing.assert_close(torch.tensor(rollout.logprobs), fresh_logprobs(tiny_model(name), one, rollout), atol=1e-5, rtol=0)


def tokens_of(rollouts: list[Rollout]) -> list[list[int]]:
    return [rollout.completion_ids.tolist() for rollout in rollouts]


@pytest.mark.parametrize("places", [1, 3, 8])
def test_the_seed_alone_decides_whatever_else_is_in_the_batch(places: int):
    asked = request(range(3, 15), rollouts=4, seed=11)
    others = [request(range(50, 90), rollouts=3, seed=2, length=5), request((9,), seed=11, temperature=0.5)]
    (alone,) = complete(tiny_model(), asked, places=4)
    together = complete(tiny_model(), others[0], asked, others[1], places=places)[1]
    assert tokens_of(together) == tokens_of(alone)
    assert len({tuple(tokens) for tokens in tokens_of(alone)}) == 4, "siblings differ"
    (other_seed,) = complete(tiny_model(), request(range(3, 15), rollouts=4, seed=12))
    assert tokens_of(other_seed) != tokens_of(alone)


def test_a_prompt_is_prefilled_once_for_all_its_rollouts():
    batch = batch_of(tiny_model(), places=3)
    add(batch, request(range(3, 43), rollouts=8, length=6))
    steps(batch)
    assert batch.stats().prefilled_tokens == 39
    assert batch.stats().generated_tokens == 8 * 6


def test_a_long_prompt_does_not_hold_up_the_others():
    batch = batch_of(tiny_model(), places=2, limit=500)
    short = add(batch, request((5,), length=3))
    add(batch, request([5] * 450, length=3))
    steps(batch, 3)
    assert short.done()
    assert batch.stats().prefilled_tokens < 450


def test_requests_start_in_their_order_and_finished_places_are_refilled_at_once():
    batch = batch_of(tiny_model(), places=2)
    futures = [add(batch, request((5,), seed=seed, length=4)) for seed in range(5)]
    done = []
    for _ in range(5):
        steps(batch, 4)
        done.append(sum(future.done() for future in futures))
    assert done == [2, 4, 5, 5, 5]


def test_greedy_follows_the_argmax():
    asked = request(range(3, 9), temperature=0, length=10)
    ((rollout,),) = complete(tiny_model(), asked)
    tokens = list(asked.prompt_ids)
    for token in rollout.completion_ids:
        with torch.no_grad():
            assert token == tiny_model()(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()
        tokens.append(int(token))
    torch.testing.assert_close(torch.tensor(rollout.logprobs), fresh_logprobs(tiny_model(), asked, rollout), atol=1e-5, rtol=0)


def test_any_of_several_stop_tokens_ends_a_rollout():
    asked = request(range(3, 9), rollouts=6, length=40)
    (free,) = complete(tiny_model(), asked)
    stops = frozenset([int(free[0].completion_ids[5]), int(free[1].completion_ids[9])])
    (stopped,) = complete(tiny_model(), asked, stop_token_ids=stops)
    for before, after in zip(tokens_of(free), stopped, strict=True):
        at = next((position for position, token in enumerate(before) if token in stops), None)
        expected = before if at is None else before[: at + 1]
        assert after.completion_ids.tolist() == expected
        assert after.finish_reason == ("length" if at is None else "stop")
        assert after.text == TOKENIZER.decode(expected if at is None else expected[:-1], skip_special_tokens=True)


def test_a_stop_string_ends_a_rollout_and_leaves_the_text():
    free = request(range(3, 9), length=60, seed=4)
    ((rollout,),) = complete(tiny_model(), free)
    at = next(position for position in range(20, 58) if rollout.text[position : position + 2].isascii())
    stop = rollout.text[at : at + 2]
    ((stopped,),) = complete(tiny_model(), request(range(3, 9), length=60, seed=4, stop_strings=("never there", stop)))
    assert stopped.finish_reason == "stop"
    assert stopped.text == rollout.text[: rollout.text.find(stop)]
    whole = TOKENIZER.decode(stopped.completion_ids.tolist(), skip_special_tokens=True)
    assert whole.endswith(stop)
    assert stopped.completion_ids.tolist() == rollout.completion_ids[: len(stopped.completion_ids)].tolist()


def test_a_stop_on_the_last_allowed_token_is_a_stop():
    asked = request(range(3, 9), length=5)
    ((free,),) = complete(tiny_model(), asked)
    ((rollout,),) = complete(tiny_model(), asked, stop_token_ids=frozenset([int(free.completion_ids[4])]))
    assert rollout.finish_reason == "stop"


def test_the_model_s_length_limit_cuts_a_rollout_off():
    ((rollout,),) = complete(tiny_model(), request(range(10), length=50), limit=14)
    assert len(rollout.completion_ids) == 4
    assert rollout.finish_reason == "length"


def interrupted(
    interruption: Interruption, name: str = "llama", rollouts: int = 3
) -> tuple[GenerationRequest, list[Rollout], RunningBatch]:
    """Weights 1 arrive after some steps and weights 2 after some more."""
    batch = batch_of(tiny_model(name), interruption=interruption)
    asked = request(range(3, 15), rollouts=rollouts, length=12, temperature=0.9)
    future = add(batch, asked)
    for version in (1, 2):
        steps(batch, 4)
        take_weights(batch, version, tiny_model(name, seed=version))
    steps(batch)
    return asked, future.result(timeout=0), batch


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gemma2", "gpt2"])
def test_recompute_samples_every_token_as_if_its_weights_had_seen_it_all(name: str):
    asked, rollouts, batch = interrupted("recompute", name, rollouts=7)
    for rollout in rollouts[:3]:
        assert set(rollout.versions.tolist()) == {0, 1, 2}
    assert rollouts[6].versions.tolist() == [2] * 12, "it waited for a place"
    for rollout in rollouts:
        assert (rollout.versions[1:] >= rollout.versions[:-1]).all()
        for version in range(3):
            its = torch.tensor(rollout.versions == version)
            expected = fresh_logprobs(tiny_model(name, seed=version), asked, rollout)
            torch.testing.assert_close(torch.tensor(rollout.logprobs)[its], expected[its], atol=1e-5, rtol=0)
    assert batch.stats().interruptions == 8, "four running rollouts, twice"


def test_continue_keeps_the_cache_of_the_old_weights():
    asked, rollouts, batch = interrupted("continue")
    models = [tiny_model(seed=version) for version in range(3)]
    assert batch.stats().interruptions == 6
    assert batch.stats().prefilled_tokens == 11
    for rollout in rollouts:
        assert set(rollout.versions.tolist()) == {0, 1, 2}
        cache, inputs = DynamicCache(), list(asked.prompt_ids)
        for token, logprob, version in zip(rollout.completion_ids, rollout.logprobs, rollout.versions, strict=True):
            with torch.no_grad():
                logits = models[version](torch.tensor([inputs]), use_cache=True, **{cache_argument(models[0]): cache}).logits[0, -1]
            assert (logits / 0.9).log_softmax(-1)[int(token)].item() == pytest.approx(logprob, abs=1e-5)
            inputs = [int(token)]


def cache_argument(model: PreTrainedModel) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def test_finish_lets_rollouts_end_on_their_weights_and_starts_others_on_the_newest():
    batch = batch_of(tiny_model(), interruption="finish", places=2)
    first_asked, second_asked = request(range(3, 9), rollouts=3, length=6), request(range(3, 9), seed=1, length=6)
    first = add(batch, first_asked)
    steps(batch, 3)
    second = add(batch, second_asked)
    published = tiny_model(seed=1)
    take_weights(batch, 1, published)
    with torch.no_grad():
        for parameter in published.parameters():
            parameter.zero_()
    take_weights(batch, 2, tiny_model(seed=2))
    steps(batch)
    versions = [set(rollout.versions.tolist()) for rollout in first.result(timeout=0) + second.result(timeout=0)]
    assert versions == [{0}, {0}, {2}, {2}]
    for asked, rollout in zip([first_asked, first_asked, first_asked, second_asked], first.result() + second.result(), strict=True):
        expected = fresh_logprobs(tiny_model(seed=int(rollout.versions[0])), asked, rollout)
        torch.testing.assert_close(torch.tensor(rollout.logprobs), expected, atol=1e-5, rtol=0)
    assert batch.stats().interruptions == 0


def test_finish_takes_weights_at_once_when_nothing_runs():
    batch = batch_of(tiny_model(), interruption="finish")
    take_weights(batch, 3, tiny_model(seed=1))
    future = add(batch, request((5,)))
    steps(batch)
    assert set(future.result(timeout=0)[0].versions.tolist()) == {3}


def test_cancelled_requests_leave_and_the_others_go_on():
    batch = batch_of(tiny_model(), places=2)
    asked = [request(range(3, 9), rollouts=2, seed=seed, length=9) for seed in range(3)]
    futures = [add(batch, one) for one in asked]
    steps(batch, 4)
    futures[0].cancel()
    futures[1].cancel()
    steps(batch)
    (expected,) = complete(tiny_model(), asked[2])
    assert tokens_of(futures[2].result(timeout=0)) == tokens_of(expected)
    assert batch.stats().generated_tokens == 2 * 4 + 2 * 9


def test_dropout_is_off():
    config = GPT2Config(**{**CONFIGS["gpt2"].to_dict(), "resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5})
    model = GPT2LMHeadModel(config).train()
    plain = copy.deepcopy(model).eval()
    asked = request(range(3, 9))
    ((rollout,),) = complete(model, asked)
    torch.testing.assert_close(torch.tensor(rollout.logprobs), fresh_logprobs(plain, asked, rollout), atol=1e-5, rtol=0)
