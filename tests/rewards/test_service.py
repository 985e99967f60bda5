import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rewards.examples import prompt, rollout, rollouts, score_once, with_service
from rewards.test_process import wait_until_ended

from headrace.errors import PartDiedError, RewardError
from headrace.rewards.building import wrap_reward_functions
from headrace.rewards.exact_number import ExactNumberReward
from headrace.rewards.functions import RewardFunction
from headrace.rewards.service import ProcessRewardService

FACTOR = 10.0


def test_functions_of_every_kind_and_their_weights():
    offset = 0.5

    def closure(prompts, completions, completion_ids, answer, **columns):
        print("user output must not disturb anything")  # noqa: T201
        os.write(1, b"nor what comes from below Python\n")
        assert (prompts, answer, columns) == (["1 + 2?"] * 2, ["3", "3"], {"level": [4, 4]})
        return [offset + len(ids) for ids in completion_ids]

    async def asynchronous(completions):
        await asyncio.sleep(0)
        return [FACTOR if c == "3" else None for c in completions]

    def exact(digits, completions):
        return [round(1 / 3, digits)] * len(completions)

    group = [rollout("3", [1, 2, 3]), rollout("so 4", [1])]
    calls = (closure, asynchronous, lambda completions: [c == "3" for c in completions], functools.partial(exact, 2), ExactNumberReward())
    rewards = with_service(lambda service: service.score(prompt(answer="3", level=4), group), *calls, weights=[1, 2, 3, 4, 5])
    names = ["closure", "asynchronous", "lambda", "exact", "ExactNumberReward"]
    assert rewards[0].by_function == dict(zip(names, [3.5, 10.0, 1.0, 0.33, 1.0], strict=True))
    assert rewards[1].by_function == dict(zip(names, [1.5, None, 0.0, 0.33, 0.0], strict=True))
    assert [reward.total for reward in rewards] == [pytest.approx(3.5 + 20 + 3 + 1.32 + 5), pytest.approx(1.5 + 1.32)]
    assert [reward.error for reward in rewards] == [None, None]


def test_two_weighted_functions():
    rewards = score_once(lambda completions: [1, 0], lambda completions: [1, 1], texts=["a", "b"], weights=[0.7, 0.3])
    assert [reward.total for reward in rewards] == [pytest.approx(1.0), pytest.approx(0.3)]


def test_none_of_all_functions_gives_no_total_and_no_error():
    rewards = score_once(lambda completions: [1, 0, None, None], texts="abcd")
    assert [reward.total for reward in rewards] == [1.0, 0.0, None, None]
    assert [reward.error for reward in rewards] == [None] * 4


def test_conversations():
    messages = ({"role": "user", "content": "1 + 2?"},)

    def reward(prompts, completions):
        return [prompts[0] == [{"role": "user", "content": "1 + 2?"}], completions[1] == [{"role": "assistant", "content": "b"}]]

    rewards = with_service(lambda service: service.score(prompt(messages), rollouts("a", "b")), reward)
    assert [reward.total for reward in rewards] == [1.0, 1.0]


@pytest.mark.parametrize(("on_failure", "totals"), [("exclude", [1.0, 0.0, None, None]), ("zero", [1.0, 0.0, 0.0, 0.0])])
def test_a_failing_rollout_leaves_its_siblings_alone(on_failure, totals):
    def judge(completions):
        if "bad" in completions:
            raise ConnectionError("the judge is away")
        return [float(c) for c in completions]

    async def use(service):
        return await service.score(prompt(), rollouts("1", "0", "bad", "nan")), service.failures

    rewards, failures = with_service(use, judge, on_failure=on_failure)
    assert [reward.total for reward in rewards] == totals
    assert rewards[2].error.startswith("reward function 'judge' raised ConnectionError: the judge is away (")
    assert rewards[3].error == "reward function 'judge' returned nan, which is not a finite number"
    assert failures == {"raised": 1, "not_a_number": 1}


def test_wrong_number_of_values_is_an_error_of_the_run():
    with pytest.raises(RewardError, match=r"'lambda' returned 1 values for 2 completions; it must return a list with one value"):
        score_once(lambda completions: [1.0], texts=["a", "b"])


def test_hang_and_death_cost_one_call_and_one_worker_each(tmp_path):
    """The next call of the same service runs in a new worker; a call that killed its worker is not tried again."""
    attempts = tmp_path / "attempts"

    def reward(completions):
        with attempts.open("a") as file:
            file.write(completions[0] + "\n")
        if completions[0] == "hang":
            time.sleep(60)
        if completions[0] == "die":
            os._exit(7)
        return [1.0] * len(completions)

    async def use(service):
        groups = [rollouts(text, "sibling") for text in ("hang", "good", "die", "good")]
        return [await service.score(prompt(), group) for group in groups], service.failures

    groups, failures = with_service(use, reward, lambda completions: [2.0] * len(completions), time_limit_seconds=0.6)
    assert [[reward.total for reward in rewards] for rewards in groups] == [[None, None], [3.0, 3.0], [None, None], [3.0, 3.0]]
    assert groups[0][1].error == "reward function 'reward' ran longer than time_limit_seconds = 0.6; its worker was killed"
    assert groups[2][0].error.startswith("reward function 'reward' ended its worker process (exit code 7)")
    assert groups[2][0].by_function == {"reward": None, "lambda": 2.0}
    assert failures == {"timed_out": 1, "died": 1}
    assert attempts.read_text().split() == ["hang", "good", "die", "good"]


def test_limit_does_not_count_the_queue_nor_the_start():
    def slow_to_load():
        time.sleep(1.2)
        return lambda completions: time.sleep(0.05) or [1.0]

    class LoadsSlowly:
        def __call__(self, completions): ...

        def __reduce__(self):
            return slow_to_load, ()

    async def use(service):
        groups = await asyncio.gather(*(service.score(prompt(), rollouts("a")) for _ in range(50)))
        return [rewards[0].total for rewards in groups], service.failures

    assert with_service(use, LoadsSlowly(), time_limit_seconds=1.0) == ([1.0] * 50, {})


def test_groups_run_in_parallel_and_the_event_loop_goes_on(tmp_path):
    """Each function waits until the other group's has started: only two workers at once can do that."""

    def meet(completions):
        (tmp_path / completions[0]).touch()
        while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
            time.sleep(0.01)
        return [1.0]

    async def use(service):
        scoring = asyncio.gather(service.score(prompt(), rollouts("a")), service.score(prompt(), rollouts("b")))
        heartbeats = 0
        while not scoring.done():
            await asyncio.sleep(0.005)
            heartbeats += 1
        return [rewards[0].total for rewards in await scoring], heartbeats

    totals, heartbeats = with_service(use, meet, num_workers=2)
    assert totals == [1.0, 1.0]
    assert heartbeats > 5


def test_state_of_a_function_lasts_in_its_worker():
    count = iter(range(10))

    async def use(service):
        return [(await service.score(prompt(), rollouts("a")))[0].total for _ in range(3)]

    assert with_service(use, lambda completions: [next(numbers) for numbers in [count]]) == [0.0, 1.0, 2.0]


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.01)


def test_close_ends_workers_and_calls(tmp_path):
    def hang(completions):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (tmp_path / "pids.new").write_text(f"{os.getpid()} {child.pid}")
        (tmp_path / "pids.new").rename(tmp_path / "pids")
        child.wait()

    async def use(service):
        scoring = [asyncio.create_task(service.score(prompt(), rollouts("a"))) for _ in range(2)]
        await asyncio.to_thread(wait_for_file, tmp_path / "pids")
        await service.close()
        results = await asyncio.gather(*scoring, return_exceptions=True)
        with pytest.raises(PartDiedError, match="closed"):
            await service.score(prompt(), rollouts("a"))
        return results, service.failures

    results, failures = with_service(use, hang, time_limit_seconds=60)
    assert [type(result) for result in results] == [PartDiedError, PartDiedError]
    assert failures == {}
    for pid in (tmp_path / "pids").read_text().split():
        wait_until_ended(int(pid))


def test_cancelled_score_leaves_the_service_usable():
    async def use(service):
        scoring = asyncio.create_task(service.score(prompt(), rollouts("0.3")))
        await asyncio.sleep(0.05)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        return (await service.score(prompt(), rollouts("0")))[0].total

    assert with_service(use, lambda completions: time.sleep(float(completions[0])) or [1.0]) == 1.0


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    functions = wrap_reward_functions([lambda completions: lock])
    with pytest.raises(RewardError, match=r"'lambda' cannot be sent to a worker process: TypeError: cannot pickle '_thread.lock'"):
        ProcessRewardService(functions, num_workers=1, time_limit_seconds=1, on_failure="exclude")
    with pytest.raises(RewardError, match=r"columns of prompt 7 \(a, gate\) cannot be sent"):
        with_service(lambda service: service.score(prompt(a=1, gate=lock), rollouts("a")), ExactNumberReward())


def test_names_must_differ():
    function = RewardFunction(name="f", weight=1.0, call=print)
    with pytest.raises(AssertionError):
        ProcessRewardService([function, function], num_workers=1, time_limit_seconds=1, on_failure="exclude")


def test_no_functions_give_no_totals():
    assert [reward.total for reward in score_once(texts=["a", "b"])] == [None, None]
