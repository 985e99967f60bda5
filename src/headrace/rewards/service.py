"""The reward service: worker processes beside generation, each call under a time limit."""

import asyncio
import pickle
import threading
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import cloudpickle

from headrace.errors import PartDiedError, RewardError, StalledError
from headrace.rewards.channel import Call, ContractBroken
from headrace.rewards.functions import GroupArguments, RewardFunction
from headrace.rewards.process import WorkerLostError, WorkerProcess
from headrace.rewards.scoring import Failure, FailureReason, Outcome
from headrace.rewards.totals import OnFailure, rollout_reward
from headrace.types import Prompt, Rollout, RolloutReward

_CLOSE_LIMIT_SECONDS = 30.0


class ProcessRewardService:
    """Runs reward functions in processes; implements `interfaces.RewardService`.

    A call is one function on one group. Calls wait in one queue for `num_workers` threads, each of which drives
    one worker process, so the event loop never blocks. Workers start with the first calls. A worker whose call ran too
    long is killed, with the processes it started, and one that died is given up; the next call starts another. Neither call is
    tried again: its group gets no value from that function.

    Args:
        functions: The rewards; their names must differ.
        num_workers: Processes.
        time_limit_seconds: Limit of a call, counted while user code runs: not in the queue, nor while a worker starts. It starts
            anew for each attempt, when a function that raised is called again with one completion at a time.
        on_failure: What a failed function does to a rollout's total.

    Raises:
        RewardError: A function cannot be pickled.
    """

    def __init__(self, functions: Sequence[RewardFunction], *, num_workers: int, time_limit_seconds: float, on_failure: OnFailure) -> None:
        assert len({function.name for function in functions}) == len(functions), [function.name for function in functions]
        self._functions = tuple(functions)
        self._pickled_functions = [(function.name, _pickle_function(function)) for function in functions]
        self._time_limit_seconds = time_limit_seconds
        self._on_failure: OnFailure = on_failure
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="reward-call")
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._workers: set[WorkerProcess] = set()
        self._closed = False
        self._failures: Counter[FailureReason] = Counter()

    @property
    def failures(self) -> Mapping[str, int]:
        """Calls so far in which a function failed for some rollout, by reason: `raised`, `timed_out`, `died`, `not_a_number`."""
        return {str(reason): count for reason, count in self._failures.items()}

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> Sequence[RolloutReward]:
        """One reward for each rollout, in order. A function that fails marks its rollouts and is counted.

        Raises:
            RewardError: A function returned the wrong number of values, or cannot be loaded in a worker, or the prompt's columns
                cannot be pickled.
            PartDiedError: The service was closed.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._threads, self._call, index, prompt, rollouts) for index in range(len(self._functions))]
        outcomes_by_function = await asyncio.gather(*calls)
        for outcomes in outcomes_by_function:
            self._failures.update({outcome.reason for outcome in outcomes if isinstance(outcome, Failure)})
        outcomes_by_rollout = [[outcomes[index] for outcomes in outcomes_by_function] for index in range(len(rollouts))]
        return [rollout_reward(self._functions, outcomes, self._on_failure) for outcomes in outcomes_by_rollout]

    async def close(self) -> None:
        """Kill the workers; calls under way fail with PartDiedError.

        Raises:
            StalledError: They do not end.
        """
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        try:
            async with asyncio.timeout(_CLOSE_LIMIT_SECONDS):
                await asyncio.gather(*(asyncio.to_thread(worker.kill) for worker in workers))
                await asyncio.to_thread(self._threads.shutdown)
        except TimeoutError:
            raise StalledError(f"waited {_CLOSE_LIMIT_SECONDS:g} s for {len(workers)} reward workers to end") from None

    def _call(self, index: int, prompt: Prompt, rollouts: Sequence[Rollout]) -> Sequence[Outcome]:
        """One function on one group; on a thread of the service."""
        pickled = _pickle_call(index, prompt, rollouts)
        worker = self._take_worker()
        try:
            reply = worker.call(pickled, time_limit_seconds=self._time_limit_seconds)
        except WorkerLostError as lost:
            self._drop_worker(worker)
            self._check_open()
            return [Failure(reason=lost.reason, text=str(lost))] * len(rollouts)
        with self._lock:
            self._idle.append(worker)
        if isinstance(reply, ContractBroken):
            raise RewardError(
                f"reward function {self._functions[index].name!r} {reply.text}; it must return a list with one value (a number, or None "
                "where it does not apply) for each completion, in their order"
            )
        return reply.outcomes

    def _take_worker(self) -> WorkerProcess:
        """An idle worker, or a new one: there are as many threads as there may be workers."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is not None and worker.is_alive:
            return worker
        if worker is not None:
            self._drop_worker(worker)
        return self._start_worker()

    def _start_worker(self) -> WorkerProcess:
        with self._lock:
            self._check_open()
            worker = WorkerProcess()
            self._workers.add(worker)
        try:
            worker.load(self._pickled_functions)
        except RewardError:
            self._drop_worker(worker)
            self._check_open()
            raise
        return worker

    def _drop_worker(self, worker: WorkerProcess) -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)

    def _check_open(self) -> None:
        if self._closed:
            raise PartDiedError("the reward service was closed before it had scored all groups")


def _pickle_function(function: RewardFunction) -> bytes:
    try:
        return cloudpickle.dumps(function.call)
    except Exception as error:  # pickling runs the user's __reduce__ methods, so anything may be raised
        raise RewardError(
            f"reward function {function.name!r} cannot be sent to a worker process: {type(error).__name__}: {error}; "
            "make what it needs (locks, files, clients, models) inside the function, or at the top of its module"
        ) from error


def _pickle_call(index: int, prompt: Prompt, rollouts: Sequence[Rollout]) -> bytes:
    arguments = GroupArguments(
        prompt=prompt.text,
        texts=tuple(rollout.text for rollout in rollouts),
        completion_ids=tuple(array("i", rollout.completion_ids.tobytes()) for rollout in rollouts),
        columns=prompt.columns,
    )
    try:
        return pickle.dumps(Call(function=index, arguments=arguments))
    except Exception as error:  # as above, for the data set's values
        raise RewardError(
            f"the columns of prompt {prompt.row} ({', '.join(prompt.columns)}) cannot be sent to a reward worker: "
            f"{type(error).__name__}: {error}; keep to text, numbers, lists and dictionaries"
        ) from error
